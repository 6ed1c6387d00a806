"""Base class of the rules, which turn a geometry into weights, and helpers that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.geometry import Geometry
from bartizan.rules.coordinatewise.base import CoordinateWise
from bartizan.rules.robust import Robust


@dataclass(frozen=True)
class CoordinateStage:
    """A coordinate-wise rule to finish with, on `mixing` of the clients instead of their weighted sum.

    Without a mixing matrix it is applied to the clients as they are, and there are no weights.
    """

    rule: CoordinateWise
    mixing: Floats | None
    sizes: Floats

    def reduce(self, columns: Array) -> Floats:
        return self.rule.reduce(columns, self.sizes)


@dataclass(frozen=True)
class Decision:
    """The weights, the history to pass in the next round, and for some rules a coordinate-wise stage."""

    weights: Floats
    history: tuple[float, ...] = ()
    coordinate_stage: CoordinateStage | None = None


class Rule(Robust, ABC):
    """Compute one weight a client from a geometry: w >= 0; what the weights lack of sum 1 stays at the origin.

    Data sizes are prior weights: sums and averages over clients are weighted by them, counts of clients are not.
    """

    def __call__(self, geometry: Geometry) -> Floats:
        return self.decide(geometry).weights

    def decide(self, geometry: Geometry) -> Decision:
        self.check(geometry.n_clients)
        self.check_trusted(geometry.has_trusted)
        decision = self._decide(geometry)
        weights = decision.weights
        if not (are_parts(weights) and weights.shape == (geometry.n_clients,)):
            wanted = f"{geometry.n_clients} weights, an array of floats, none negative or NaN, with a sum of at most 1"
            raise ValueError(f"{self!r} must give {wanted}; gave {weights!r}.")
        return decision

    def check_trusted(self, given: bool) -> None:
        if self.needs_trusted and not given:
            raise ValueError(f"{self!r} needs an update that the server trusts: pass trusted=...")

    def _decide(self, geometry: Geometry) -> Decision:
        """Override this to return a history or a coordinate-wise stage too; the breakdown condition was checked."""
        return Decision(self.weigh(geometry), geometry.history)

    @abstractmethod
    def weigh(self, geometry: Geometry) -> Floats:
        """Return the weights; the breakdown condition was checked."""


def are_parts(values: object) -> bool:
    """Whether this is an array of floats, none negative or NaN, each row with a sum of at most 1 up to rounding."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or not values.ndim or not values.size:
        return False
    sums = values.sum() if values.ndim == 1 else values.sum(axis=-1).max()
    return bool(values.min() >= 0 and sums <= 1 + 1e-6)  # False for NaN


def averaged(chosen: Array, geometry: Geometry) -> Floats:
    """Weights of the average of these clients, by their data sizes."""
    weights = np.zeros(geometry.n_clients)
    weights[chosen] = geometry.sizes[chosen]
    return weights / weights.sum()


def shortening(norms: Floats, radius: float) -> Floats:
    """Factors that clip vectors of these norms to the radius."""
    return np.minimum(1, np.divide(radius, norms, out=np.ones_like(norms), where=norms > 0))


def smallest(values: Array, count: int) -> Array:
    """Indices of the `count` smallest values, ties to the lower index."""
    return np.argsort(values, kind="stable")[:count]
