"""The dense sketches: every entry is drawn, so each thread owns some cells and draws only their words."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba import uint64 as u64

from bartizan.kernels import reference
from bartizan.kernels.cpu.base import alone_if_small, row_of, value
from bartizan.kernels.cpu.chacha import chacha
from bartizan.kernels.cpu.inner import squared_norms
from bartizan.kernels.rows import Rows
from bartizan.types import Array, Floats


@alone_if_small
def achlioptas(rows: Rows, origin: Floats | None, start: int, key: Array, s: int, out: Floats, norms: Floats) -> None:
    half = u64(2**32 // (2 * s))
    sums = np.zeros((out.shape[1], len(rows)))
    _achlioptas(_columns(rows, origin), u64(start), key, half, u64(reference.ACHLIOPTAS), sums)
    out += sums.T * np.sqrt(s / out.shape[1])
    squared_norms(rows, origin, norms)


@alone_if_small
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
