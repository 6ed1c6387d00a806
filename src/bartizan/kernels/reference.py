"""The kernels' definitions in NumPy, written to be read.

`rows` is anything that becomes an (M, w) array; `origin` is the (w,) point that is subtracted first, or None for
zero; `start` is the global index of the block's first coordinate. All sums are float64. The sketches also add each
row's exact squared norm to `norms`: it shows NaN, Inf and overflow, and costs no further read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Array, Floats

# Words of the keyed stream that each sketch owns; no two ever share one.
ROTATED, ACHLIOPTAS, GAUSSIAN = 1, 2, 3


def chacha(key: Array, counters: Array, stream: int, rounds: int = 8) -> Array:
    """ChaCha's block function (Bernstein, 2008): 16 words for each 64-bit counter, (len(counters), 16) uint32."""
    counters = np.asarray(counters, dtype=np.uint64)
    x = np.empty((16, len(counters)), dtype=np.uint32)
    x[:4] = np.frombuffer(b"expand 32-byte k", dtype="<u4")[:, None]
    x[4:12] = key[:, None]
    x[12], x[13] = counters & 0xFFFFFFFF, counters >> np.uint64(32)
    x[14], x[15] = stream & 0xFFFFFFFF, stream >> 32
    start = x.copy()

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for target, source, mixed, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[target] += x[source]
            x[mixed] ^= x[target]
            x[mixed] = (x[mixed] << np.uint32(by)) | (x[mixed] >> np.uint32(32 - by))

    for _ in range(rounds // 2):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return (x + start).T


def words(key: Array, stream: int, first: int, count: int) -> Array:
    """Words `first` to `first + count` of an endless random stream that belongs to (key, stream)."""
    low, high = first // 16, (first + count + 15) // 16
    return chacha(key, np.arange(low, high, dtype=np.uint64), stream).ravel()[first - 16 * low :][:count]


def centred(rows: npt.ArrayLike, origin: Floats | None) -> Floats:
    rows = np.asarray(rows, dtype=np.float64)
    return rows if origin is None else rows - origin


def gram(rows: npt.ArrayLike, origin: Floats | None, out: Floats) -> None:
    """Inner products of all pairs, about the origin."""
    x = centred(rows, origin)
    out += x @ x.T


def squared_norms(rows: npt.ArrayLike, origin: Floats | None, out: Floats) -> None:
    out += (centred(rows, origin) ** 2).sum(axis=1)


def dots(rows: npt.ArrayLike, origin: Floats | None, out: Floats) -> None:
    """Inner products of all rows with the last one, about the origin."""
    x = centred(rows, origin)
    out += x @ x[-1]


def weighted_sum(rows: npt.ArrayLike, weights: Floats, rest: float, origin: Floats | None, out: Array) -> None:
    """Written, not added, and rounded once to the dtype of `out`, (1, w)."""
    out[0] = weights @ np.asarray(rows, dtype=np.float64) + (0 if origin is None else rest * origin)


def rotation_words(k: int, mixing: int) -> int:
    """How many random words a block of k coordinates uses, in whole ChaCha blocks."""
    lanes = k // mixing
    return 16 * -(-(lanes * sign_planes(mixing) + mixing) // 16)


def sign_planes(mixing: int) -> int:
    """Words a lane needs for the two signs of each of its `mixing` coordinates."""
    return -(-2 * mixing // 32)


def rotation(key: Array, block: int, k: int, mixing: int) -> tuple[Array, Array, Array]:
    """The randomness of one block: signs before mixing and after, (n, L) of +-1, and n offsets below L."""
    count = rotation_words(k, mixing)
    return unpacked(words(key, ROTATED, block * count, count), k, mixing)


def unpacked(w: Array, k: int, mixing: int) -> tuple[Array, Array, Array]:
    """What the words of a block say: its signs and offsets."""
    n, L = mixing, k // mixing
    planes = w[: L * sign_planes(n)].reshape(sign_planes(n), L)
    bit = np.arange(2 * n)
    signs = 1 - 2 * ((planes[bit // 32] >> (bit % 32).astype(np.uint32)[:, None]) & 1).astype(np.float64)
    offsets = w[planes.size : planes.size + n] % np.uint32(L)
    return signs[:n], signs[n:], offsets.astype(np.int64)


def hadamard(n: int) -> Floats:
    """Sylvester's n x n matrix of +-1."""
    H = np.ones((1, 1))
    while len(H) < n:
        H = np.block([[H, H], [H, -H]])
    return H


def rotated(
    rows: npt.ArrayLike, origin: Floats | None, start: int, key: Array, mixing: int, out: Floats, norms: Floats
) -> None:
    """Sign, mix, sign again, rotate each mixed sub-block inside its own k/n cells, add. `start` is a multiple of k."""
    x = centred(rows, origin)
    M, k = out.shape
    n, L = mixing, k // mixing
    x = np.pad(x, ((0, 0), (0, -x.shape[1] % k))).reshape(M, -1, n, L)
    cells = out.reshape(M, n, L)
    for b in range(x.shape[1]):
        before, after, offsets = rotation(key, start // k + b, k, n)
        y = after * (hadamard(n) @ (before * x[:, b])) / np.sqrt(n)
        for c in range(n):
            cells[:, c] += np.roll(y[:, c], offsets[c], axis=1)
    squared_norms(rows, origin, norms)


def dense_words(key: Array, stream: int, start: int, width: int, per_column: int) -> Array:
    """`per_column` words for each of `width` coordinates; a coordinate's words fill whole ChaCha blocks."""
    aligned = 16 * -(-per_column // 16)
    return words(key, stream, start * aligned, width * aligned).reshape(width, aligned)[:, :per_column]


def achlioptas(
    rows: npt.ArrayLike, origin: Floats | None, start: int, key: Array, s: int, out: Floats, norms: Floats
) -> None:
    """An entry is +sqrt(s/k) if its word is in the lowest 1/2s of all words, -sqrt(s/k) in the next, zero above."""
    x = centred(rows, origin)
    out += x @ achlioptas_columns(dense_words(key, ACHLIOPTAS, start, x.shape[1], out.shape[1]), s)
    squared_norms(rows, origin, norms)


def achlioptas_columns(u: Array, s: int) -> Floats:
    """The matrix's columns, one a row, from their words, (w, k)."""
    half = np.uint64(2**32 // (2 * s))
    return np.where(u < half, 1.0, np.where(u < 2 * half, -1.0, 0.0)) * np.sqrt(s / u.shape[1])


def gaussian(rows: npt.ArrayLike, origin: Floats | None, start: int, key: Array, out: Floats, norms: Floats) -> None:
    """Entries are N(0, 1/k), each by Box and Muller from two words."""
    x = centred(rows, origin)
    out += x @ gaussian_columns(dense_words(key, GAUSSIAN, start, x.shape[1], 2 * out.shape[1]))
    squared_norms(rows, origin, norms)


def gaussian_columns(words: Array) -> Floats:
    """The matrix's columns, one a row, from their words, (w, 2k)."""
    k = words.shape[1] // 2
    u = (words.reshape(-1, k, 2) + 0.5) / 2**32
    normal: Floats = np.sqrt(-2 * np.log(u[..., 0])) * np.cos(2 * np.pi * u[..., 1]) / np.sqrt(k)
    return normal
