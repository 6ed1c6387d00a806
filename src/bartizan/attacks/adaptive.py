"""Attacks on the projection, which know the sketch and what their signature names, such as a leaked seed.

All try to hide a move in the null space of the projection; the page on adaptive attackers shows what they achieve.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from bartizan._util.types import Array, Floats
from bartizan.attacks.honest_updates import Matrix, Vector, by_columns, empty, mean, narrowed, repeat_row, std
from bartizan.attacks.nullspace import hidden_part
from bartizan.attacks.optimised import FIRST_FACTORS, Aggregate, most_harmful, trial
from bartizan.attacks.parameters import AT_LEAST_ONE, INDEX, NUMBER, Wanted, attack
from bartizan.measure import Projection, Rotated, Sketch
from bartizan.updates.layout import on_host

# Times the root mean square norm of the honest updates: every rule rejects it where it is visible.
DISTANCE_IN_NORMS = 100.0
# Moves of one length in different directions often do the same harm up to rounding: the first of them is sent.
LEAST_GAIN = 1 + 1e-6
HALF_SIZE = Wanted("1, 2, 4 or 8 coordinates per half", lambda value: INDEX.fits(value) and value in (1, 2, 4, 8))


@attack(distance=NUMBER)
def null_space(
    honest: Matrix, count: int, rng: Generator, *, sketch: Sketch, leaked_seed: int, distance: float = DISTANCE_IN_NORMS
) -> Matrix:
    """Move the honest mean far inside the null space of the round's projection, whose seed is known.

    The move is `distance` times the honest updates' root mean square norm, and the projection maps it to zero up to
    rounding. Where there is no null space it is made against the mean.
    """
    m = _mean(honest)
    return _sent(m + _move(_opposite(m, rng), sketch, (leaked_seed,), distance * _norm(honest)), honest, count)


@attack()
def null_space_mirror(honest: Matrix, count: int, rng: Generator, *, sketch: Sketch, leaked_seed: int) -> Matrix:
    r"""Reverse the part of the honest mean in the null space of the round's projection, whose seed is known.

    :math:`m - 2 N m`, N the projector onto the null space: the sketch and the exact norm are those of the mean m, and
    with many more coordinates than k it is nearly -m.
    """
    m = _mean(honest)
    return _sent(m - 2 * hidden_part(m, sketch, (leaked_seed,)), honest, count)


@attack(distance=NUMBER)
def replay(
    honest: Matrix,
    count: int,
    rng: Generator,
    *,
    sketch: Sketch,
    past_seeds: Sequence[int],
    distance: float = DISTANCE_IN_NORMS,
) -> Matrix:
    """Move the honest mean inside the null space of the last round's projection; in the first round send the mean."""
    m = _mean(honest)
    if not len(past_seeds):
        return _sent(m, honest, count)
    return _sent(m + _move(_opposite(m, rng), sketch, past_seeds[-1:], distance * _norm(honest)), honest, count)


@attack()
def observer(
    honest: Matrix, count: int, rng: Generator, *, sketch: Sketch, past_seeds: Sequence[int], published: Vector
) -> Matrix:
    """Push against the sum of all published aggregates, inside the null space of the earlier projections.

    `published` is that sum. The move is as long as the honest updates' standard deviation, so that a new projection
    shows the attackers among the honest clients.
    """
    course = np.asarray(on_host(published), dtype=np.float64)
    m = _mean(honest)
    k = sketch.k if isinstance(sketch, Projection) else len(m)
    room = min(4, (len(m) - 1) // (2 * k))  # so many projections leave at least half of the coordinates as null space
    against = -course if course.any() else _opposite(m, rng)
    spread = float(np.linalg.norm(on_host(by_columns(honest, std, wide=True))))
    return _sent(m + _move(against, sketch, past_seeds[-room:] if room else (), spread), honest, count)


@attack(size=HALF_SIZE, distance=NUMBER)
def blind_collision(
    honest: Matrix, count: int, rng: Generator, *, sketch: Sketch, size: int = 8, distance: float = DISTANCE_IN_NORMS
) -> Matrix:
    """Add to the honest mean a large multiple of a vector that the sketch may map to zero; no seed is known.

    Each attacker guesses a vector of its own, of the best kind known: `size` coordinates of one lane in each of two
    blocks, with random signs (`collision_odds`).
    """
    m, sent = _mean(honest), empty(honest, (count, honest.shape[1]))
    length = distance * _norm(honest)
    for attacker in range(count):
        row = m.copy()
        places = _collision(sketch, len(m), size, rng)
        row[places] += length / np.sqrt(len(places)) * rng.choice([-1.0, 1.0], len(places))
        sent[attacker] = narrowed(row, honest)
    return sent


@attack(tries=AT_LEAST_ONE)
def optimised_null_space(
    honest: Matrix, count: int, rng: Generator, *, sketch: Sketch, aggregator: Aggregate, tries: int = 24
) -> Matrix:
    """Guess a seed, try three moves of several lengths on the server, and send the most harmful.

    One is in the null space of the guessed projection, the others are against the mean and against the standard
    deviations. `aggregator` is the server with a seed of the attacker's own; it is called `tries` times.
    """
    m, spread = _mean(honest), on_host(by_columns(honest, std, wide=True))
    guess = int.from_bytes(rng.bytes(16), "little")
    if not count:
        return empty(honest, (0, honest.shape[1]))
    against = _opposite(m, rng)
    hidden = hidden_part(against, sketch, (guess,))
    directions = [d for d in (hidden, against, -spread) if np.isfinite(d).all() and d.any()][:tries]
    harm = trial(honest, count, aggregator, by_columns(honest, mean, wide=True))
    worst, sent = 0.0, m
    for nth, d in enumerate(directions):
        unit = _norm(honest) / np.linalg.norm(d) * d
        known: dict[float, float] = {}

        def harms(length: float, unit: Floats = unit, known: dict[float, float] = known) -> float:
            return known.setdefault(length, harm(m + length * unit))

        length = most_harmful(harms, FIRST_FACTORS, (tries + nth) // len(directions))
        if known[length] > LEAST_GAIN * worst:
            worst, sent = known[length], m + length * unit
    return _sent(sent, honest, count)


def _sent(row: Floats, honest: Matrix, count: int) -> Matrix:
    return repeat_row(narrowed(row, honest), count)


def _move(direction: Floats, sketch: Sketch, seeds: Sequence[int], length: float) -> Floats:
    """Return a vector of this length along the hidden part of a direction, or along all of it if no part is hidden."""
    hidden = hidden_part(direction, sketch, [int(seed) for seed in seeds])
    d = hidden if hidden.any() else direction
    moved: Floats = length / np.linalg.norm(d) * d
    return moved


def _mean(honest: Matrix) -> Floats:
    return np.array(on_host(by_columns(honest, mean, wide=True)), dtype=np.float64)


def _norm(honest: Matrix) -> float:
    """Return the root mean square of the honest updates' norms."""
    squares = on_host(by_columns(honest, lambda x: (x * x).mean(axis=0), wide=True))
    return float(np.sqrt(np.sum(squares)))


def _opposite(m: Floats, rng: Generator) -> Floats:
    """Return the direction against the mean, or a random one if the mean is zero."""
    return -m if m.any() else rng.standard_normal(len(m))


def _collision(sketch: Sketch, p: int, size: int, rng: Generator) -> Array:
    """Return coordinates whose cells may cancel: rows of one lane in two blocks, or any if the sketch has no lanes."""
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
