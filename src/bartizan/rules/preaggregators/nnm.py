"""Nearest neighbour mixing."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan._util.types import Floats
from bartizan.geometry import Geometry
from bartizan.rules.preaggregators.base import PreAggregator
from bartizan.rules.robust import Bounded


@dataclass(frozen=True)
class NNM(Bounded, PreAggregator):
    """Replace each client by the average, by sizes, of its M - f nearest, itself among them (Allouah et al., 2023).

    >>> NNM(n_byzantine=1)(Geometry.of([[0.0], [1.0], [90.0]])).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """

    def mixing(self, geometry: Geometry) -> Floats:
        from bartizan.kernels import weigh

        # A client is its own nearest even where another has distance 0.
        return weigh.nearest(geometry.squared_distances, geometry.n_clients - self.n_byzantine, geometry.sizes)
