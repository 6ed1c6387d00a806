"""Inner products and weighted sums of rows."""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange
from numba import uint64 as u64

from bartizan.kernels.cpu.base import SUMS, alone_if_small, row_of, value
from bartizan.kernels.rows import Rows
from bartizan.types import Floats

TILE = 4
STRIP = 256
COMBINE = 8192


@alone_if_small
def gram(rows: Rows, origin: Floats | None, out: Floats) -> None:
    parts = np.zeros((get_num_threads(), *_padded(len(rows))))
    _gram(rows.pointers, np.empty(0, rows.dtype), rows.width, origin, parts)
    out += parts.sum(axis=0)[: len(rows), : len(rows)]


@alone_if_small
def squared_norms(rows: Rows, origin: Floats | None, out: Floats) -> None:
    _dots(rows.pointers, rows.pointers, np.empty(0, rows.dtype), rows.width, origin, out)


@alone_if_small
def dots(rows: Rows, origin: Floats | None, out: Floats) -> None:
    last = np.full_like(rows.pointers, rows.pointers[-1])
    _dots(rows.pointers, last, np.empty(0, rows.dtype), rows.width, origin, out)


@alone_if_small
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
