"""Clipping towards the origin, by a fixed radius or by the clients' own norms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats
from bartizan.geometry import Geometry
from bartizan.rules.base import shortening
from bartizan.rules.preaggregators.base import PreAggregator
from bartizan.rules.robust import Bounded


@dataclass(frozen=True)
class Clipping(PreAggregator):
    """Shorten every client farther from the origin than `radius` to that length.

    >>> Clipping(radius=2.0)(Geometry.of([[1.0], [4.0]])).tolist()
    [[1.0, 0.0], [0.0, 0.5]]
    """

    radius: float

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ValueError(f"Clipping needs radius, a positive length; got {self.radius!r}.")

    def mixing(self, geometry: Geometry) -> Floats:
        return np.diag(shortening(geometry.norms, self.radius))


@dataclass(frozen=True)
class ARC(Bounded, PreAggregator):
    """Shorten the floor(2 f/M (M - f)) longest clients to the length of the next: adaptive robust clipping.

    Allouah et al., 2025, algorithm 2. Norms are exact also under a projection.

    >>> ARC(n_byzantine=1)(Geometry.of([[1.0], [2.0], [4.0]])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]]
    """

    def mixing(self, geometry: Geometry) -> Floats:
        M, f = geometry.n_clients, self.n_byzantine
        n_clipped = 2 * f * (M - f) // M
        return np.diag(shortening(geometry.norms, np.sort(geometry.norms)[M - n_clipped - 1]))
