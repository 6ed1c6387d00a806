"""Attackers who know us: the sketch, and one thing more that their signature names, such as a seed that leaked.

All hide, or hope to hide, a move in the null space of the projection: see `docs/explanation/adaptive.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.attacks.honest_updates import Matrix, Vector, agreed, by_columns, empty, mean, narrowed, std
from bartizan.attacks.nullspace import hidden_part
from bartizan.attacks.optimised import GRID, Aggregate, most_harmful, trial
from bartizan.attacks.parameters import (
    AT_LEAST_ONE,
    FUNCTION,
    NUMBER,
    SEED,
    SEEDS,
    SKETCH,
    VECTOR,
    Wanted,
    attack,
    is_whole,
)
from bartizan.sketch import Projection, Rotated, Sketch
from bartizan.updates.layout import on_host

FAR = 100.0  # times the root mean square norm of the honest: far beyond what any rule would take in the open
SIZES = Wanted("1, 2, 4 or 8 coordinates a half", lambda value: is_whole(value) and value in (1, 2, 4, 8))


@attack(sketch=SKETCH, leaked_seed=SEED, distance=NUMBER)
def null_space(
    honest: Matrix,
    count: int,
    rng: np.random.Generator,
    *,
    sketch: Sketch,
    leaked_seed: int,
    distance: float = FAR,
) -> Matrix:
    """Knows the round's seed: the honest mean, moved far against itself where the projection does not look.

    The move is `distance` times the honest updates' root mean square norm, and invisible up to rounding. Where nothing
    is projected away it is made in the open.
    """
    return _moved(honest, count, rng, sketch, (leaked_seed,), distance)


@attack(sketch=SKETCH, leaked_seed=SEED)
def null_space_mirror(
    honest: Matrix, count: int, rng: np.random.Generator, *, sketch: Sketch, leaked_seed: int
) -> Matrix:
    r"""Knows the round's seed, and keeps the norm: the honest mean with its invisible part turned around.

    :math:`m - 2 N m`, N the projector onto the null space: the sketch and the exact norm are those of the mean m, and
    with many more coordinates than k it is nearly -m.
    """
    m = _mean(honest)
    return agreed(narrowed(m - 2 * hidden_part(m, sketch, (leaked_seed,)), honest), count)


@attack(sketch=SKETCH, past_seeds=SEEDS, distance=NUMBER)
def replay(
    honest: Matrix,
    count: int,
    rng: np.random.Generator,
    *,
    sketch: Sketch,
    past_seeds: Sequence[int],
    distance: float = FAR,
) -> Matrix:
    """Knows the seeds of all earlier rounds, and bets on the latest; in the first it sends the honest mean."""
    if not len(past_seeds):
        return agreed(narrowed(_mean(honest), honest), count)
    return _moved(honest, count, rng, sketch, (int(past_seeds[-1]),), distance)


@attack(sketch=SKETCH, past_seeds=SEEDS, published=VECTOR)
def observer(
    honest: Matrix,
    count: int,
    rng: np.random.Generator,
    *,
    sketch: Sketch,
    past_seeds: Sequence[int],
    published: Vector,
) -> Matrix:
    """Saw every aggregate and every seed afterwards: pushes against the course, where no earlier projection looked.

    `published` is the sum of the aggregates so far. The move is as long as the honest updates' standard deviation, so
    that it passes for one of them where the projection is a new one.
    """
    course = np.asarray(on_host(published), dtype=np.float64)
    m = _mean(honest)
    k = sketch.k if isinstance(sketch, Projection) else len(m)
    room = min(4, (len(m) - 1) // (2 * k))  # so many projections leave at least half of the coordinates to hide in
    against = -course if course.any() else _away(m, rng)
    d = hidden_part(against, sketch, [int(seed) for seed in past_seeds][-room:] if room else ())
    d = d if d.any() else against
    spread = float(np.linalg.norm(on_host(by_columns(honest, std, wide=True))))
    return agreed(narrowed(m + spread / np.linalg.norm(d) * d, honest), count)


@attack(sketch=SKETCH, size=SIZES, distance=NUMBER)
def blind_collision(
    honest: Matrix, count: int, rng: np.random.Generator, *, sketch: Sketch, size: int = 8, distance: float = FAR
) -> Matrix:
    """Knows no seed: each attacker adds to the mean a large multiple of a vector that the sketch may map to zero.

    The best guesses known: `size` coordinates of one lane in each of two blocks, with random signs (`collision_odds`).
    """
    m, sent = _mean(honest), empty(honest, (count, honest.shape[1]))
    length = distance * _norm(honest)
    for attacker in range(count):
        row = m.copy()
        places = _guessed(sketch, len(m), size, rng)
        row[places] += length / np.sqrt(len(places)) * rng.choice([-1.0, 1.0], len(places))
        sent[attacker] = narrowed(row, honest)
    return sent


@attack(sketch=SKETCH, aggregator=FUNCTION, tries=AT_LEAST_ONE)
def optimised_null_space(
    honest: Matrix,
    count: int,
    rng: np.random.Generator,
    *,
    sketch: Sketch,
    aggregator: Aggregate,
    tries: int = 24,
) -> Matrix:
    """Guesses a seed and tries the whole server: the best length of three moves, one in the guess's null space.

    The others are against the mean and against the standard deviations. `aggregator` is the server with a seed of the
    attacker's own; it is called `tries` times.
    """
    m, spread = _mean(honest), on_host(by_columns(honest, std, wide=True))
    guess = int.from_bytes(rng.bytes(16), "little")
    if not count:
        return empty(honest, (0, honest.shape[1]))
    against = _away(m, rng)
    hidden = hidden_part(against, sketch, (guess,))
    directions = [d for d in (hidden, against, -spread) if np.isfinite(d).all() and d.any()][:tries]
    harm = trial(honest, count, aggregator, by_columns(honest, mean, wide=True))
    worst, sent = 0.0, m
    for nth, d in enumerate(directions):
        unit = _norm(honest) / np.linalg.norm(d) * d
        known: dict[float, float] = {}

        def harms(length: float, unit: Floats = unit, known: dict[float, float] = known) -> float:
            return known.setdefault(length, harm(m + length * unit))

        length = most_harmful(harms, GRID, (tries + nth) // len(directions))
        if known[length] > worst:
            worst, sent = known[length], m + length * unit
    return agreed(narrowed(sent, honest), count)


def _moved(
    honest: Matrix, count: int, rng: np.random.Generator, sketch: Sketch, seeds: tuple[int, ...], distance: float
) -> Matrix:
    m = _mean(honest)
    against = _away(m, rng)
    d = hidden_part(against, sketch, seeds)
    d = d if d.any() else against
    return agreed(narrowed(m + distance * _norm(honest) / np.linalg.norm(d) * d, honest), count)


def _mean(honest: Matrix) -> Floats:
    return np.array(on_host(by_columns(honest, mean, wide=True)), dtype=np.float64)


def _norm(honest: Matrix) -> float:
    """Root mean square of the honest updates' norms."""
    squares = on_host(by_columns(honest, lambda x: (x * x).mean(axis=0), wide=True))
    return float(np.sqrt(np.sum(squares)))


def _away(m: Floats, rng: np.random.Generator) -> Floats:
    """Against the mean; anywhere where there is none."""
    return -m if m.any() else rng.standard_normal(len(m))


def _guessed(sketch: Sketch, p: int, size: int, rng: np.random.Generator) -> Array:
    """Coordinates that may cancel: a coset of rows in one lane of two blocks, or any where the sketch has no lanes."""
    if not isinstance(sketch, Rotated) or p < 2 * sketch.k:
        return rng.choice(p, min(p, 2 * size), replace=False)
    k, n = sketch.k, sketch.mixing
    bits = rng.permutation(n.bit_length() - 1)[: min(size, n).bit_length() - 1]
    rows = np.array([int(rng.integers(n))])
    for bit in bits:
        rows = np.append(rows, rows ^ (1 << int(bit)))
    lane = int(rng.integers(k // n))
    blocks = rng.choice(p // k, 2, replace=False)
    return (blocks[:, None] * k + rows * (k // n) + lane).ravel()
