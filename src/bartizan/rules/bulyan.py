"""Bulyan: choose by Krum again and again, so that no liar hides behind one lucky score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan.coordinatewise import MeaMed
from bartizan.geometry import Geometry
from bartizan.robust import Bounded
from bartizan.rules.base import Decision, Rule, SecondStage, averaged
from bartizan.types import Array, Floats


@dataclass(frozen=True)
class Bulyan(Bounded, Rule):
    """Average the M - 2f clients that repeated Krum selects, by their sizes.

    Each time the client of least Krum score among those left is taken out and selected (El Mhamdi et al., 2018,
    section 4); of R clients left, R - f - 2 neighbours count, and at least f (and one) to the end: with f - 1, as the
    formula has it for the last selection, f liars who send the same vector are each other's neighbours at distance 0
    and one of them gets in. Withstands f liars among M >= 4f + 3 clients.

    `trim=True` adds the paper's second stage on the selected updates themselves: in each coordinate, the mean of the
    M - 4f values closest to the median. That stage can't be projected, and the weights are then those of the selection.

    >>> Bulyan(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [90.0]])).round(2).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.2, 0.0, 0.0]
    """

    trim: bool = False

    @staticmethod
    def least_clients(n_byzantine: int) -> int:
        return 4 * n_byzantine + 3

    def weigh(self, geometry: Geometry) -> Floats:
        n_selected = geometry.n_clients - 2 * self.n_byzantine
        return averaged(repeated_krum(geometry.squared_distances, self.n_byzantine, n_selected), geometry)

    def weighed(self, geometry: Geometry) -> Decision:
        weights = self.weigh(geometry)
        if not self.trim:
            return Decision(weights, geometry.history)
        selected = np.flatnonzero(weights)
        rest = SecondStage(
            MeaMed(n_byzantine=2 * self.n_byzantine), np.eye(geometry.n_clients)[selected], geometry.sizes[selected]
        )
        return Decision(weights, geometry.history, rest)


def repeated_krum(squared_distances: Floats, f: int, n_selected: int) -> Array:
    """Sums are taken anew each time: what a giant added to a running sum could not be subtracted again."""
    M = len(squared_distances)
    others = squared_distances + np.diag(np.full(M, np.inf))
    order = np.argsort(others, axis=1, kind="stable")
    nearest = np.take_along_axis(others, order, axis=1)
    left = np.ones(M, dtype=bool)
    selected = []
    for remaining in range(M, M - n_selected, -1):
        n_neighbours = min(max(remaining - f - 2, f, 1), remaining - 1)
        here = left[order]
        counted = here & (np.cumsum(here, axis=1) <= n_neighbours)
        scores = np.where(counted, nearest, 0.0).sum(axis=1)
        scores[~left] = np.inf
        best = int(scores.argmin())
        selected.append(best)
        left[best] = False
    return np.array(selected)
