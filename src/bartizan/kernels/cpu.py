"""The kernels in numba: parallel, cached on disk, float64 sums, and the same answer for any number of threads but for
rounding. What each computes is said in `reference`; here is only how.

Loops run over flat buffers with unsigned indices: numba then emits no wrap-around checks and LLVM vectorises them.
"""

from __future__ import annotations

import numpy as np
from numba import carray, get_num_threads, njit, prange, types  # type: ignore[attr-defined]
from numba import uint64 as u64
from numba.core import cgutils
from numba.extending import intrinsic

from bartizan.kernels import reference
from bartizan.kernels.rows import Rows
from bartizan.types import Array, Floats

NOWHERE = np.empty(0)
# Reordering sums is all we allow: NaN and Inf must come through.
SUMS = {"reassoc", "contract", "nsz"}


def gram(rows: Rows, origin: Floats | None, out: Floats) -> None:
    parts = np.zeros((get_num_threads(), *_padded(len(rows))))
    _gram(rows.pointers, np.empty(0, rows.dtype), rows.width, _or_nowhere(origin), parts)
    out += parts.sum(axis=0)[: len(rows), : len(rows)]


def squared_norms(rows: Rows, origin: Floats | None, out: Floats) -> None:
    _dots(rows.pointers, rows.pointers, np.empty(0, rows.dtype), rows.width, _or_nowhere(origin), out)


def dots(rows: Rows, origin: Floats | None, out: Floats) -> None:
    last = np.full_like(rows.pointers, rows.pointers[-1])
    _dots(rows.pointers, last, np.empty(0, rows.dtype), rows.width, _or_nowhere(origin), out)


def weighted_sum(rows: Rows, weights: Floats, out: Floats) -> None:
    _weighted_sum(rows.pointers, np.empty(0, rows.dtype), rows.width, weights, out)


