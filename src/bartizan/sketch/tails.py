"""How far a sketch can be off for one vector that was chosen without the seed: the range of |Px|^2 / |x|^2.

Each function gives (least, most): the ratio is below the first, and above the second, with at most the given odds.
What is proven and what is measured of it stands in `docs/explanation/adaptive.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from bartizan._util.types import Floats

MOST_BLOCKS = 6  # that a vector is put into; with more of them the tails come close to Gaussian's


@lru_cache
def gaussian_range(k: int, odds: float) -> tuple[float, float]:
    r"""Chernoff's bound for a chi-square of k degrees: :math:`k (r - 1 - \ln r) / 2 = \ln(1 / odds)`.

    >>> [round(part, 3) for part in gaussian_range(4096, 1e-9)]
    [0.864, 1.149]
    """
    depth = 2 * math.log(1 / odds) / k
    least = _crossing(lambda r: r - 1 - math.log(r) > depth, math.exp(-1 - depth), 1.0)
    most = _crossing(lambda r: r - 1 - math.log(r) < depth, 1.0, 2 + 2 * depth)
    return least, most


@lru_cache
def achlioptas_range(k: int, s: int, odds: float) -> tuple[float, float]:
    r"""For every vector: a single coordinate is the worst below, its k/s non-zeros are a binomial number.

    A cell's square has mean 1/k and a second moment of at most v = max(3, s) times 1/k^2. Of all such variables that
    are not negative, one that is v with odds 1/v and else 0 has the largest moment generating function to the left, so
    the lower tail is the binomial one, :math:`k \, KL(r/v \,\|\, 1/v) = \ln(1 / odds)`. Above, an entry is
    sub-Gaussian, and Gaussian's bound holds times its variance factor. Least is 0 where k/s is too small.

    >>> [round(part, 3) for part in achlioptas_range(4096, 8, 1e-9)]
    [0.744, 1.705]
    >>> achlioptas_range(16, 8, 1e-9)[0]
    0.0
    """
    v, depth = max(3, s), math.log(1 / odds) / k
    least = 0.0
    if -math.log1p(-1 / v) > depth:
        least = _crossing(lambda r: _divergence(r / v, 1 / v) > depth, 0.0, 1.0)
    a = np.linspace(0.01, 60, 6000)
    factor = float(np.max(2 * s / a**2 * np.log(1 + (np.cosh(a) - 1) / s)))
    return least, max(1.0, factor) * gaussian_range(k, odds)[1]


@lru_cache
def rotated_range(k: int, mixing: int, odds: float) -> tuple[float, float]:
    r"""Gaussian's, or worse where the vector is one of those that `collision_odds` is about.

    Those are flat, on m rows of one lane in each of B blocks, the rows a coset. The hidden signs make all B the same
    character with odds :math:`(2m/2^m)^B m^{1-B}`; then each of n/m rows of L cells holds B equal numbers of random
    signs at random places, and what they leave of their squares is counted here. Of two blocks those too whose signs
    are some flips away from a character (`_loss_of_two`). Worst known, not proven.

    >>> [round(part, 3) for part in rotated_range(4096, 32, 1e-9)]
    [0.344, 1.656]
    >>> rotated_range(4096, 1, 1e-9)[0]  # two coordinates fall on each other in one round of 8192
    0.0
    """
    least, most = gaussian_range(k, odds)
    n, L = mixing, k // mixing
    odds /= 2  # for what is not counted: numbers that are not flat, rows beside the largest coefficient
    for m in (2**j for j in range(n.bit_length())):
        loss = _loss_of_two(m, n // m, L, odds)
        least, most = min(least, 1 - loss), max(most, 1 + loss)
        for B in range(3, MOST_BLOCKS + 1):
            alike = (2 * m / 2**m) ** B / m ** (B - 1) if m > 1 else 1.0
            if alike <= odds:
                continue
            rows, size = n // m, B * B * (n // m) + 1
            padded = 1 << size.bit_length()
            squares = np.fft.irfft(np.fft.rfft(_squares_of_a_row(B, L), padded) ** rows, padded)[:size]
            ratios = np.arange(size) / (B * rows)
            below, above = alike * np.cumsum(squares), alike * np.cumsum(squares[::-1])[::-1]
            least = min(least, float(ratios[np.argmax(below > odds)]))
            most = max(most, float(ratios[np.flatnonzero(above > odds)[-1]]))
    return least, most


def _loss_of_two(m: int, rows: int, L: int, odds: float) -> float:
    """What two blocks lose of their squares, with more than these odds, as the largest coefficients of both cancel.

    d flips away from a character, less than m/4 of them, m signs have one coefficient of m - 2d, and with it the part
    (1 - 2d/m)^2 of their squares in `rows` rows. There are 2m C(m, d) such signs.
    """
    if m > 64:  # what is left is rarer than any odds that are asked for
        return 0.0
    parts = [(min(1.0, 2 * m * math.comb(m, d) / 2**m), 1 - 2 * d / m) for d in range((m + 3) // 4)]
    meet = [_binomial(rows, j, 1 / (2 * L)) for j in range(rows + 1)]
    cases = [(x * y * j / rows, p * q / m * met) for p, x in parts for q, y in parts for j, met in enumerate(meet)]
    so_far = 0.0
    for loss, chance in sorted(cases, reverse=True):
        so_far += chance
        if so_far > odds:
            return loss
    return 0.0


@lru_cache
def _squares_of_a_row(B: int, L: int) -> Floats:
    """The distribution of the sum of the cells' squares, when B numbers +-1 fall into L cells at random."""
    cell = np.zeros((B + 1, B * B + 1))  # [how many are in it, square]: a generating function in their number
    for count in range(B + 1):
        for plus in range(count + 1):
            cell[count, (2 * plus - count) ** 2] += math.comb(count, plus) / 2**count
        cell[count] /= math.factorial(count) * float(L) ** count
    row, power, left = np.zeros_like(cell), cell, L
    row[0, 0] = 1
    while left:
        if left & 1:
            row = _product(row, power)
        power, left = _product(power, power), left >> 1
    return row[B] * math.factorial(B)


def _product(one: Floats, other: Floats) -> Floats:
    out = np.zeros_like(one)
    for a in range(len(one)):
        for b in range(len(one) - a):
            out[a + b] += np.convolve(one[a], other[b])[: out.shape[1]]
    return out


def _binomial(n: int, j: int, p: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1)
    return math.exp(ways + j * math.log(p) + (n - j) * math.log1p(-p))


def _divergence(q: float, p: float) -> float:
    """Kullback and Leibler's, of two coins."""
    return (q * math.log(q / p) if q else 0.0) + (1 - q) * math.log((1 - q) / (1 - p))


def _crossing(before: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition that holds from `low` on ends."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if before(middle) else (low, middle)
    return low
