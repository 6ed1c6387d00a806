"""The kernels in numba: parallel, cached on disk, float64 sums, and the same answer for any number of threads but for
rounding. What each computes is said in `reference`; here is only how.

Loops run over flat buffers with unsigned indices: numba then emits no wrap-around checks and LLVM vectorises them. They
all stand in one file, because numba's cache looks only at the file that a kernel stands in, not at what it calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numba import carray, get_num_threads, njit, prange, set_num_threads, types  # type: ignore[attr-defined]
from numba import uint64 as u64
from numba.core import cgutils
from numba.extending import intrinsic

from bartizan.kernels import reference
from bartizan.kernels.rows import Rows
from bartizan.types import Array, Floats

# Reordering sums is all we allow: NaN and Inf must come through.
SUMS = {"reassoc", "contract", "nsz"}
# Numbers below which waking a second thread costs more than it saves.
SMALL = 2**17

Kernel = TypeVar("Kernel", bound=Callable[..., None])


# Each kernel uses all cores, and one of numba's threading layers aborts where two callers meet.
ONE_AT_A_TIME = threading.RLock()


def launched(kernel: Kernel) -> Kernel:
    """Run a kernel alone, and on one thread where its rows hold few numbers."""

    @wraps(kernel)
    def launch(rows: Rows, *arguments: Any) -> None:
        with ONE_AT_A_TIME:
            threads = get_num_threads()
            if threads == 1 or rows.width * len(rows) >= SMALL:
                return kernel(rows, *arguments)
            set_num_threads(1)
            try:
                kernel(rows, *arguments)
            finally:
                set_num_threads(threads)

    return launch  # type: ignore[return-value]


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), generate


@njit(cache=True)
def row_of(pointers, m, width, like):
    """The row that begins at this address, as an array."""
    return carray(_pointer(pointers[m]), (width,), like.dtype)  # type: ignore[call-arg]


@njit(cache=True)
def value(row, origin, i):
    """row[i] - origin[i], widened. numba compiles one version with an origin and one without."""
    if origin is None:
        return np.float64(row[i])
    else:
        return np.float64(row[i]) - origin[i]


TILE = 4
STRIP = 256
COMBINE = 8192


@launched
def gram(rows: Rows, origin: Floats | None, out: Floats) -> None:
    parts = np.zeros((get_num_threads(), *_padded(len(rows))))
    _gram(rows.pointers, np.empty(0, rows.dtype), rows.width, origin, parts)
    out += parts.sum(axis=0)[: len(rows), : len(rows)]


@launched
def squared_norms(rows: Rows, origin: Floats | None, out: Floats) -> None:
    _dots(rows.pointers, rows.pointers, np.empty(0, rows.dtype), rows.width, origin, out)


@launched
def dots(rows: Rows, origin: Floats | None, out: Floats) -> None:
    last = np.full_like(rows.pointers, rows.pointers[-1])
    _dots(rows.pointers, last, np.empty(0, rows.dtype), rows.width, origin, out)


@launched
def weighted_sum(rows: Rows, weights: Floats, out: Floats) -> None:
    _weighted_sum(rows.pointers, np.empty(0, rows.dtype), rows.width, weights, out)


def _padded(n: int) -> tuple[int, int]:
    return n + -n % TILE, n + -n % TILE


@njit(cache=True, fastmath=SUMS)
def _tile(x, y, out, i, j):
    """Add the 4 x 4 inner products of two groups of four rows of the strip."""
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = 0.0
    a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = 0.0
    for t in range(u64(STRIP)):
        x0, x1, x2, x3 = x[0, t], x[1, t], x[2, t], x[3, t]
        y0, y1, y2, y3 = y[0, t], y[1, t], y[2, t], y[3, t]
        a00, a01, a02, a03 = a00 + x0 * y0, a01 + x0 * y1, a02 + x0 * y2, a03 + x0 * y3
        a10, a11, a12, a13 = a10 + x1 * y0, a11 + x1 * y1, a12 + x1 * y2, a13 + x1 * y3
        a20, a21, a22, a23 = a20 + x2 * y0, a21 + x2 * y1, a22 + x2 * y2, a23 + x2 * y3
        a30, a31, a32, a33 = a30 + x3 * y0, a31 + x3 * y1, a32 + x3 * y2, a33 + x3 * y3
    for r, row in enumerate(((a00, a01, a02, a03), (a10, a11, a12, a13), (a20, a21, a22, a23), (a30, a31, a32, a33))):
        for c in range(TILE):
            out[i + r, j + c] += row[c]


@njit(parallel=True, cache=True)
def _gram(pointers, like, width, origin, parts):
    M = u64(len(pointers))
    n_strips = -(-width // STRIP)
    n_parts, padded, _ = parts.shape
    for part in prange(n_parts):
        strip = np.zeros((padded, STRIP))
        flat = strip.reshape(-1)
        out = parts[part]
        for s in range(n_strips * part // n_parts, n_strips * (part + 1) // n_parts):
            low = u64(s * STRIP)
            count = min(u64(STRIP), u64(width) - low)
            for m in range(M):
                row = row_of(pointers, m, width, like)
                at = m * u64(STRIP)
                for i in range(count):
                    flat[at + i] = value(row, origin, low + i)
                for i in range(count, u64(STRIP)):
                    flat[at + i] = 0.0
            for i in range(0, padded, TILE):
                for j in range(0, i + 1, TILE):
                    _tile(strip[i : i + TILE], strip[j : j + TILE], out, i, j)
        for i in range(padded):
            for j in range(i):
                out[j, i] = out[i, j]


@njit(cache=True, fastmath=SUMS)
def dot(x, y, origin):
    total = 0.0
    for j in range(u64(x.size)):
        total += value(x, origin, j) * value(y, origin, j)
    return total


@njit(parallel=True, cache=True)
def _dots(pointers, others, like, width, origin, out):
    for m in prange(len(pointers)):
        row = row_of(pointers, m, width, like)
        other = row_of(others, m, width, like)
        out[m] += dot(row, other, origin)


@njit(cache=True, fastmath={"contract"})
def _axpy(weight, row, low, count, out):
    for i in range(low, low + count):
        out[i] += weight * row[i]


@njit(parallel=True, cache=True)
def _weighted_sum(pointers, like, width, weights, out):
    for part in prange(-(-width // COMBINE)):
        low = u64(part * COMBINE)
        count = min(u64(COMBINE), u64(width) - low)
        for m in range(len(pointers)):
            row = row_of(pointers, m, width, like)
            _axpy(weights[m], row, low, count, out)


@njit(cache=True)
def chacha(key, stream, counter, x):
    """x[0:16] = ChaCha8's block of this counter."""
    s0, s1, s2, s3 = np.uint32(0x61707865), np.uint32(0x3320646E), np.uint32(0x79622D32), np.uint32(0x6B206574)
    x[0], x[1], x[2], x[3] = s0, s1, s2, s3
    for i in range(8):
        x[4 + i] = key[i]
    c0, c1 = np.uint32(counter & u64(0xFFFFFFFF)), np.uint32(counter >> u64(32))
    n0, n1 = np.uint32(stream & u64(0xFFFFFFFF)), np.uint32(stream >> u64(32))
    x[12], x[13], x[14], x[15] = c0, c1, n0, n1
    for _ in range(4):
        for i in range(4):
            _quarter(x, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            _quarter(x, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    x[0] += s0
    x[1] += s1
    x[2] += s2
    x[3] += s3
    for i in range(8):
        x[4 + i] += key[i]
    x[12] += c0
    x[13] += c1
    x[14] += n0
    x[15] += n1


@njit(cache=True)
def _quarter(x, a, b, c, d):
    x[a] += x[b]
    x[d] = _rotate(x[d] ^ x[a], 16)
    x[c] += x[d]
    x[b] = _rotate(x[b] ^ x[c], 12)
    x[a] += x[b]
    x[d] = _rotate(x[d] ^ x[a], 8)
    x[c] += x[d]
    x[b] = _rotate(x[b] ^ x[c], 7)


@njit(cache=True)
def _rotate(word, by):
    return np.uint32((word << np.uint32(by)) | (word >> np.uint32(32 - by)))


@njit(parallel=True, cache=True)
def fill_words(key, stream, first, out):
    """Fill `out`, of a whole number of ChaCha blocks, from word `first` of the stream on."""
    for b in prange(out.size // 16):
        chacha(key, stream, first // u64(16) + u64(b), out[16 * b : 16 * b + 16])


LANES = 128  # mixed at a time, at most
ONE = np.uint32(1)


@launched
def rotated(rows: Rows, origin: Floats | None, start: int, key: Array, mixing: int, out: Floats, norms: Floats) -> None:
    k = out.shape[1]
    count = reference.rotation_words(k, mixing)
    words = np.empty((-(-rows.width // k), count), dtype=np.uint32)
    fill_words(key, u64(reference.ROTATED), u64(start // k * count), words.reshape(-1))
    planes, like = u64(reference.sign_planes(mixing)), np.empty(0, rows.dtype)
    _rotated(rows.pointers, like, rows.width, origin, words, u64(mixing), planes, out, norms)


@njit(cache=True, fastmath=SUMS)
def _square(row, origin, low, count):
    """The squared norm of a block, which stays in cache to be mixed next."""
    total = 0.0
    for i in range(low, low + count):
        x = value(row, origin, i)
        total += x * x
    return total


@njit(cache=True)
def _signed(x, word, bit):
    return -x if (word >> bit) & ONE else x


@njit(cache=True)
def _lift32(row, origin, low, lane, w, L, H, x):
    """Signs and the first three of five butterfly stages, from the row into x: 32 sub-blocks, eight at a time."""
    for c in range(u64(4)):
        at, step, to, hop = low + c * L + lane, u64(4) * L, c * H, u64(4) * H
        bit = np.uint32(c)
        for i in range(H):
            word = w[lane + i] >> bit
            a0 = _signed(value(row, origin, at + i), word, np.uint32(0))
            a1 = _signed(value(row, origin, at + step + i), word, np.uint32(4))
            a2 = _signed(value(row, origin, at + u64(2) * step + i), word, np.uint32(8))
            a3 = _signed(value(row, origin, at + u64(3) * step + i), word, np.uint32(12))
            a4 = _signed(value(row, origin, at + u64(4) * step + i), word, np.uint32(16))
            a5 = _signed(value(row, origin, at + u64(5) * step + i), word, np.uint32(20))
            a6 = _signed(value(row, origin, at + u64(6) * step + i), word, np.uint32(24))
            a7 = _signed(value(row, origin, at + u64(7) * step + i), word, np.uint32(28))
            b0, b1, b2, b3, b4, b5, b6, b7 = a0 + a4, a1 + a5, a2 + a6, a3 + a7, a0 - a4, a1 - a5, a2 - a6, a3 - a7
            a0, a1, a2, a3, a4, a5, a6, a7 = b0 + b2, b1 + b3, b0 - b2, b1 - b3, b4 + b6, b5 + b7, b4 - b6, b5 - b7
            x[to + i] = a0 + a1
            x[to + hop + i] = a0 - a1
            x[to + u64(2) * hop + i] = a2 + a3
            x[to + u64(3) * hop + i] = a2 - a3
            x[to + u64(4) * hop + i] = a4 + a5
            x[to + u64(5) * hop + i] = a4 - a5
            x[to + u64(6) * hop + i] = a6 + a7
            x[to + u64(7) * hop + i] = a6 - a7


@njit(cache=True)
def _drop32(x, lane, w, plane, offsets, L, H, cells):
    """The last two stages, the second signs, and the rotated addition, from x into the cells."""
    for c in range(u64(0), u64(32), u64(4)):
        at, c1, c2, c3 = c * H, c + u64(1), c + u64(2), c + u64(3)
        to0 = u64(2) * c * L + u64(w[offsets + c]) % L + lane
        to1 = u64(2) * c1 * L + u64(w[offsets + c1]) % L + lane
        to2 = u64(2) * c2 * L + u64(w[offsets + c2]) % L + lane
        to3 = u64(2) * c3 * L + u64(w[offsets + c3]) % L + lane
        bit = np.uint32(c)
        for i in range(H):
            word = w[plane + lane + i] >> bit
            a0, a1, a2, a3 = x[at + i], x[at + H + i], x[at + u64(2) * H + i], x[at + u64(3) * H + i]
            b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
            cells[to0 + i] += _signed(b0 + b1, word, np.uint32(0))
            cells[to1 + i] += _signed(b0 - b1, word, np.uint32(1))
            cells[to2 + i] += _signed(b2 + b3, word, np.uint32(2))
            cells[to3 + i] += _signed(b2 - b3, word, np.uint32(3))


@njit(cache=True)
def _lift(row, origin, low, lane, w, n, L, H, x):
    """Signs, from the row into x, and all butterfly stages there: any power of two of sub-blocks."""
    for c in range(n):
        at, to, bit = low + c * L + lane, c * H, np.uint32(c & u64(31))
        plane = (c >> u64(5)) * L
        for i in range(H):
            x[to + i] = _signed(value(row, origin, at + i), w[plane + lane + i], bit)
    h = H
    while h < n * H:
        for at in range(u64(0), n * H, u64(2) * h):
            for i in range(at, at + h):
                a, b = x[i], x[i + h]
                x[i], x[i + h] = a + b, a - b
        h *= u64(2)


@njit(cache=True)
def _drop(x, lane, w, offsets, n, L, H, cells):
    """The second signs and the rotated addition, from x into the cells."""
    for c in range(n):
        at, to = c * H, u64(2) * c * L + u64(w[offsets + c]) % L + lane
        plane, bit = ((n + c) >> u64(5)) * L, np.uint32((n + c) & u64(31))
        for i in range(H):
            cells[to + i] += _signed(x[at + i], w[plane + lane + i], bit)


@njit(cache=True)
def _filled_up(row, low, k):
    """The last block of a row, filled up with zeros to k coordinates."""
    if row is None:
        return None
    else:
        out = np.zeros(k, row.dtype)
        for i in range(low, u64(row.size)):
            out[i - low] = row[i]
        return out


@njit(cache=True)
def _add_block32(x, origin, low, w, L, H, planes, mixed, cells):
    for lane in range(u64(0), L, H):
        _lift32(x, origin, low, lane, w, L, H, mixed)
        _drop32(mixed, lane, w, L, planes * L, L, H, cells)


@njit(cache=True)
def _add_block(x, origin, low, w, n, L, H, planes, mixed, cells):
    for lane in range(u64(0), L, H):
        _lift(x, origin, low, lane, w, n, L, H, mixed)
        _drop(mixed, lane, w, planes * L, n, L, H, cells)


@njit(cache=True)
def _rotate_row(row, origin, words, n, planes, out):
    """One client's sketch, added to `out`, and its squared norm.

    Each sub-block has 2L cells, so that no rotation wraps; they are folded last.
    """
    k, width = u64(out.size), u64(row.size)
    L = k // n
    H = min(L, u64(LANES))
    n_whole = width // k
    mixed, cells = np.empty(n * H), np.zeros(u64(2) * k)
    norm = 0.0
    for b in range(u64(len(words))):
        x, about, low = row, origin, b * k
        if b == n_whole:  # the last block, filled up with zeros
            x, about, low = _filled_up(row, low, k), _filled_up(origin, low, k), u64(0)
        norm += _square(x, about, low, k)
        if n == u64(32):
            _add_block32(x, about, low, words[b], L, H, planes, mixed, cells)
        else:
            _add_block(x, about, low, words[b], n, L, H, planes, mixed, cells)
    scale = 1.0 / np.sqrt(n)
    for c in range(n):
        for i in range(L):
            out[c * L + i] += scale * (cells[u64(2) * c * L + i] + cells[u64(2) * c * L + L + i])
    return norm


@njit(parallel=True, cache=True)
def _rotated(pointers, like, width, origin, words, n, planes, out, norms):
    """Each thread takes whole clients."""
    for m in prange(len(pointers)):
        norms[m] += _rotate_row(row_of(pointers, m, width, like), origin, words, n, planes, out[m])


@launched
def achlioptas(rows: Rows, origin: Floats | None, start: int, key: Array, s: int, out: Floats, norms: Floats) -> None:
    half = u64(2**32 // (2 * s))
    sums = np.zeros((out.shape[1], len(rows)))
    _achlioptas(_columns(rows, origin), u64(start), key, half, u64(reference.ACHLIOPTAS), sums)
    out += sums.T * np.sqrt(s / out.shape[1])
    squared_norms(rows, origin, norms)


@launched
def gaussian(rows: Rows, origin: Floats | None, start: int, key: Array, out: Floats, norms: Floats) -> None:
    sums = np.zeros((out.shape[1], len(rows)))
    _gaussian(_columns(rows, origin), u64(start), key, u64(reference.GAUSSIAN), sums)
    out += sums.T / np.sqrt(out.shape[1])
    squared_norms(rows, origin, norms)


def _columns(rows: Rows, origin: Floats | None) -> Floats:
    """The block turned on its side, (w, M): the dense sketches add one coordinate of all clients at a time."""
    out = np.empty((rows.width, len(rows)))
    _transpose(rows.pointers, np.empty(0, rows.dtype), rows.width, origin, out)
    return out


@njit(parallel=True, cache=True)
def _transpose(pointers, like, width, origin, out):
    for m in prange(len(pointers)):
        row = row_of(pointers, m, width, like)
        for j in range(width):
            out[j, m] = value(row, origin, j)


@njit(parallel=True, cache=True)
def _achlioptas(columns, start, key, half, stream, sums):
    """Each thread owns groups of 16 cells: it draws their words, skips the zeros, adds the rest for all clients."""
    w, M = columns.shape
    k = sums.shape[0]
    groups = (k + 15) // 16
    for group in prange(groups):
        x = np.empty(16, dtype=np.uint32)
        for j in range(w):
            chacha(key, stream, (start + u64(j)) * u64(groups) + u64(group), x)
            for i in range(min(16, k - 16 * group)):
                u = u64(x[i])
                if u < half:
                    for m in range(M):
                        sums[16 * group + i, m] += columns[j, m]
                elif u < half + half:
                    for m in range(M):
                        sums[16 * group + i, m] -= columns[j, m]


@njit(parallel=True, cache=True)
def _gaussian(columns, start, key, stream, sums):
    w, M = columns.shape
    k = sums.shape[0]
    groups = (k + 7) // 8
    for group in prange(groups):
        x = np.empty(16, dtype=np.uint32)
        for j in range(w):
            chacha(key, stream, (start + u64(j)) * u64(groups) + u64(group), x)
            for i in range(min(8, k - 8 * group)):
                u, v = (x[2 * i] + 0.5) / 2.0**32, (x[2 * i + 1] + 0.5) / 2.0**32
                g = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
                for m in range(M):
                    sums[8 * group + i, m] += g * columns[j, m]
