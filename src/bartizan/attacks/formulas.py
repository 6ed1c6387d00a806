"""Attacks by a formula: noise, scaled sums and means, and the mean moved by standard deviations."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from bartizan.attacks.honest_updates import Matrix, agreed, by_columns, mean, std
from bartizan.attacks.parameters import NOT_NEGATIVE, NUMBER, attack
from bartizan.attacks.random_rows import AttackerRandom, random_rows


@attack(variance=NOT_NEGATIVE)
def gaussian(honest: Matrix, count: int, rng: np.random.Generator, *, variance: float = 90.0) -> Matrix:
    """Send Gaussian noise of mean 0 and this variance in every coordinate.

    The paper's N(0, 90) is read as a variance of 90, a standard deviation of 9.49.
    """
    deviation = float(np.sqrt(variance))

    def noise(own: AttackerRandom, low: int, high: int) -> Matrix:
        return own.normal(high - low) * deviation

    return random_rows(honest, count, rng, noise)


@attack(factor=NUMBER)
def sign_flip(honest: Matrix, count: int, rng: np.random.Generator, *, factor: float = -3.0) -> Matrix:
    """Send -3 times the sum, not the mean, of the honest updates.

    >>> sign_flip([[1.0, 2.0], [3.0, -2.0]], 1, np.random.default_rng(0)).tolist()
    [[-12.0, -0.0]]
    """
    return agreed(by_columns(honest, lambda x: factor * x.sum(axis=0)), count)


@attack(z=NUMBER)
def little_is_enough(honest: Matrix, count: int, rng: np.random.Generator, *, z: float = 0.7) -> Matrix:
    """LIE: send the honest mean plus 0.7 standard deviations in every coordinate (after Baruch et al., 2019).

    >>> little_is_enough([[1.0, 2.0], [3.0, -2.0]], 1, np.random.default_rng(0)).tolist()
    [[2.7, 1.4]]
    """
    return agreed(by_columns(honest, lambda x: mean(x) + z * std(x)), count)


@attack(factor=NUMBER)
def fall_of_empires(honest: Matrix, count: int, rng: np.random.Generator, *, factor: float = -0.1) -> Matrix:
    """FoE: send -0.1 times the honest mean (after Xie et al., 2020).

    The paper gives a second form, a sum over M' without B, and does not say what M' is: this is the first.
    """
    return agreed(by_columns(honest, lambda x: factor * mean(x)), count)


@attack(factor=NUMBER)
def inner_product_manipulation(honest: Matrix, count: int, rng: np.random.Generator, *, factor: float = 2.0) -> Matrix:
    """IPM: send minus `factor` times the honest mean (Xie et al., 2020); FoE is the same with 0.1.

    >>> inner_product_manipulation([[1.0, 2.0], [3.0, -2.0]], 1, np.random.default_rng(0)).tolist()
    [[-4.0, -0.0]]
    """
    return agreed(by_columns(honest, lambda x: -factor * mean(x)), count)


@attack()
def a_little_is_enough(honest: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """ALIE: send the honest mean plus z standard deviations, with z from the counts (Baruch et al., 2019)."""
    z = hiding_z(len(honest), count)
    return agreed(by_columns(honest, lambda x: mean(x) + z * std(x)), count)


def hiding_z(n_honest: int, count: int) -> float:
    r"""The z of ALIE: the largest at which attackers and the honest clients beyond them are a majority.

    :math:`z = \Phi^{-1}((M - f - s) / (M - f))`, where :math:`s = \lfloor M/2 + 1 \rfloor - f` is the number of honest
    clients that the attackers lack for a majority (Baruch et al., 2019, section 3.3). Few attackers make z negative.
    Where the formula is infinite the fraction is limited to 1/(H + 1) or H/(H + 1).

    >>> round(hiding_z(40, 10), 4), round(hiding_z(35, 15), 4)
    (0.2533, 0.4837)
    """
    H, M = n_honest, n_honest + count
    s = M // 2 + 1 - count
    part = min(max((H - s) / H, 1 / (H + 1)), H / (H + 1))
    return NormalDist().inv_cdf(part)
