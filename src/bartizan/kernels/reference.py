"""Definitions of all kernels in NumPy, written to be read; the tests compare the fast ones with them.

First the kernels over p coordinates (`cpu` and `gpu`), then those of the weigh stage (`weigh`). `rows` is anything that
becomes an (M, w) array; `origin` is the (w,) point that is subtracted first, or None for zero; `start` is the index of
the block's first coordinate among all. All sums are float64. The sketches also add each row's exact squared norm to
`norms`: it shows NaN, Inf and overflow, and costs no further read.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Array, Floats

# Words of the keyed stream that each sketch owns; no two ever share one.
ROTATED, ACHLIOPTAS, GAUSSIAN = 1, 2, 3


def chacha(key: Array, counters: Array, stream: int, rounds: int = 8) -> Array:
    """Return ChaCha's blocks (Bernstein, 2008): 16 words per 64-bit counter, (len(counters), 16) uint32."""
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
    """Return words `first` to `first + count` of the endless random stream of (key, stream)."""
    low, high = first // 16, (first + count + 15) // 16
    return chacha(key, np.arange(low, high, dtype=np.uint64), stream).ravel()[first - 16 * low :][:count]


def centred(rows: npt.ArrayLike, origin: Floats | None) -> Floats:
    rows = np.asarray(rows, dtype=np.float64)
    return rows if origin is None else rows - origin


def gram(rows: npt.ArrayLike, origin: Floats | None, out: Floats) -> None:
    """Add the inner products of all pairs, about the origin."""
    x = centred(rows, origin)
    out += x @ x.T


def squared_norms(rows: npt.ArrayLike, origin: Floats | None, out: Floats) -> None:
    out += (centred(rows, origin) ** 2).sum(axis=1)


def dots(rows: npt.ArrayLike, origin: Floats | None, out: Floats) -> None:
    """Add the inner products of all rows with the last one, about the origin."""
    x = centred(rows, origin)
    out += x @ x[-1]


def weighted_sum(rows: npt.ArrayLike, weights: Floats, rest: float, origin: Floats | None, out: Array) -> None:
    """Write the weighted sum, rounded once to the dtype of `out`, (1, w)."""
    out[0] = weights @ np.asarray(rows, dtype=np.float64) + (0 if origin is None else rest * origin)


def mixed(rows: npt.ArrayLike, mixing: Floats, rest: Floats, origin: Floats | None, start: int, out: Floats) -> None:
    """Write mixtures of the rows and, by `rest`, of the origin: the columns of `out`, from column `start` on."""
    columns = slice(start, start + out.shape[1])
    out[:] = mixing @ np.asarray(rows, dtype=np.float64)[:, columns]
    if origin is not None:
        out += rest[:, None] * origin[columns]


def ordered(rows: npt.ArrayLike, sizes: Floats) -> tuple[Floats, Floats]:
    """Sort each column, equal values by their sizes; return it with the sizes in that order."""
    x = np.asarray(rows, dtype=np.float64)
    order = np.lexsort((np.broadcast_to(sizes[:, None], x.shape), x), axis=0)
    return np.take_along_axis(x, order, axis=0), sizes[order]


def median(rows: npt.ArrayLike, sizes: Floats, out: Array) -> None:
    """Write the value of each column with half of the sizes on either side, or the mean of two such values."""
    out[0] = _median(*ordered(rows, sizes))


def _median(x: Floats, sizes: Floats) -> Floats:
    reached, half = np.cumsum(sizes, axis=0), sizes.sum(axis=0) / 2
    low, high = (reached >= half * (1 - 2e-12)).argmax(axis=0), (reached > half * (1 + 2e-12)).argmax(axis=0)
    columns = np.arange(x.shape[1])
    return x[low, columns] / 2 + x[high, columns] / 2


def trimmed_mean(rows: npt.ArrayLike, sizes: Floats, f: int, out: Array) -> None:
    """Write the mean of each column by sizes, without the f smallest and the f largest values."""
    x, sizes = (ranked[f : len(ranked) - f] for ranked in ordered(rows, sizes))
    out[0] = (sizes * x).sum(axis=0) / sizes.sum(axis=0)


