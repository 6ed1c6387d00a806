r"""Bound the squared norm that a two-sided sketch of independent signs shows, for every matrix.

With rows s of S and t of T in g = rows / q groups of q, the ratio of squared norms is

.. math:: \frac1k \sum_j \sum_{s,\, t \in j} (s^\top X t)^2, \quad |X|_F = 1, \quad k = q \cdot rows,

X block-diagonal with the modules' s B A on its diagonal. Given T, each s contributes the positive quadratic form
s' V_j s, and each t contributes t' X'X t to the trace of V_j.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log

import numpy as np

MOMENTS = 80  # of the largest number tried; from about 2 ln(1 / odds) on they are no help


@lru_cache
def two_sided_range(k: int, rows: int, odds: float) -> tuple[float, float]:
    """The range that |Y|^2 / |X|^2 leaves below, and above, with at most these odds; proven for every X.

    >>> [round(part, 2) for part in two_sided_range(4096, 256, 1e-9)]
    [0.35, 2.18]
    """
    return _least(k // rows, rows, odds), _most(k // rows, rows, odds)


def _least(q: int, rows: int, odds: float) -> float:
    """Chernoff's bound.

    A quadratic form of signs is not negative and has a second moment of at most 3 times its squared mean w. Of all such
    variables, 3w with odds 1/3 and else 0 has the largest E exp(-x z). For the traces the same holds again: what is
    left of the forms is a mixture of exponentials in them. So the bound is that of rows and columns that are 3 or 0.
    """
    x = np.geomspace(1e-4, 1e3, 2000)[:, None]
    n = np.arange(q + 1)  # columns of a group that are not 0
    each = np.array([lgamma(q + 1) - lgamma(i + 1) - lgamma(q - i + 1) + i * log(1 / 2) + q * log(2 / 3) for i in n])
    terms = each + q * np.log(2 / 3 + np.exp(-9 * x * n / q) / 3)
    largest = terms.max(axis=1, keepdims=True)
    moment = rows / q * (largest[:, 0] + np.log(np.exp(terms - largest).sum(axis=1)))
    return max(0.0, float(((log(odds) - moment) / (x[:, 0] * rows)).max()))


def _most(q: int, rows: int, odds: float) -> float:
    """Markov's inequality for the moments of Gaussian rows and columns, which no signs exceed.

    E (s'Vs)^i is at most that of normal numbers, by Khinchin's inequality for even powers, and that is at most the
    trace of V times a chi-square's. The ratio becomes a mean of rows / q products of two chi-squares of q degrees.
    """
    i = np.arange(MOMENTS + 1)
    factorial = np.array([lgamma(j + 1) for j in i])
    product = np.exp(2 * np.cumsum(np.log1p(2 * np.append(0, i[:-1]) / q) * (i > 0)) - factorial)
    total, power, left = (i == 0).astype(float), product, rows // q
    while left:
        if left & 1:
            total = np.convolve(total, power)[: MOMENTS + 1]
        power, left = np.convolve(power, power)[: MOMENTS + 1], left >> 1
    moments = (np.log(total) + factorial - i * log(rows // q))[1:]
    return exp(float(((moments - log(odds)) / i[1:]).min()))
