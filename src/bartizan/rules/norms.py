"""Rules for which the clients' norms are enough: the plain average, and that of the shortest clients."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Bounded, Rule, averaged, smallest


@dataclass(frozen=True)
class Mean(Rule):
    """Average all clients by their sizes (FedAvg, McMahan et al., 2017): no defence, for comparison.

    >>> Mean()(Geometry.of([[0.0], [1.0]], sizes=[1, 3])).tolist()
    [0.25, 0.75]
    """

    needs_distances = False
    weighs_by_size = True

    def weigh(self, geometry: Geometry) -> Floats:
        return geometry.shares


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
