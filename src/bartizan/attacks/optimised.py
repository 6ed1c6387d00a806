"""Attacks that know the server's rule, and search for the update that harms most or that it barely refuses.

Those that try several factors on the whole server are after ByzFL's optimal attacks, which search likewise. They copy
the honest updates, once, into the (M, p) array that the server is tried on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from bartizan._util.types import Floats
from bartizan.attacks.formulas import hiding_z
from bartizan.attacks.honest_updates import (
    Matrix,
    Vector,
    by_columns,
    empty,
    gram,
    mean,
    narrowed,
    repeat_row,
    std,
    widened,
)
from bartizan.attacks.parameters import AT_LEAST_ONE, NOT_NEGATIVE, attack, on_changes
from bartizan.updates.layout import is_tensor

Aggregate = Callable[[Matrix], Vector]
FIRST_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@attack(tries=AT_LEAST_ONE)
def optimised_alie(honest: Matrix, count: int, rng: Generator, *, aggregator: Aggregate, tries: int = 16) -> Matrix:
    """Send ALIE's update with the z that moves the server's own rule farthest from the honest mean.

    `aggregator` is that rule, from all M updates to one; it is called `tries` times. ALIE's own z is the first try.
    """
    centre, spread = by_columns(honest, mean, wide=True), by_columns(honest, std, wide=True)
    first = (hiding_z(len(honest), count), *FIRST_FACTORS)
    return _worst(honest, count, aggregator, tries, centre, lambda z: centre + z * spread, first)


@attack(tries=AT_LEAST_ONE)
def optimised_ipm(honest: Matrix, count: int, rng: Generator, *, aggregator: Aggregate, tries: int = 16) -> Matrix:
    """Send IPM's update with the factor that moves the server's own rule farthest from the honest mean.

    `aggregator` is that rule, from all M updates to one; it is called `tries` times. The first are 2 and FoE's 0.1.
    """
    centre = by_columns(honest, mean, wide=True)
    return _worst(honest, count, aggregator, tries, centre, lambda factor: -factor * centre, (2.0, 0.1, *FIRST_FACTORS))


@on_changes
@attack(margin=NOT_NEGATIVE)
def edge_riding(
    honest: Matrix, count: int, rng: Generator, *, exact_weights: Callable[[Floats], Floats], margin: float = 0.005
) -> Matrix:
    """Send the reversed mean, a little longer than the longest that the server's rule admits by exact distances.

    `exact_weights` is that rule without projection, from all M updates, the attackers' last, to their weights; an
    update is admitted if an attacker gets more than half of an equal share. The length is `margin` beyond: exact
    distances never admit it, and a projection blurs the edge by its own error.
    """
    if not count:
        return empty(honest, (0, honest.shape[1]))
    points = _isometric(honest)
    centre = points.mean(axis=0)
    if not np.isfinite(centre).all():  # a client has diverged, and no rule is to be tried on it
        return repeat_row(by_columns(honest, lambda x: -mean(x)), count)

    def admits(factor: float) -> bool:
        weights = exact_weights(np.vstack([points, np.broadcast_to(-factor * centre, (count, len(centre)))]))
        return bool(np.max(weights[len(points) :]) > 0.5 / len(weights))

    factor = (1 + margin) * last_admitted(admits)
    return repeat_row(by_columns(honest, lambda x: -factor * mean(x)), count)


def last_admitted(admits: Callable[[float], bool]) -> float:
    """Return the largest admitted factor, by doubling and bisection, from 2^-10 to 2^10; 0 if none is.

    >>> round(last_admitted(lambda factor: factor < 3), 6)
    3.0
    """
    low = next((2.0**power for power in range(10, -11, -1) if admits(2.0**power)), 0.0)
    if low in (0.0, 2.0**10):
        return low
    high = 2 * low
    while high - low > 1e-7 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if admits(middle) else (low, middle)
    return low


def _isometric(honest: Matrix) -> Floats:
    """Return points with the inner products of the honest updates, (H, H): a rule judges them alike."""
    products = gram(honest)
    if not np.isfinite(products).all():
        return products
    values, vectors = np.linalg.eigh(products)
    return vectors * np.sqrt(np.maximum(values, 0))


def _worst(
    honest: Matrix,
    count: int,
    aggregator: Aggregate,
    tries: int,
    centre: Vector,
    formula: Callable[[float], Vector],
    first: Sequence[float],
) -> Matrix:
    if not count:
        return empty(honest, (0, honest.shape[1]))
    harm = trial(honest, count, aggregator, centre)
    return repeat_row(narrowed(formula(most_harmful(lambda x: harm(formula(x)), first, tries)), honest), count)


def trial(honest: Matrix, count: int, aggregator: Aggregate, centre: Vector) -> Callable[[Vector], float]:
    """Return a function from the update that all attackers send to the aggregate's distance from the honest mean."""
    H = len(honest)
    updates = empty(honest, (H + count, honest.shape[1]))
    updates[:H] = honest

    def harm(sent: Vector) -> float:
        updates[H:] = narrowed(sent, honest)
        return _distance(aggregator(updates), centre)

    return harm


def most_harmful(harm: Callable[[float], float], first: Sequence[float], tries: int) -> float:
    """Return the best of `tries` values: the first ones, then halfway to the neighbours of the best so far.

    Rules accept a shift up to some size and reject a larger one, so the harm rises and then drops: bisection finds the
    edge. Beyond the ends the step doubles or halves.

    >>> most_harmful(lambda x: x if x < 3 else 0.0, (1.0, 2.0, 4.0), 8)
    2.9375
    """
    known = {x: harm(x) for x in dict.fromkeys(first[:tries])}
    while len(known) < tries:
        best = max(known, key=lambda x: known[x])
        below = max((x for x in known if x < best), default=best - abs(best))
        above = min((x for x in known if x > best), default=best + 2 * abs(best))
        x = (best + above) / 2 if above - best >= best - below else (below + best) / 2
        if x in known:  # no number lies between
            break
        known[x] = harm(x)
    return max(known, key=lambda x: known[x])


def _distance(update: Vector, centre: Vector) -> float:
    """Return the distance of an aggregate from the honest mean; infinite if the aggregate is not finite."""
    if not is_tensor(update):
        update = np.asarray(update)
    if tuple(update.shape) != tuple(centre.shape):
        raise ValueError(
            f"aggregator must return one update of shape {tuple(centre.shape)}, got {tuple(update.shape)} "
            f"({update.dtype}). From bartizan: lambda updates: aggregate(updates, rule).update"
        )
    distance = float(((widened(update) - centre) ** 2).sum()) ** 0.5
    return distance if math.isfinite(distance) else math.inf
