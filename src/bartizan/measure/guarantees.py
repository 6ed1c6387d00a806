"""Guarantees of the projections as functions: embedding dimensions, ranges of squared norms, collisions.

The proofs, and what is measured where there is none, are in the documentation of sketches and of adaptive attackers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate

import numpy as np

from bartizan._util.types import Floats

MAX_BLOCKS = 6  # that a vector is put into; with more of them the tails come close to Gaussian's


def embedding_dimension(n_clients: int, eps: float, delta: float, rounds: int = 1) -> int:
    r"""Return the k for which span{g_1 .. g_M} keeps squared norms to 1 +- eps, with probability 1 - delta in T rounds.

    .. math:: k = \lceil 18 / \epsilon^2 \, (M + 2 \ln(2T / \delta)) \rceil

    The subspace embedding theorem as the paper states it (Lemma 2.2, and Theorem 3.8 for T rounds). The constant 18 is
    proven for `Gaussian`; for `Achlioptas` with a large s it is too small, and for `Rotated` it is not proven.

    >>> embedding_dimension(50, eps=0.5, delta=0.05, rounds=100)
    4795
    """
    _check(n_clients=n_clients, rounds=rounds)
    _check_probabilities(eps=eps, delta=delta)
    return math.ceil(18 / eps**2 * (n_clients + 2 * math.log(2 * rounds / delta)))


def distortion(k: int, n_clients: int, delta: float, rounds: int = 1) -> float:
    """Return the eps of `embedding_dimension` for this k; raise ValueError if it would not be below 1.

    >>> round(distortion(4096, n_clients=50, delta=0.05, rounds=100), 2)
    0.54
    """
    _check(k=k, n_clients=n_clients, rounds=rounds)
    _check_probabilities(delta=delta)
    needed = 18 * (n_clients + 2 * math.log(2 * rounds / delta))
    if k <= needed:
        raise ValueError(
            f"k={k} promises nothing for the whole span of {n_clients} clients: eps would be "
            f"{math.sqrt(needed / k):.2f}, not below 1. Take k above {math.ceil(needed)}, or rely on pairwise "
            f"distances alone (pairwise_distortion)."
        )
    return math.sqrt(needed / k)


def pairwise_dimension(n_clients: int, eps: float, delta: float, rounds: int = 1) -> int:
    r"""Return the k for which the M(M-1)/2 pairwise distances and M norms are kept to 1 +- eps: Johnson-Lindenstrauss.

    .. math:: k = \lceil 2 \ln(M (M+1) T / \delta) \, / \, (\epsilon^2/2 - \epsilon^3/3) \rceil

    A union bound over Achlioptas' tail (2003, section 5), proven for Gaussian entries and for s = 1 and 3, not for
    `Rotated`. Enough for rules that compare distances (Krum, NNM, MDA); the span is more than its pairs, so what a
    weighted sum of clients does is not promised.

    >>> pairwise_dimension(1000, eps=0.2, delta=0.05, rounds=100)
    2472
    """
    _check(n_clients=n_clients, rounds=rounds)
    _check_probabilities(eps=eps, delta=delta)
    return math.ceil(_pairs(n_clients, delta, rounds) / _exponent(eps))


def pairwise_distortion(k: int, n_clients: int, delta: float, rounds: int = 1) -> float:
    """Return the eps of `pairwise_dimension` for this k; raise ValueError if it would not be below 1.

    >>> round(pairwise_distortion(4096, n_clients=1000, delta=0.05, rounds=100), 3)
    0.153
    """
    _check(k=k, n_clients=n_clients, rounds=rounds)
    _check_probabilities(delta=delta)
    wanted = _pairs(n_clients, delta, rounds) / k
    if wanted >= _exponent(1.0):
        least = math.floor(_pairs(n_clients, delta, rounds) / _exponent(1.0)) + 1
        raise ValueError(
            f"k={k} promises nothing for the pairs of {n_clients} clients: eps would not be below 1. "
            f"Take k of at least {least}."
        )
    return _crossing(lambda eps: _exponent(eps) < wanted, 0.0, 1.0)


def _pairs(n_clients: int, delta: float, rounds: int) -> float:
    return 2 * math.log(n_clients * (n_clients + 1) * rounds / delta)


def _exponent(eps: float) -> float:
    return eps**2 / 2 - eps**3 / 3


def _check(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1 or value != int(value):
            raise ValueError(f"{name} must be a positive whole number, got {value!r}.")


def _check_probabilities(**given: float) -> None:
    for name, value in given.items():
        least = 1e-6 if name == "eps" else 0  # below it k would be beyond any memory
        if not least < value < 1:
            raise ValueError(f"{name} must be between {least:g} and 1, got {value!r}.")


@lru_cache
def gaussian_range(k: int, odds: float) -> tuple[float, float]:
    r"""Return Chernoff's range for a chi-square of k degrees: :math:`k (r - 1 - \ln r) / 2 = \ln(1 / odds)`.

    >>> [round(part, 3) for part in gaussian_range(4096, 1e-9)]
    [0.864, 1.149]
    """
    depth = 2 * math.log(1 / odds) / k
    least = _crossing(lambda r: r - 1 - math.log(r) > depth, math.exp(-1 - depth), 1.0)
    most = _crossing(lambda r: r - 1 - math.log(r) < depth, 1.0, 2 + 2 * depth)
    return least, most


@lru_cache
def achlioptas_range(k: int, s: int, odds: float) -> tuple[float, float]:
    r"""Return the range for every vector; below, a single coordinate is the worst: it has Binomial(k, 1/s) cells.

    A cell's square has mean 1/k and a second moment of at most v = max(3, s) times 1/k^2. Of all such variables that
    are not negative, one that is v with probability 1/v and else 0 has the largest moment generating function to the
    left, so the lower tail is the binomial one, :math:`k \, KL(r/v \,\|\, 1/v) = \ln(1 / odds)`. Above, an entry is
    sub-Gaussian, and Gaussian's bound holds times its variance factor. The lower end is 0 where k/s is too small.

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
    r"""Return Gaussian's range, or a worse one where the vectors of `collision_odds` are worse.

    Those are flat, on m rows in each of B blocks, the rows a coset. The hidden swaps leave each of them in one lane
    with probability :math:`L^{1-m}`, and the hidden signs make all B the same character with probability
    :math:`(2m/2^m)^B m^{1-B}`; then each of n/m rows of L cells holds B equal numbers of random signs at random places,
    and the part of their squares that is left is counted. For two blocks, signs that are a few flips away from a
    character count too (`_loss_of_two`). The worst known, not proven.

    >>> [round(part, 3) for part in rotated_range(4096, 32, 1e-9)]
    [0.812, 1.188]
    >>> rotated_range(4096, 1, 1e-9)[0]  # two coordinates fall on each other in one round of 8192
    0.0
    """
    least, most = gaussian_range(k, odds)
    n, L = mixing, k // mixing
    odds /= 2  # for vectors that are not counted: not flat, or in rows beside the largest coefficient
    for m in (2**j for j in range(n.bit_length())):
        loss = _loss_of_two(m, n // m, L, odds)
        least, most = min(least, 1 - loss), max(most, 1 + loss)
        for B in range(3, MAX_BLOCKS + 1):
            alike = (2 * m / 2**m * L ** (1.0 - m)) ** B / m ** (B - 1) if m > 1 else 1.0
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
    """Return the part of their squares that two blocks lose with this probability if their largest coefficients cancel.

    d flips away from a character, less than m/4 of them, m signs have one coefficient of m - 2d, and with it the part
    (1 - 2d/m)^2 of their squares in `rows` rows. There are 2m C(m, d) such signs.
    """
    if m > 64:  # the rest is rarer than any probability that is asked for
        return 0.0
    one_lane = L ** (1.0 - m)
    parts = [(min(1.0, 2 * m * math.comb(m, d) / 2**m) * one_lane, 1 - 2 * d / m) for d in range((m + 3) // 4)]
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
    """Return the distribution of the sum of the cells' squares when B numbers +-1 fall into L cells at random."""
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
    """Return the Kullback-Leibler divergence of two Bernoulli variables."""
    return (q * math.log(q / p) if q else 0.0) + (1 - q) * math.log((1 - q) / (1 - p))


def _crossing(before: Callable[[float], bool], low: float, high: float) -> float:
    """Bisect for the point where `before` turns false."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if before(middle) else (low, middle)
    return low


def collision_odds(k: int, mixing: int) -> float:
    r"""Return the probability of the best blind collision known against `Rotated(k, mixing)`.

    Put +-1 on m rows of one lane in each of two blocks, m a power of two and the rows a coset of
    :math:`Z_2^{\log n}`. Hidden swaps leave each half in one lane with probability :math:`L^{1-m}`; hidden signs make
    it a character of that coset with probability 2m/2^m, both the same one up to sign with probability 1/m; then only
    n/m cells per half are not zero, each of which must meet its twin (probability 1/L) with the opposite sign (1/2):

    .. math:: \max_m \; L^{2(1-m)} \, (2m / 2^m)^2 \cdot (1/m) \cdot (2L)^{-n/m}

    >>> from math import log2
    >>> round(log2(collision_odds(4096, 32)), 1)
    -110.0
    """
    n, L = mixing, _lanes(k, mixing)
    sizes = [2**j for j in range(n.bit_length())]
    return max((2 * m / 2**m * L ** (1.0 - m)) ** 2 / m * (2 * L) ** (-n / m) for m in sizes)


def collision_bound(k: int, mixing: int) -> float:
    r"""Bound the probability of every blind collision, of any support, any amplitudes and any number of blocks.

    .. math:: \Pr[Pz = 0] \le E\, q(N) (2L)^{-N}, \quad
        q(N) = \min\Big(2^{1-m}, \tbinom{n-1}{m-1} (2L)^{1-m}\Big), \quad m = \lceil n/N \rceil

    with N the number of rows that the blocks but one fill; small N are rare.

    >>> from math import log2
    >>> round(log2(collision_bound(4096, 32)), 1)
    -72.4
    """
    n, L = mixing, _lanes(k, mixing)
    inside = [given_rows_odds(n, L, N) for N in range(1, n + 1)]
    few = [*accumulate(few_rows_odds(n))] + [1.0] * n
    cases = [(q * (2.0 * L) ** -N, min(few[N - 1], math.comb(n, N) * q)) for N, q in enumerate(inside, start=1)]
    total, left = 0.0, 1.0
    for cost, odds in sorted(cases, reverse=True):  # the dearest N are as probable as they can be
        total, left = total + min(odds, left) * cost, max(0.0, left - odds)
    return total


def given_rows_odds(mixing: int, lanes: int, n_rows: int) -> float:
    """Bound the probability that a block that is not 0 fills, once swapped and mixed, none but N given rows."""
    m = -(-mixing // n_rows)
    return min(2.0 ** (1 - m), math.comb(mixing - 1, m - 1) * (2.0 * lanes) ** (1 - m))


def few_rows_odds(mixing: int) -> list[float]:
    """Bound the probabilities that mixing leaves exactly 1, 2, 3 or 4 of a lane's rows."""
    n = mixing
    planes = math.comb(n, 3) / 4
    others = math.comb(n, 4) - planes
    return [
        2 * n / 2**n,
        n / 2 ** (n / 2),
        math.comb(n, 3) * 2 ** (2 - 3 * n / 4),
        max(n / 4 * 2 ** (1 - n / 4), planes * 2 ** (2 - n / 2) + others * 2 ** (1 - 5 * n / 8)),
    ]


def _lanes(k: int, mixing: int) -> int:
    if mixing < 1 or mixing & (mixing - 1) or k % mixing:
        raise ValueError(f"mixing must be a power of two that divides k = {k}, got {mixing!r}.")
    return k // mixing
