"""What every rule is: a frozen value that turns a geometry into weights."""

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
    """What a rule makes of a geometry: the weights, the history to pass next round, and rarely a second stage."""

    weights: Floats
    history: tuple[float, ...] = ()
    coordinate_stage: CoordinateStage | None = None


class Rule(Robust, ABC):
    """Geometry in, weights out: w >= 0, and what is missing from sum 1 stays at the origin.

    Sizes are prior weights: where a rule sums or averages over clients it weighs them by their data sizes, where it
    counts clients or neighbours it counts heads.
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
            raise ValueError(f"{self!r} needs an update that the server vouches for: pass trusted=...")

    def _decide(self, geometry: Geometry) -> Decision:
        """For rules that decide more than weights; the breakdown condition holds already."""
        return Decision(self.weigh(geometry), geometry.history)

    @abstractmethod
    def weigh(self, geometry: Geometry) -> Floats:
        """The weights; the breakdown condition holds already."""


def are_parts(values: object) -> bool:
    """Whether this is an array of floats, none negative or NaN, each row with a sum of at most 1 up to rounding."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or not values.ndim:
        return False
    return bool((values >= 0).all() and (values.sum(axis=-1) <= 1 + 1e-6).all())


def averaged(chosen: Array, geometry: Geometry) -> Floats:
    """Weights of the chosen clients' average, by their sizes."""
    weights = np.zeros(geometry.n_clients)
    weights[chosen] = geometry.sizes[chosen]
    return weights / weights.sum()


def shortening(norms: Floats, radius: float) -> Floats:
    """What each length must be multiplied with to be no longer than the radius."""
    return np.minimum(1, np.divide(radius, norms, out=np.ones_like(norms), where=norms > 0))


def smallest(values: Array, count: int) -> Array:
    """Indices of the `count` smallest values, ties to the lower index."""
    return np.argsort(values, kind="stable")[:count]
