"""What an attacker who does not know the seed can hope for: a vector that `Rotated` maps to zero.

The attack, the proof of the bound and the numbers stand in `docs/explanation/sketches.md`.
"""

from __future__ import annotations

from itertools import accumulate
from math import ceil, comb


def collision_odds(k: int, mixing: int) -> float:
    r"""The odds of the best blind collision known against `Rotated(k, mixing)`.

    Put +-1 on m coordinates of one lane in each of two blocks, m a power of two and the places a coset of
    :math:`Z_2^{\log n}`. Hidden signs make each half a character of that coset with odds 2m/2^m, both the same one up
    to sign with odds 1/m; then only n/m cells a half are not zero, each of which must meet its twin (odds 1/L) with
    the opposite sign (1/2):

    .. math:: \max_m \; (2m / 2^m)^2 \cdot (1/m) \cdot (2L)^{-n/m}

    >>> from math import log2
    >>> round(log2(collision_odds(4096, 32)), 1)
    -42.0
    """
    n, L = mixing, _lanes(k, mixing)
    sizes = [2**j for j in range(n.bit_length())]
    return max((2 * m / 2**m) ** 2 / m * (2 * L) ** (-n / m) for m in sizes)


def collision_bound(k: int, mixing: int) -> float:
    r"""Odds that no blind collision beats, of any support, any amplitudes and any number of blocks.

    .. math:: \Pr[Pz = 0] \le E\, 2^{1 - \lceil n/N \rceil} (2L)^{-N}

    with N the number of rows that the blocks but one fill; small N are rare.

    >>> from math import log2
    >>> round(log2(collision_bound(4096, 32)), 1)
    -40.6
    """
    n, L = mixing, _lanes(k, mixing)
    costs = [2.0 ** (1 - ceil(n / N)) * (2.0 * L) ** -N for N in range(1, n + 1)]
    few = sum(min(1, odds) * cost for odds, cost in zip(accumulate(few_rows_odds(n)), costs, strict=False))
    return min(max(costs), few + max(costs[4:], default=0))


def few_rows_odds(mixing: int) -> list[float]:
    """Bounds of the odds that mixing leaves exactly 1, 2, 3 or 4 of a lane's rows."""
    n = mixing
    planes = comb(n, 3) / 4
    others = comb(n, 4) - planes
    return [
        2 * n / 2**n,
        n / 2 ** (n / 2),
        comb(n, 3) * 2 ** (2 - 3 * n / 4),
        max(n / 4 * 2 ** (1 - n / 4), planes * 2 ** (2 - n / 2) + others * 2 ** (1 - 5 * n / 8)),
    ]


def _lanes(k: int, mixing: int) -> int:
    if mixing < 1 or mixing & (mixing - 1) or k % mixing:
        raise ValueError(f"mixing must be a power of two that divides k = {k}, got {mixing!r}.")
    return k // mixing
