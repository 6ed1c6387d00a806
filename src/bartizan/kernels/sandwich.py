"""Products of M x M matrices, for mixings.

Not by BLAS: where others use the cores too, its threads wait for each other in a spin, and that took 100 times longer.
Ours share nothing, and take stripes of rows as they come.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba import uint64 as u64

from bartizan._util.threads import n_threads, share
from bartizan._util.types import Floats

# Reordering sums is all we allow.
SUMS = {"reassoc", "contract", "nsz"}
# Rows that a thread takes at once: they stay in its cache.
STRIPE = 64
# Up to so many multiplications BLAS too stays on one thread.
FEW = 2**18


@njit(cache=True, nogil=True, fastmath=SUMS)
def _tile(X, Y, i, j, out):
    """The 4 x 4 inner products of four rows of X and four of Y."""
    x0, x1, x2, x3 = X[i], X[i + 1], X[i + 2], X[i + 3]
    y0, y1, y2, y3 = Y[j], Y[j + 1], Y[j + 2], Y[j + 3]
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = 0.0
    a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = 0.0
    for t in range(u64(len(x0))):
        p0, p1, p2, p3 = x0[t], x1[t], x2[t], x3[t]
        q0, q1, q2, q3 = y0[t], y1[t], y2[t], y3[t]
        a00, a01, a02, a03 = a00 + p0 * q0, a01 + p0 * q1, a02 + p0 * q2, a03 + p0 * q3
        a10, a11, a12, a13 = a10 + p1 * q0, a11 + p1 * q1, a12 + p1 * q2, a13 + p1 * q3
        a20, a21, a22, a23 = a20 + p2 * q0, a21 + p2 * q1, a22 + p2 * q2, a23 + p2 * q3
        a30, a31, a32, a33 = a30 + p3 * q0, a31 + p3 * q1, a32 + p3 * q2, a33 + p3 * q3
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3] = a00, a01, a02, a03
    out[i + 1, j], out[i + 1, j + 1], out[i + 1, j + 2], out[i + 1, j + 3] = a10, a11, a12, a13
    out[i + 2, j], out[i + 2, j + 1], out[i + 2, j + 2], out[i + 2, j + 3] = a20, a21, a22, a23
    out[i + 3, j], out[i + 3, j + 1], out[i + 3, j + 2], out[i + 3, j + 3] = a30, a31, a32, a33


@njit(cache=True, nogil=True)
def _row_products(X, Y, first, last, lower, out):
    """Rows `first` to `last` of X Y'; of a symmetric product only what lies below the diagonal, tile by tile."""
    n, m = len(X), len(Y)
    if n < 4 or m < 4:
        for i in range(first, last):
            for j in range(m):
                out[i, j] = 0.0
                for t in range(X.shape[1]):
                    out[i, j] += X[i, t] * Y[j, t]
        return
    # The last tile of an odd size overlaps the one before.
    for j in range(0, min(m, last + 3) if lower else m, 4):
        for i in range(first, last, 4):
            if not lower or j <= i + 3:
                _tile(X, Y, min(i, n - 4), min(j, m - 4), out)


@njit(cache=True)
def _mirror(out):
    """Copy what lies below the diagonal above it, in squares that fit the cache."""
    M = len(out)
    for top in range(0, M, 32):
        for left in range(0, top + 1, 32):
            for j in range(left, min(left + 32, M)):
                for i in range(max(top, j + 1), min(top + 32, M)):
                    out[j, i] = out[i, j]


def _multiplied(X: Floats, Y: Floats, lower: bool = False) -> Floats:
    """X Y', on all cores where it is worth waking them."""
    if X.size * len(Y) <= FEW:
        return X @ Y.T
    out = np.empty((len(X), len(Y)))
    n_stripes = -(-len(X) // STRIPE)

    def task(i: int) -> None:
        first = STRIPE * (n_stripes - 1 - i)  # of a symmetric product the last ones are the longest
        _row_products(X, Y, first, min(first + STRIPE, len(X)), lower, out)

    share(task, n_stripes, n_threads() if n_stripes > 5 else 1)
    return out


def sandwich(B: Floats, S: Floats) -> Floats:
    """B S B' for a symmetric S, and symmetric to the last bit."""
    out = _multiplied(_multiplied(B, S), B, lower=True)
    _mirror(out)
    return out