def meamed(rows: npt.ArrayLike, sizes: Floats, f: int, out: Array) -> None:
    """Write the mean of each column by sizes, of the M - f values closest to its median; ties go to the smaller value.

    In order (equal values by their sizes) they are consecutive: rank s is out if rank M - f + s is closer.
    """
    x, sizes = ordered(rows, sizes)
    M, centre = len(x), _median(x, sizes)
    first = (centre - x[:f] > x[M - f :] - centre).sum(axis=0)
    rank = np.arange(M)[:, None]
    kept = np.where((rank >= first) & (rank < first + M - f), sizes, 0.0)
    out[0] = (kept * x).sum(axis=0) / kept.sum(axis=0)


@cache
def rotation_words(k: int, mixing: int) -> int:
    """Return how many random words a block of k coordinates uses, in whole ChaCha blocks."""
    lanes = k // mixing
    return 16 * -(-(lanes * sign_planes(mixing) + mixing) // 16)


def sign_planes(mixing: int) -> int:
    """Return how many words a lane needs for the two signs of each of its `mixing` coordinates."""
    return -(-2 * mixing // 32)


def rotation(key: Array, block: int, k: int, mixing: int) -> tuple[Array, Array, Array, Array]:
    """Return the randomness of one block: n swaps, signs before mixing and after, (n, L) of +-1, and n offsets."""
    count = rotation_words(k, mixing)
    return unpacked(words(key, ROTATED, block * count, count), k, mixing)


def unpacked(w: Array, k: int, mixing: int) -> tuple[Array, Array, Array, Array]:
    """Return the swaps, signs and offsets that the words of a block encode.

    Swaps are the lowest bits of one word per row and offsets the highest; above L = 65,536 swaps have fewer bits.
    """
    n, L = mixing, k // mixing
    planes = w[: L * sign_planes(n)].reshape(sign_planes(n), L)
    bit = np.arange(2 * n)
    signs = 1 - 2 * ((planes[bit // 32] >> (bit % 32).astype(np.uint32)[:, None]) & 1).astype(np.float64)
    drawn = w[planes.size : planes.size + n].astype(np.int64)
    return drawn % min(L, 2**32 // L), signs[:n], signs[n:], drawn // (2**32 // L)


def swapped(x: Array, swaps: Array) -> Array:
    """Move lane l of each row r of an (..., n, L) array to lane l XOR swaps[r]."""
    lanes = np.arange(x.shape[-1]) ^ swaps[:, None]
    return np.take_along_axis(x, np.broadcast_to(lanes, x.shape), axis=-1)


def hadamard(n: int) -> Floats:
    """Return Sylvester's n x n matrix of +-1."""
    H = np.ones((1, 1))
    while len(H) < n:
        H = np.block([[H, H], [H, -H]])
    return H


def rotated(
    rows: npt.ArrayLike, origin: Floats | None, start: int, key: Array, mixing: int, out: Floats, norms: Floats
) -> None:
    """Swap lanes, sign, mix, sign again, rotate each mixed sub-block inside its own k/n cells, add.

    `start` is a multiple of k.
    """
    x = centred(rows, origin)
    M, k = out.shape
    n, L = mixing, k // mixing
    x = np.pad(x, ((0, 0), (0, -x.shape[1] % k))).reshape(M, -1, n, L)
    cells = out.reshape(M, n, L)
    for b in range(x.shape[1]):
        swaps, before, after, offsets = rotation(key, start // k + b, k, n)
        y = after * (hadamard(n) @ (before * swapped(x[:, b], swaps))) / np.sqrt(n)
        for c in range(n):
            cells[:, c] += np.roll(y[:, c], offsets[c], axis=1)
    squared_norms(rows, origin, norms)


def dense_words(key: Array, stream: int, start: int, width: int, per_column: int) -> Array:
    """Return `per_column` words for each of `width` coordinates; a coordinate's words fill whole ChaCha blocks."""
    aligned = 16 * -(-per_column // 16)
    return words(key, stream, start * aligned, width * aligned).reshape(width, aligned)[:, :per_column]


def achlioptas(
    rows: npt.ArrayLike, origin: Floats | None, start: int, key: Array, s: int, out: Floats, norms: Floats
) -> None:
    """Add products with Achlioptas' matrix: +sqrt(s/k) for the lowest 1/2s of all words, -sqrt(s/k) for the next."""
    x = centred(rows, origin)
    out += x @ achlioptas_columns(dense_words(key, ACHLIOPTAS, start, x.shape[1], out.shape[1]), s)
    squared_norms(rows, origin, norms)


def achlioptas_columns(u: Array, s: int) -> Floats:
    """Return the matrix's columns, one per row, from their words, (w, k)."""
    half = np.uint64(2**32 // (2 * s))
    return np.where(u < half, 1.0, np.where(u < 2 * half, -1.0, 0.0)) * np.sqrt(s / u.shape[1])


def gaussian(rows: npt.ArrayLike, origin: Floats | None, start: int, key: Array, out: Floats, norms: Floats) -> None:
    """Add the products with a matrix of entries N(0, 1/k), each by Box and Muller from two words."""
    x = centred(rows, origin)
    out += x @ gaussian_columns(dense_words(key, GAUSSIAN, start, x.shape[1], 2 * out.shape[1]))
    squared_norms(rows, origin, norms)


def gaussian_columns(words: Array) -> Floats:
    """Return columns of the matrix as rows, from their (w, 2k) random words."""
    k = words.shape[1] // 2
    u = (words.reshape(-1, k, 2) + 0.5) / 2**32
    normal: Floats = np.sqrt(-2 * np.log(u[..., 0])) * np.cos(2 * np.pi * u[..., 1]) / np.sqrt(k)
    return normal


def distances(inner: Floats, n_clients: int) -> tuple[Floats, int, float]:
    clients = inner[:n_clients, :n_clients]
    squares = np.diag(clients)
    D = np.maximum(squares + squares[:, None] - 2 * clients, 0)
    medians = np.median(D, axis=1)
    return D, int(medians.argmin()), float(medians.min())


def recentred(gram: Floats, centre: int, n_clients: int) -> Floats:
    with_origin = np.insert(np.insert(gram, n_clients, 0.0, axis=0), n_clients, 0.0, axis=1)
    c = centre + (centre >= n_clients)
    return with_origin - with_origin[c] - with_origin[:, c, None] + with_origin[c, c]


def nearest(D: Floats, n: int, sizes: Floats) -> Floats:
    itself_first = D - np.diag(np.ones(len(D)))
    order = np.argsort(itself_first, axis=1, kind="stable")[:, :n]
    A = np.zeros_like(D)
    np.put_along_axis(A, order, sizes[order], axis=1)
    return A / A.sum(axis=1, keepdims=True)


def nearest_sums(D: Floats, n: int) -> Floats:
    return np.sort(D, axis=1)[:, :n].sum(axis=1)


def squared_distances_to(C: Floats, weights: Floats) -> Floats:
    """Return |x_i - sum_j w_j x_j|^2 for all i, from inner products about any point (about zero, unless sum w = 1)."""
    Cw = C @ weights
    return np.maximum(np.diag(C) - 2 * Cw + weights @ Cw, 0)


def by_distance(D: Floats) -> Array:
    return np.argsort(D, axis=1, kind="stable")


def repeated_krum(D: Floats, f: int, n_selected: int) -> Array:
    """Select by scores that are exact sums, rounded once; ties go to the lower index."""
    M = len(D)
    others = D + np.diag(np.full(M, np.inf))
    order = np.argsort(others, axis=1, kind="stable")
    nearest = np.take_along_axis(others, order, axis=1)
    left = np.ones(M, dtype=bool)
    selected = []
    for remaining in range(M, M - n_selected, -1):
        n_neighbours = min(max(remaining - f - 2, f, 1), remaining - 1)
        scores = np.full(M, np.inf)
        for i in np.flatnonzero(left):
            scores[i] = math.fsum(nearest[i, left[order[i]]][:n_neighbours])
        selected.append(int(scores.argmin()))
        left[selected[-1]] = False
    return np.array(selected)


def vertex_cover(far: Array, most: int) -> Array | None:
    """Return the first of the smallest sets of vertices that touch every edge, if one has at most `most`."""
    for size in range(most + 1):
        for cover in combinations(range(len(far)), size):
            if not np.delete(np.delete(far, cover, axis=0), cover, axis=1).any():
                return np.array(cover, dtype=np.int64)
    return None


def sandwich(B: Floats, S: Floats) -> Floats:
    product = B @ S @ B.T
    return (product + product.T) / 2
