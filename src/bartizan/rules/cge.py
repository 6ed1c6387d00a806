"""Comparative gradient elimination: drop the clients with the largest norms."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Bounded, Rule, averaged, smallest


@dataclass(frozen=True)
class CGE(Bounded, Rule):
    """Average, by sizes, the M - f clients closest to the origin.

    Gupta, Liu and Vaidya, 2021 (theirs is the sum). Norms are exact also under a projection. Withstands f attackers
    among M >= 2f + 1 clients, but for those shorter than the honest, which are never dropped.

    >>> CGE(n_byzantine=1)(Geometry.of([[1.0], [-2.0], [90.0]])).tolist()
    [0.5, 0.5, 0.0]
    """

    needs_distances = False

    def weigh(self, geometry: Geometry) -> Floats:
        return averaged(smallest(geometry.norms, geometry.n_clients - self.n_byzantine), geometry)
