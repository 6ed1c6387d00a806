"""Attacks that use time: old honest updates, many updates, and harm after a time of good behaviour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from bartizan.attacks.honest_updates import Matrix, Vector, by_columns, mean, narrowed, repeat_row
from bartizan.attacks.parameters import AT_LEAST_ONE, INDEX, NUMBER, Wanted, attack, is_number
from bartizan.updates.layout import on_host


@attack(age=AT_LEAST_ONE)
def send_old(honest: Matrix, count: int, rng: Generator, *, earlier: Sequence[Vector], age: int = 20) -> Matrix:
    """Send the honest mean of `age` rounds ago as if it was new, or the oldest one that is known.

    `earlier` are the honest means of the rounds before, the latest last.

    >>> known = [np.array([9.0, 9.0]), np.array([5.0, 5.0])]
    >>> send_old([[1.0, 2.0]], 1, np.random.default_rng(0), earlier=known, age=2).tolist()
    [[9.0, 9.0]]
    """
    if not len(earlier):
        return repeat_row(by_columns(honest, mean), count)
    old = np.asarray(on_host(earlier[-min(age, len(earlier))]), dtype=np.float64)
    return repeat_row(narrowed(old, honest), count)


@attack(rate=Wanted("a finite number above 0", lambda value: is_number(value) and value > 0), factor=NUMBER)
def flood(honest: Matrix, count: int, rng: Generator, *, rate: float = 10.0, factor: float = 3.0) -> Matrix:
    """Send the honest mean times `-factor`, and `rate` times as often as the fastest honest client.

    The rate is for a laboratory with a buffer (`server.buffer`); in rounds everybody sends once.

    >>> flood([[1.0, 2.0], [3.0, -2.0]], 1, np.random.default_rng(0)).tolist()
    [[-6.0, -0.0]]
    """
    return repeat_row(by_columns(honest, lambda x: -factor * mean(x)), count)


@attack(start=INDEX, factor=NUMBER)
def wait_and_strike(
    honest: Matrix, count: int, rng: Generator, *, now: int, start: int = 20, factor: float = 10.0
) -> Matrix:
    """Send the honest mean up to round `start`, and after it the mean times `-factor`.

    >>> [wait_and_strike([[1.0, 2.0]], 1, np.random.default_rng(0), now=now).tolist() for now in (20, 21)]
    [[[1.0, 2.0]], [[-10.0, -20.0]]]
    """
    return repeat_row(by_columns(honest, lambda x: (1.0 if now <= start else -factor) * mean(x)), count)
