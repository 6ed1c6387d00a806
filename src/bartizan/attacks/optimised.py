"""Attacks that know the server's rule: they try several factors on it and send the most harmful update.

After ByzFL's optimal attacks, which search for the factor likewise. Only these attacks copy the honest updates, once,
into the (M, p) array that the rule is tried on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from bartizan.attacks.formulas import hiding_z
from bartizan.attacks.honest_updates import Matrix, Vector, by_columns, empty, mean, narrowed, repeat_row, std, widened
from bartizan.attacks.parameters import AT_LEAST_ONE, attack
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
