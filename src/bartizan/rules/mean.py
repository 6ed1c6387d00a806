"""The average of all clients, which one attacker can move anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Rule


@dataclass(frozen=True)
class Mean(Rule):
    """Average all clients by their sizes (FedAvg, McMahan et al., 2017): no defence, for comparison.

    >>> Mean()(Geometry.of([[0.0], [1.0]], sizes=[1, 3])).tolist()
    [0.25, 0.75]
    """

    needs_distances = False

    def weigh(self, geometry: Geometry) -> Floats:
        return geometry.shares
