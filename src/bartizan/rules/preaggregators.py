"""Pre-aggregators, which replace clients by mixtures of clients before a rule is applied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar, overload

import numpy as np

from bartizan._util.seeds import generator_of
from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.measure.mixing import Listed, MixingMatrix, Neighbours
from bartizan.rules.base import (
    MAX_LENGTH,
    Bounded,
    CoordinateWise,
    Decision,
    Robust,
    Rule,
    are_parts,
    between,
    positive,
    shortening,
    whole_number,
)


class PreAggregator(Robust, ABC):
    """Compute a mixing matrix A from a geometry, (M', M) and >= 0; what a row lacks of sum 1 is at the origin.

    `pre >> rule` is again a rule: it sees A G A' and its weights come back as A' w.
    """

    def __call__(self, geometry: Geometry) -> Floats | MixingMatrix:
        self.check(geometry.n_clients)
        A = self.mixing(geometry)
        if isinstance(A, MixingMatrix):
            return A
        if not (are_parts(A) and A.ndim == 2 and len(A) and A.shape[1] == geometry.n_clients):
            wanted = f"{geometry.n_clients} columns, no entry negative or NaN, and rows with a sum of at most 1"
            raise ValueError(f"{self!r} must give a mixing matrix with {wanted}; got {A!r}.")
        return A

    @abstractmethod
    def mixing(self, geometry: Geometry) -> Floats | MixingMatrix:
        """Return the matrix, or what can do its work without M x M numbers; the breakdown condition was checked."""

    def n_mixed(self, n_clients: int) -> int:
        """Return how many rows the matrix has."""
        return n_clients

    @overload
    def __rshift__(self, then: Rule | CoordinateWise) -> PreAggregated: ...
    @overload
    def __rshift__(self, then: PreAggregator) -> Chain: ...
    def __rshift__(self, then: Rule | CoordinateWise | PreAggregator) -> PreAggregated | Chain:
        if isinstance(self, Chain):
            # One step at a time: the sizes and norms of mixed clients can't be told from the product of two matrices.
            return self.first >> (self.then >> then)
        if isinstance(then, PreAggregator):
            return Chain(self, then)
        if isinstance(then, (Rule, CoordinateWise)):
            return PreAggregated(self, then)
        return NotImplemented


T = TypeVar("T", PreAggregator, Rule | CoordinateWise)


@dataclass(frozen=True, repr=False)
class Composed(Robust, Generic[T]):
    """A pre-aggregator and what is applied to the clients that it makes."""

    first: PreAggregator
    then: T

    @property
    def bytes_per_pair(self) -> float:  # type: ignore[override]
        return max(self.first.bytes_per_pair, self.then.bytes_per_pair)

    def max_byzantine(self) -> int | None:
        parts = (self.first.max_byzantine(), self.then.max_byzantine())
        return min((f for f in parts if f is not None), default=None)

    def with_fewer_byzantine(self, fewer: int) -> Self:
        return type(self)(self.first.with_fewer_byzantine(fewer), self.then.with_fewer_byzantine(fewer))

    def check(self, n_clients: int) -> None:
        self.first.check(n_clients)
        self.then.check(self.first.n_mixed(n_clients))

    def __repr__(self) -> str:
        return f"{self.first!r} >> {self.then!r}"


@dataclass(frozen=True, repr=False)
class Chain(Composed[PreAggregator], PreAggregator):
    """Two pre-aggregators, one after the other."""

    def n_mixed(self, n_clients: int) -> int:
        return self.then.n_mixed(self.first.n_mixed(n_clients))

    def mixing(self, geometry: Geometry) -> Floats:
        A = self.first(geometry)
        return np.asarray(self.then(geometry.mix(A))) @ np.asarray(A)


@dataclass(frozen=True, repr=False)
class PreAggregated(Composed[Rule | CoordinateWise], Rule):
    """A rule applied to pre-aggregated clients; so a coordinate-wise rule, too, can follow a projection."""

    @property
    def needs_trusted(self) -> bool:  # type: ignore[override]
        return self.then.needs_trusted

    def ends_coordinate_wise(self) -> bool:
        return self.then.ends_coordinate_wise()

    def weigh(self, geometry: Geometry) -> Decision:
        A = self.first(geometry)
        inner = self.then.decide(geometry.mix(A))
        stage = inner.coordinate_stage
        weights = A.back(inner.weights) if isinstance(A, MixingMatrix) else A.T @ inner.weights
        return replace(inner, weights=weights, coordinate_stage=None if stage is None else stage.behind(np.asarray(A)))


@dataclass(frozen=True)
class NNM(Bounded, PreAggregator):
    """Replace each client by the average, by sizes, of its M - f nearest, itself among them (Allouah et al., 2023).

    >>> NNM(n_byzantine=1)(Geometry.of([[0.0], [1.0], [90.0]])).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """

    bytes_per_pair = 0.125

    def mixing(self, geometry: Geometry) -> Floats | MixingMatrix:
        from bartizan.kernels import weigh

        # A client is its own nearest even where another has distance 0.
        n_near, sizes = geometry.n_clients - self.n_byzantine, geometry.sizes
        if geometry.rows is None:
            return weigh.nearest(geometry.squared_distances, n_near, sizes)
        stripes = geometry.distance_stripes("neighbours")
        return Neighbours.of((weigh.nearest(D, n_near, sizes, first) > 0 for first, D in stripes), sizes)


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Shuffle the clients and replace each `size` of them by their average, by sizes (Karimireddy et al., 2022).

    The shuffle comes from the round's seed. One attacker spoils one bucket, so the rule behind it still meets up to f
    attackers, but among only M / size buckets.

    >>> A = Bucketing(size=2)(Geometry.of([[0.0], [1.0], [2.0], [3.0]], seed=0))
    >>> A.shape, A.sum(axis=1).tolist(), A.sum(axis=0).tolist()
    ((2, 4), [1.0, 1.0], [0.5, 0.5, 0.5, 0.5])
    """

    bytes_per_pair = 0.0
    size: int = 2

    def __post_init__(self) -> None:
        whole_number(self, "size", self.size)

    def n_mixed(self, n_clients: int) -> int:
        return -(-n_clients // self.size)

    def mixing(self, geometry: Geometry) -> Floats | MixingMatrix:
        if geometry.seed is None:
            raise ValueError("Bucketing shuffles, and needs randomness: pass seed=... to Geometry.of.")
        M = geometry.n_clients
        shuffled = generator_of(geometry.seed, geometry.n_mixings).permutation(M)
        buckets = np.arange(M) // self.size
        if geometry.rows is not None:
            totals = np.bincount(buckets, geometry.sizes[shuffled])
            return Listed(buckets, shuffled, geometry.sizes[shuffled] / totals[buckets], (len(totals), M))
        A = np.zeros((self.n_mixed(M), M))
        A[buckets, shuffled] = geometry.sizes[shuffled]
        return A / A.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Clipping(PreAggregator):
    """Shorten every client farther from the origin than `radius` to that length.

    >>> Clipping(radius=2.0)(Geometry.of([[1.0], [4.0]])).tolist()
    [[1.0, 0.0], [0.0, 0.5]]
    """

    bytes_per_pair = 0.0
    radius: float

    def __post_init__(self) -> None:
        positive(self, "radius", self.radius, "length")

    def mixing(self, geometry: Geometry) -> Floats | MixingMatrix:
        return scaling(shortening(geometry.norms, self.radius / geometry.unit), geometry)


@dataclass(frozen=True)
class ARC(Bounded, PreAggregator):
    """Shorten the floor(2 f/M (M - f)) longest clients to the length of the next: adaptive robust clipping.

    Allouah et al., 2025, algorithm 2. Norms are exact also under a projection.

    >>> ARC(n_byzantine=1)(Geometry.of([[1.0], [2.0], [4.0]])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]]
    """

    bytes_per_pair = 0.0

    def mixing(self, geometry: Geometry) -> Floats | MixingMatrix:
        M, f = geometry.n_clients, self.n_byzantine
        n_clipped = 2 * f * (M - f) // M
        return scaling(shortening(geometry.norms, np.sort(geometry.norms)[M - n_clipped - 1]), geometry)


@dataclass(frozen=True)
class NormFilter(PreAggregator):
    """Leave out every client whose norm is below `low` or above `high` times the median norm.

    The first of SignGuard's two filters, with its limits (Xu et al., 2022, algorithm 2); norms are exact also under a
    projection. The second filter clusters the signs of coordinates, which no geometry has. While more than half of the
    clients are honest, no honest client is left out whose norm is within these factors of every other honest norm.
    The rule behind it must admit the clients that are left, or the round is refused.

    >>> NormFilter()(Geometry.of([[1.0], [4.0], [2.0], [90.0]])).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    """

    bytes_per_pair = 0.0
    low: float = 0.1
    high: float = 3.0

    def __post_init__(self) -> None:
        between(self, "low", self.low, 0, 1, "a factor of the median norm")
        between(self, "high", self.high, 1, MAX_LENGTH, "a factor of the median norm")

    def mixing(self, geometry: Geometry) -> Floats | MixingMatrix:
        # The lower of two middle norms, so that a client with the median norm exists and is never left out.
        norms, M = geometry.norms, geometry.n_clients
        median = np.sort(norms)[(M - 1) // 2]
        kept = (norms >= self.low * median) & (norms <= self.high * median)
        if geometry.rows is None:
            return np.eye(M)[kept]
        left = np.flatnonzero(kept)
        return Listed(np.arange(len(left)), left, np.ones(len(left)), (len(left), M))


def scaling(factors: Floats, geometry: Geometry) -> Floats | MixingMatrix:
    """Return the mixing matrix that scales each client."""
    return np.diag(factors) if geometry.rows is None else Listed.diagonal(factors)
