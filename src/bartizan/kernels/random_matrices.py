"""The ChaCha8 generator and the dense random matrices (Achlioptas, Gaussian) in numba."""

from __future__ import annotations

import numpy as np

from bartizan._util.jit import njit, u64
from bartizan.kernels.reference import ACHLIOPTAS, GAUSSIAN

BLOCKS = 16  # ChaCha blocks drawn side by side, one per vector lane


@njit(inner=True, cache=True)
def _quarter(x, a, b, c, d):
    for i in range(u64(BLOCKS)):
        xa, xb, xc, xd = x[a, i], x[b, i], x[c, i], x[d, i]
        for high, low in ((16, 12), (8, 7)):
            xa = np.uint32(xa + xb)
            xd ^= xa
            xd = np.uint32((xd << np.uint32(high)) | (xd >> np.uint32(32 - high)))
            xc = np.uint32(xc + xd)
            xb ^= xc
            xb = np.uint32((xb << np.uint32(low)) | (xb >> np.uint32(32 - low)))
        x[a, i], x[b, i], x[c, i], x[d, i] = xa, xb, xc, xd


@njit(inner=True, cache=True)
def chacha(key, stream, counter, start, x):
    """Write ChaCha8's block of counter + i to x[:, i]; `start` is scratch of the same shape, (16, BLOCKS)."""
    for i in range(u64(BLOCKS)):
        start[0, i], start[1, i] = np.uint32(0x61707865), np.uint32(0x3320646E)
        start[2, i], start[3, i] = np.uint32(0x79622D32), np.uint32(0x6B206574)
        for j in range(u64(8)):
            start[u64(4) + j, i] = key[j]
        own = counter + i
        start[12, i], start[13, i] = np.uint32(own & u64(0xFFFFFFFF)), np.uint32(own >> u64(32))
        start[14, i], start[15, i] = np.uint32(stream & u64(0xFFFFFFFF)), np.uint32(stream >> u64(32))
    for j in range(u64(16)):
        for i in range(u64(BLOCKS)):
            x[j, i] = start[j, i]
    for _ in range(4):
        for j in range(u64(4)):
            _quarter(x, j, u64(4) + j, u64(8) + j, u64(12) + j)
        for j in range(u64(4)):
            _quarter(
                x, j, u64(4) + (j + u64(1)) % u64(4), u64(8) + (j + u64(2)) % u64(4), u64(12) + (j + u64(3)) % u64(4)
            )
    for j in range(u64(16)):
        for i in range(u64(BLOCKS)):
            x[j, i] += start[j, i]


@njit(cache=True, nogil=True)
def fill_words(key, stream, first, out):
    """Fill `out`, of a whole number of ChaCha blocks, from word `first` of the stream on."""
    x, start = np.empty((16, BLOCKS), np.uint32), np.empty((16, BLOCKS), np.uint32)
    n_blocks = u64(out.size) // u64(16)
    for at in range(u64(0), n_blocks, u64(BLOCKS)):
        chacha(key, stream, first // u64(16) + at, start, x)
        for i in range(min(u64(BLOCKS), n_blocks - at)):
            for j in range(u64(16)):
                out[u64(16) * (at + i) + j] = x[j, i]


@njit(cache=True, nogil=True)
def achlioptas(columns, start, key, half, some, groups, sums):
    """Add what belongs to the `some`-th BLOCKS groups of 16 cells: draw their words, skip the zeros, add the rest."""
    w, M = columns.shape
    k, first = sums.shape[0], some * BLOCKS
    x, scratch = np.empty((16, BLOCKS), np.uint32), np.empty((16, BLOCKS), np.uint32)
    for j in range(w):
        chacha(key, u64(ACHLIOPTAS), u64(start + j) * u64(groups) + u64(first), scratch, x)
        for group in range(first, min(first + BLOCKS, groups)):
            for i in range(min(16, k - 16 * group)):
                u = u64(x[i, group - first])
                if u < half:
                    for m in range(M):
                        sums[16 * group + i, m] += columns[j, m]
                elif u < half + half:
                    for m in range(M):
                        sums[16 * group + i, m] -= columns[j, m]


@njit(cache=True, nogil=True)
def gaussian(columns, start, key, some, groups, sums):
    """Add what belongs to the `some`-th BLOCKS groups of 8 cells."""
    w, M = columns.shape
    k, first = sums.shape[0], some * BLOCKS
    x, scratch = np.empty((16, BLOCKS), np.uint32), np.empty((16, BLOCKS), np.uint32)
    for j in range(w):
        chacha(key, u64(GAUSSIAN), u64(start + j) * u64(groups) + u64(first), scratch, x)
        for group in range(first, min(first + BLOCKS, groups)):
            for i in range(min(8, k - 8 * group)):
                u, v = (x[2 * i, group - first] + 0.5) / 2.0**32, (x[2 * i + 1, group - first] + 0.5) / 2.0**32
                g = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
                for m in range(M):
                    sums[8 * group + i, m] += g * columns[j, m]
