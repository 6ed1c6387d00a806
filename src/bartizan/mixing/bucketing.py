"""Bucketing: average small random groups first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan.geometry import Geometry
from bartizan.mixing.base import PreAggregator
from bartizan.randomness import generator_of
from bartizan.robust import whole_number
from bartizan.types import Floats


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Shuffle the clients and replace each `size` of them by their average, by sizes (Karimireddy et al., 2022).

    The shuffle comes from the round's seed. One liar spoils one bucket, so the rule behind it still meets up to f
    liars, but among only M / size buckets.

    >>> A = Bucketing(size=2)(Geometry.of([[0.0], [1.0], [2.0], [3.0]], seed=0))
    >>> A.shape, A.sum(axis=1).tolist(), A.sum(axis=0).tolist()
    ((2, 4), [1.0, 1.0], [0.5, 0.5, 0.5, 0.5])
    """

    size: int = 2

    def __post_init__(self) -> None:
        whole_number(self, "size", self.size)

    def n_mixed(self, n_clients: int) -> int:
        return -(-n_clients // self.size)

    def mixing(self, geometry: Geometry) -> Floats:
        if geometry.seed is None:
            raise ValueError("Bucketing shuffles, and needs randomness: pass seed=... to Geometry.of.")
        M = geometry.n_clients
        shuffled = generator_of(geometry.seed, geometry.n_mixings).permutation(M)
        A = np.zeros((self.n_mixed(M), M))
        A[np.arange(M) // self.size, shuffled] = geometry.sizes[shuffled]
        return A / A.sum(axis=1, keepdims=True)
