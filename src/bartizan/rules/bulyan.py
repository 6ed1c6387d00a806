"""Bulyan: repeated selection by Krum's score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Bounded, CoordinateStage, Decision, Rule, averaged
from bartizan.rules.coordinatewise import MeaMed


@dataclass(frozen=True)
class Bulyan(Bounded, Rule):
    """Average the M - 2f clients that repeated Krum selects, by their sizes.

    Each time the client of least Krum score among those left is taken out and selected (El Mhamdi et al., 2018,
    section 4). Of R clients left, R - f - 2 neighbours count, but at least max(f, 1): with the formula's f - 1 in the
    last selection, f attackers who send the same vector would be each other's neighbours at distance 0, and one would
    be selected. Withstands f attackers among M >= 4f + 3 clients.

    Of clients with equal scores the first in the list is taken. With n_byzantine=1 that decides most rounds: when few
    clients are left only the nearest neighbour counts, and two clients that are each other's nearest have the same
    score, so the result depends on the clients' order. From n_byzantine=2 on it does so only where distances are equal.

    `trim=True` adds the paper's second stage on the selected updates themselves: in each coordinate, the mean of the
    M - 4f values closest to the median. That stage can't be projected, and the weights are then those of the selection.

    >>> Bulyan(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [90.0]])).round(2).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.2, 0.0, 0.0]
    """

    trim: bool = False

    @staticmethod
    def least_clients(n_byzantine: int) -> int:
        return 4 * n_byzantine + 3

    def ends_coordinate_wise(self) -> bool:
        return self.trim

    def weigh(self, geometry: Geometry) -> Decision:
        from bartizan.kernels import weigh

        M, f = geometry.n_clients, self.n_byzantine
        weights, stage = averaged(weigh.repeated_krum(geometry.squared_distances, f, M - 2 * f), geometry), None
        if self.trim:
            selected = np.flatnonzero(weights)
            stage = CoordinateStage(MeaMed(2 * f), geometry.sizes[selected], selected=selected)
        return Decision(weights, geometry.history, stage)
