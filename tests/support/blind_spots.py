"""Structured inputs that a random map could hide, and the odds with which a sketch states that it may."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from bartizan.lora import LoRA, TwoSided

HIDDEN = 0.1
"""A vector is hidden by a seed that shows less than this part of its squared norm."""


@lru_cache
def structured(p: int) -> np.ndarray:
    """Return one input per row: sparse, flat, Hadamard and Kronecker vectors of p coordinates, p a power of two."""
    return np.unique(np.stack(list(_structured(p))), axis=0)


def _structured(p: int) -> Iterator[np.ndarray]:
    def on(*places: int) -> np.ndarray:
        return np.bincount(np.array(places), minlength=p).astype(float)

    yield on(0)
    steps = [2**j for j in range(p.bit_length() - 1)]
    for step in steps:
        yield on(0, step)
        yield on(0) - on(step)
        yield on(*range(0, p, step))  # equal lanes of all blocks
        yield on(*range(step))  # a constant block
        for other in steps:
            if step < other:
                yield on(0, step, other, step + other)  # a plane
                yield on(0, step, other) - on(step + other)
                yield on(*range(0, other, step))  # one lane, or part of it
                yield np.resize(np.repeat([1.0, -1.0], step), p) * (np.arange(p) < other)  # a row of a Hadamard matrix
    for first in ([1.0, 1.0], [1.0, -1.0], [1.0, 0.0]):
        for second in ([1.0, 1.0], [1.0, 0.0]):  # Kronecker products of pairs, in turn and by halves
            pairs = [first if j % 2 else second for j in range(len(steps))]
            for factors in (pairs, sorted(pairs), sorted(pairs, reverse=True)):
                made = np.ones(1)
                for factor in factors:
                    made = np.kron(made, factor)
                yield made


@lru_cache
def stated_odds(sketch: Any) -> float:
    """Return the odds, rounded up to a power of 2^(1/4), with which the sketch states that it may hide a vector."""
    return next(
        (odds for odds in (2.0 ** (-j / 4) for j in range(400, 0, -1)) if sketch.norm_ratio_range(odds)[0] >= HIDDEN),
        1.0,
    )


def most_hidden(n_seeds: int, odds: float) -> int:
    """Return the count of hiding seeds that is exceeded with a probability below 1e-9 if the odds are true."""
    if odds >= 1:
        return n_seeds
    chance, left, count = (1 - odds) ** n_seeds, 1.0, 0
    while (left := left - chance) > 1e-9 and count < n_seeds:
        chance *= (n_seeds - count) / (count + 1) * odds / (1 - odds)
        count += 1
    return count


def hiding_seeds(sketch: Any, p: int, seeds: int) -> np.ndarray:
    """Return for each structured input the number of seeds, from 0 on, that hide it."""
    shown = _two_sided if isinstance(sketch, TwoSided) else _shown
    return np.sum([shown(sketch, p, seed) < HIDDEN for seed in range(seeds)], axis=0)


def _shown(sketch: Any, p: int, seed: int) -> np.ndarray:
    """Return the part of its squared norm that each input shows."""
    x = structured(p)
    return np.asarray((sketch(x, seed=seed) ** 2).sum(axis=1) / (x**2).sum(axis=1))


def _two_sided(sketch: TwoSided, p: int, seed: int) -> np.ndarray:
    """Return the same of products of a column B and a row A: each input with itself and a quarter of the others."""
    x = structured(p)
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if i == j or not (i + j) % 4]
    sent = [{"m.lora_A.weight": x[i, None], "m.lora_B.weight": x[j, :, None]} for i, j in pairs]
    squares = (x**2).sum(axis=1)
    exact = np.array([squares[i] * squares[j] for i, j in pairs])
    return np.asarray((sketch(sent, seed=seed, settings=LoRA(alpha=1)) ** 2).sum(axis=1) / exact)
