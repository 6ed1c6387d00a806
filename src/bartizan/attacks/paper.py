"""The four attacks of the PDR paper (section 4), to the letter.

Each takes the honest updates, an (H, p) array, and returns what `count` liars send, (count, p) in the same dtype; liars
who agree share one row of memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bartizan.types import Array

WIDTH = 2**16  # columns at a time: no copy of the honest updates is made


def gaussian(honest: Array, count: int, rng: np.random.Generator, *, variance: float = 90.0) -> Array:
    """Noise: every coordinate N(0, 90), a variance of 90."""
    noise = np.empty((count, honest.shape[1]), dtype=np.float32)

    def fill(row: Array, own: np.random.Generator) -> None:
        own.standard_normal(dtype=np.float32, out=row)
        row *= np.float32(np.sqrt(variance))

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, noise, rng.spawn(count)))
    return noise.astype(honest.dtype, copy=False)


def sign_flip(honest: Array, count: int, rng: np.random.Generator, *, factor: float = -3.0) -> Array:
    """-3 times the sum of the honest updates."""
    return _agreed(honest.sum(axis=0) * factor, count, honest)


def little_is_enough(honest: Array, count: int, rng: np.random.Generator, *, z: float = 0.7) -> Array:
    """LIE: the honest mean plus 0.7 standard deviations, in every coordinate (after Baruch et al., 2019)."""
    update = np.empty(honest.shape[1], dtype=honest.dtype)
    for low in range(0, len(update), WIDTH):
        columns = honest[:, low : low + WIDTH]
        update[low : low + WIDTH] = columns.mean(axis=0) + z * columns.std(axis=0)
    return _agreed(update, count, honest)


def fall_of_empires(honest: Array, count: int, rng: np.random.Generator, *, factor: float = -0.1) -> Array:
    """FoE: -0.1 times the honest mean (after Xie et al., 2020)."""
    return _agreed(honest.mean(axis=0) * factor, count, honest)


def _agreed(update: Array, count: int, honest: Array) -> Array:
    return np.broadcast_to(update.astype(honest.dtype, copy=False), (count, len(update)))
