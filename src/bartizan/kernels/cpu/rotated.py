"""The rotated sketch: each thread takes whole clients, a block of k coordinates at a time."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba import uint64 as u64

from bartizan.kernels import reference
from bartizan.kernels.cpu.base import SUMS, alone_if_small, row_of, value
from bartizan.kernels.cpu.chacha import fill_words
from bartizan.kernels.rows import Rows
from bartizan.types import Array, Floats

LANES = 128  # mixed at a time, at most
ONE = np.uint32(1)


@alone_if_small
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


@njit(parallel=True, cache=True)
def _rotated(pointers, like, width, origin, words, n, planes, out, norms):
    """Each thread takes whole clients. Each sub-block has 2L cells, so that no rotation wraps; they are folded last."""
    k = u64(out.shape[1])
    L = k // n
    H = min(L, u64(LANES))
    n_whole = u64(width) // k
    for m in prange(len(pointers)):
        row = row_of(pointers, m, width, like)
        x, cells = np.empty(n * H), np.zeros(u64(2) * k)
        tail = np.zeros(k)  # the last block, filled up with zeros
        for i in range(n_whole * k, u64(width)):
            tail[i - n_whole * k] = value(row, origin, i)
        norm = _square(tail, None, u64(0), k)
        for b in range(u64(len(words))):
            w = words[b]
            if b < n_whole:
                norm += _square(row, origin, b * k, k)
            for lane in range(u64(0), L, H):
                if n == u64(32):
                    if b < n_whole:
                        _lift32(row, origin, b * k, lane, w, L, H, x)
                    else:
                        _lift32(tail, None, u64(0), lane, w, L, H, x)
                    _drop32(x, lane, w, L, planes * L, L, H, cells)
                else:
                    if b < n_whole:
                        _lift(row, origin, b * k, lane, w, n, L, H, x)
                    else:
                        _lift(tail, None, u64(0), lane, w, n, L, H, x)
                    _drop(x, lane, w, planes * L, n, L, H, cells)
        norms[m] += norm
        scale = 1.0 / np.sqrt(n)
        for c in range(n):
            for i in range(L):
                out[m, c * L + i] += scale * (cells[u64(2) * c * L + i] + cells[u64(2) * c * L + L + i])