def rotated(rows: Rows, origin: Floats | None, start: int, key: Array, mixing: int, out: Floats) -> None:
    k = out.shape[1]
    count = reference.rotation_words(k, mixing)
    n_blocks = -(-rows.width // k)
    words = np.empty((n_blocks, count), dtype=np.uint32)
    _words(key, u64(reference.ROTATED), u64(start // k * count), words.reshape(-1))
    planes = reference.sign_planes(mixing)
    like = np.empty(0, rows.dtype)
    _rotated(rows.pointers, like, rows.width, _or_nowhere(origin), words, u64(mixing), u64(planes), out)


def achlioptas(rows: Rows, origin: Floats | None, start: int, key: Array, s: int, out: Floats) -> None:
    half = u64(2**32 // (2 * s))
    sums = np.zeros((out.shape[1], len(rows)))
    _achlioptas(_columns(rows, origin), u64(start), key, half, u64(reference.ACHLIOPTAS), sums)
    out += sums.T * np.sqrt(s / out.shape[1])


def gaussian(rows: Rows, origin: Floats | None, start: int, key: Array, out: Floats) -> None:
    sums = np.zeros((out.shape[1], len(rows)))
    _gaussian(_columns(rows, origin), u64(start), key, u64(reference.GAUSSIAN), sums)
    out += sums.T / np.sqrt(out.shape[1])


def _or_nowhere(origin: Floats | None) -> Floats:
    return NOWHERE if origin is None else origin


def _padded(n: int) -> tuple[int, int]:
    return n + -n % TILE, n + -n % TILE


def _columns(rows: Rows, origin: Floats | None) -> Floats:
    """The block turned on its side, (w, M): the dense sketches add one coordinate of all clients at a time."""
    out = np.empty((rows.width, len(rows)))
    _transpose(rows.pointers, np.empty(0, rows.dtype), rows.width, _or_nowhere(origin), out)
    return out


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), generate


@njit(cache=True)
def _row(pointers, m, width, like):
    """The row that begins at this address, as an array."""
    return carray(_pointer(pointers[m]), (width,), like.dtype)  # type: ignore[call-arg]


@njit(cache=True)
def _load(row, low, origin, out, offset, count):
    """out[offset:offset + count] = row[low:low + count] - origin[low:low + count], widened."""
    for i in range(count):
        out[offset + i] = row[low + i]
    if origin.size:
        for i in range(count):
            out[offset + i] -= origin[low + i]


TILE = 4
STRIP = 256


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
                row = _row(pointers, m, width, like)
                _load(row, low, origin, flat, m * u64(STRIP), count)
                for t in range(m * u64(STRIP) + count, (m + u64(1)) * u64(STRIP)):
                    flat[t] = 0.0
            for i in range(0, padded, TILE):
                for j in range(0, i + 1, TILE):
                    _tile(strip[i : i + TILE], strip[j : j + TILE], out, i, j)
        for i in range(padded):
            for j in range(i):
                out[j, i] = out[i, j]


@njit(cache=True, fastmath=SUMS)
def _dot(x, y, origin):
    total = 0.0
    if origin.size:
        for j in range(x.size):
            total += (np.float64(x[j]) - origin[j]) * (np.float64(y[j]) - origin[j])
    else:
        for j in range(x.size):
            total += np.float64(x[j]) * np.float64(y[j])
    return total


@njit(parallel=True, cache=True)
def _dots(pointers, others, like, width, origin, out):
    for m in prange(len(pointers)):
        row = _row(pointers, m, width, like)
        other = _row(others, m, width, like)
        out[m] += _dot(row, other, origin)


COMBINE = 8192


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
            row = _row(pointers, m, width, like)
            _axpy(weights[m], row, low, count, out)


LANES = 64
SIGN = u64(63)


@njit(cache=True)
def _mix(x, h, count):
    """Hadamard butterflies across the sub-blocks of h lanes in x[:count], four at a time."""
    while h * u64(4) <= count:
        for low in range(u64(0), count, u64(4) * h):
            for i in range(low, low + h):
                a, b, c, d = x[i], x[i + h], x[i + h + h], x[i + h + h + h]
                ab, a_b, cd, c_d = a + b, a - b, c + d, c - d
                x[i], x[i + h], x[i + h + h], x[i + h + h + h] = ab + cd, a_b + c_d, ab - cd, a_b - c_d
        h *= u64(4)
    if h < count:
        for i in range(h):
            a, b = x[i], x[i + h]
            x[i], x[i + h] = a + b, a - b


@njit(cache=True)
def _flip(bits, offset, words, word, shift, count):
    """Flip the sign of bits[offset + i] where bit `shift` of words[word + i] is set."""
    for i in range(count):
        bits[offset + i] ^= ((u64(words[word + i]) >> shift) & u64(1)) << SIGN


@njit(cache=True)
def _add(cells, at, x, offset, count):
    for i in range(count):
        cells[at + i] += x[offset + i]


@njit(cache=True)
def _rotate_lanes(row, low, width, origin, w, lane, n, L, H, planes, buffer, bits, cells):
    """Take lanes `lane` to `lane + H` of the block that begins at `low` all the way into the cells."""
    for c in range(n):
        at = low + c * L + lane
        if at + H <= width:
            _load(row, at, origin, buffer, c * H, H)
        else:
            count = max(at, width) - at
            _load(row, at, origin, buffer, c * H, count)
            for i in range(c * H + count, c * H + H):
                buffer[i] = 0.0
        _flip(bits, c * H, w, (c >> u64(5)) * L + lane, c & u64(31), H)
    _mix(buffer, H, n * H)
    for c in range(n):
        bit = n + c
        _flip(bits, c * H, w, (bit >> u64(5)) * L + lane, bit & u64(31), H)
        to = (lane + u64(w[planes * L + c])) % L
        if to + H <= L:
            _add(cells, c * L + to, buffer, c * H, H)
        else:
            _add(cells, c * L + to, buffer, c * H, L - to)
            _add(cells, c * L, buffer, c * H + L - to, H - (L - to))


@njit(parallel=True, cache=True)
def _rotated(pointers, like, width, origin, words, n, planes, out):
    k, width = u64(out.shape[1]), u64(width)
    L = k // n
    H = min(L, u64(LANES))  # lanes mixed at a time: their buffer stays in L1 beside the k cells
    scale = 1.0 / np.sqrt(n)
    for m in prange(len(pointers)):
        row = _row(pointers, m, width, like)
        buffer = np.empty(n * H)
        bits = buffer.view(np.uint64)
        cells = np.zeros(k)
        for b in range(u64(words.shape[0])):
            w = words[b]
            for lane in range(u64(0), L, H):
                _rotate_lanes(row, b * k, width, origin, w, lane, n, L, H, planes, buffer, bits, cells)
        for i in range(k):
            out[m, i] += scale * cells[i]


@njit(cache=True)
def _chacha(key, stream, counter, x):
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


@njit(cache=True, inline="always")
def _quarter(x, a, b, c, d):
    x[a] += x[b]
    x[d] = _rotate(x[d] ^ x[a], 16)
    x[c] += x[d]
    x[b] = _rotate(x[b] ^ x[c], 12)
    x[a] += x[b]
    x[d] = _rotate(x[d] ^ x[a], 8)
    x[c] += x[d]
    x[b] = _rotate(x[b] ^ x[c], 7)


@njit(cache=True, inline="always")
def _rotate(word, by):
    return np.uint32((word << np.uint32(by)) | (word >> np.uint32(32 - by)))


@njit(parallel=True, cache=True)
def _words(key, stream, first, out):
    """Fill `out`, of a whole number of ChaCha blocks, from word `first` of the stream on."""
    for b in prange(out.size // 16):
        _chacha(key, stream, first // u64(16) + u64(b), out[16 * b : 16 * b + 16])


@njit(parallel=True, cache=True)
def _transpose(pointers, like, width, origin, out):
    for m in prange(len(pointers)):
        row = _row(pointers, m, width, like)
        for j in range(width):
            out[j, m] = row[j]
        if origin.size:
            for j in range(width):
                out[j, m] -= origin[j]


@njit(parallel=True, cache=True)
def _achlioptas(columns, start, key, half, stream, sums):
    """Each thread owns groups of 16 cells: it draws their words, skips the zeros, adds the rest for all clients."""
    w, M = columns.shape
    k = sums.shape[0]
    groups = (k + 15) // 16
    for group in prange(groups):
        x = np.empty(16, dtype=np.uint32)
        for j in range(w):
            _chacha(key, stream, (start + u64(j)) * u64(groups) + u64(group), x)
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
            _chacha(key, stream, (start + u64(j)) * u64(groups) + u64(group), x)
            for i in range(min(8, k - 8 * group)):
                u, v = (x[2 * i] + 0.5) / 2.0**32, (x[2 * i + 1] + 0.5) / 2.0**32
                g = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
                for m in range(M):
                    sums[8 * group + i, m] += g * columns[j, m]
