"""Attacks on Krum and on trimmed means by Fang et al., 2020, with full knowledge of the honest updates.

The paper writes whole models; here an update is the change of the model, whose origin is the model before the round.
The direction s in which the model would move is the sign of the honest mean.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from bartizan._util.types import Array, Floats
from bartizan.attacks.honest_updates import (
    Matrix,
    Vector,
    by_columns,
    empty,
    largest,
    least,
    mean,
    narrowed,
    repeat_row,
    sign,
    squared_distances,
    summed,
)
from bartizan.attacks.parameters import Wanted, attack, is_number, on_changes
from bartizan.updates.layout import on_host

ABOVE_ONE = Wanted("a number above 1", lambda value: is_number(value) and value > 1)
POSITIVE = Wanted("a positive number", lambda value: is_number(value) and value > 0)


@on_changes
@attack(least_step=POSITIVE)
def fang_krum(honest: Matrix, count: int, rng: Generator, *, least_step: float = 1e-5) -> Matrix:
    r"""Send :math:`-\lambda s`, against the honest direction, with the largest :math:`\lambda` that Krum would select.

    Fang et al., 2020, section 4.2: :math:`\lambda` begins at the paper's upper bound and is halved until Krum with f =
    `count` selects an attacker, or it is below `least_step`. All attackers send the same.

    >>> honest = np.random.default_rng(0).normal(1, 2, size=(9, 50))
    >>> (fang_krum(honest, 3, np.random.default_rng(0)) * np.sign(honest.mean(axis=0)))[0, :3].round(2)
    array([-1.42, -1.42, -1.42])
    """

    def measured(x: Matrix) -> tuple[Array, Array, float]:
        s = sign(mean(x))
        return on_host((x * x).sum(axis=1)), on_host((x * s).sum(axis=1)), float((s * s).sum())

    squares, along, d = summed(honest, measured)
    step = krum_step(squared_distances(honest), squares, along, d, count, least_step)
    return repeat_row(by_columns(honest, lambda x: -step * sign(mean(x))), count)


def krum_step(D: Floats, squares: Array, along: Array, d: float, count: int, least_step: float) -> float:
    """Search for the length of the move in each of d coordinates, as the paper does.

    `D` are the honest squared distances, `squares` the squared norms, and `along` the inner products with the signs.
    """
    H, M = len(D), len(D) + count
    if not count or not (np.isfinite(D).all() and np.isfinite(squares).all() and d > 0):
        return 0.0  # no attacker, or a client has diverged
    n_neighbours = max(1, M - count - 2)
    nearest = np.sort(D, axis=1)[:, 1 : 1 + n_neighbours].sum(axis=1).min() if H > 1 else 0.0
    step = float(np.sqrt(nearest / (max(1, M - 2 * count - 1) * d)) + np.sqrt(squares.max() / d))
    everyone = np.zeros((M, M))
    everyone[:H, :H] = D
    while step >= least_step:
        everyone[:H, H:] = (squares + 2 * step * along + step * step * d)[:, None]
        everyone[H:, :H] = everyone[:H, H:].T
        # A client's distance to itself comes first in its row.
        scores = np.sort(everyone, axis=1)[:, 1 : 1 + n_neighbours].sum(axis=1)
        if scores[H] < scores[:H].min():
            break
        step /= 2
    return step


@on_changes
@attack(factor=ABOVE_ONE)
def fang_trim(honest: Matrix, count: int, rng: Generator, *, factor: float = 2.0) -> Matrix:
    """Send numbers just beyond the honest ones, in every coordinate on the side against the honest direction.

    Fang et al., 2020, section 4.3, for the trimmed mean and the median: where the honest mean is negative, each
    attacker draws between the largest honest number and `factor` times it (divided by it where that is larger); where
    it is positive, between the least and `factor` times (divided by) it.

    >>> fang_trim([[1.0, -2.0], [3.0, -4.0]], 1, np.random.default_rng(0)).round(2).tolist()
    [[0.68, -1.73]]
    """
    inner = by_columns(honest, lambda x: _beyond(x, 1.0), wide=True)
    outer = by_columns(honest, lambda x: _beyond(x, factor), wide=True)
    sent = empty(honest, (count, honest.shape[1]))
    for attacker in range(count):
        drawn = narrowed(rng.random(honest.shape[1]), inner)
        sent[attacker] = narrowed(inner + drawn * (outer - inner), honest)
    return sent


def _beyond(x: Matrix, factor: float) -> Vector:
    """Return the honest extreme against the direction of the mean, times or over `factor`, whichever is farther."""
    up = mean(x) >= 0
    edge = up * least(x) + ~up * largest(x)
    grows = (edge > 0) ^ up
    return edge * (grows * factor + ~grows / factor)
