"""Min-Max and Min-Sum (Shejwalkar and Houmansadr, 2021): the largest move within the spread of the honest updates.

The attackers send m = mean + gamma d for a fixed direction d. The paper bisects to the largest gamma that keeps m
close enough; since

    |m - x_i|^2 = |mean - x_i|^2 + 2 gamma <mean - x_i, d> + gamma^2 |d|^2,

both conditions are quadratic in gamma, and the root is taken that the bisection converges to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from bartizan._util.types import Array, Floats
from bartizan.attacks.honest_updates import (
    Matrix,
    Vector,
    by_columns,
    mean,
    repeat_row,
    sign,
    squared_distances,
    std,
    summed,
)
from bartizan.attacks.parameters import Wanted, attack
from bartizan.updates.layout import on_host

DEVIATIONS: dict[str, Callable[[Matrix], Vector]] = {
    "std": lambda x: -std(x),
    "unit": lambda x: -mean(x),  # gamma makes up for its length
    "sign": lambda x: -sign(mean(x)),
}
DEVIATION = Wanted("'std' or 'unit' or 'sign'", lambda value: isinstance(value, str) and value in DEVIATIONS)


@attack(deviation=DEVIATION)
def min_max(honest: Matrix, count: int, rng: Generator, *, deviation: str = "std") -> Matrix:
    """Min-Max: move the mean until its largest distance to an honest update is that between two honest ones.

    Shejwalkar and Houmansadr, 2021, section IV. The deviation is minus the standard deviations, minus the unit vector
    of the mean, or minus its signs.
    """

    def furthest(D: Floats, a: Floats, b: Floats, c: float) -> float:
        return float(largest_root(a - D.max(), b, c).min())

    return _sent(honest, count, deviation, furthest)


@attack(deviation=DEVIATION)
def min_sum(honest: Matrix, count: int, rng: Generator, *, deviation: str = "std") -> Matrix:
    """Min-Sum: move the mean until its squared distances to the honest sum up to the largest such sum of a client.

    Shejwalkar and Houmansadr, 2021, section IV. The deviation is minus the standard deviations, minus the unit vector
    of the mean, or minus its signs.
    """

    def furthest(D: Floats, a: Floats, b: Floats, c: float) -> float:
        return float(largest_root(a.sum() - D.sum(axis=1).max(), b.sum(), c * len(a)))

    return _sent(honest, count, deviation, furthest)


def _sent(honest: Matrix, count: int, deviation: str, furthest: Callable[..., float]) -> Matrix:
    away = DEVIATIONS[deviation]

    def measured(x: Matrix) -> tuple[Array, Array, float]:
        d, to_mean = away(x), mean(x) - x
        along = on_host((to_mean * d).sum(axis=1))
        to_mean *= to_mean
        return on_host(to_mean.sum(axis=1)), along, float((d**2).sum())

    gamma = furthest(squared_distances(honest), *summed(honest, measured))
    return repeat_row(by_columns(honest, lambda x: mean(x) + gamma * away(x)), count)


def largest_root(a: Floats, b: Floats, c: float) -> Floats:
    """Return the largest gamma with a + 2 b gamma + c gamma^2 <= 0, where a <= 0 up to rounding; 0 if d is zero."""
    if not c > 0:
        return np.zeros_like(a)
    slack = np.maximum(-np.asarray(a), 0)
    root = np.sqrt(b**2 + c * slack)
    # Of the two forms of the root, the one that subtracts nothing from a number close to it.
    gamma = np.where(b > 0, slack / np.where(b > 0, b + root, 1), (root - b) / c)
    return np.nan_to_num(gamma, nan=0.0, posinf=0.0)
