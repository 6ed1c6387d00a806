"""The keyed generator, ChaCha8, a block of 16 words at a time."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba import uint64 as u64


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
