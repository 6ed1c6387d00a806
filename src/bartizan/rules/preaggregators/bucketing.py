"""Bucketing: average small random groups first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.seeds import generator_of
from bartizan._util.types import Floats
from bartizan.geometry import Geometry
from bartizan.rules.preaggregators.base import PreAggregator
from bartizan.rules.robust import whole_number


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Shuffle the clients and replace each `size` of them by their average, by sizes (Karimireddy et al., 2022).

    The shuffle comes from the round's seed. One attacker spoils one bucket, so the rule behind it still meets up to f
    attackers, but among only M / size buckets.

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
