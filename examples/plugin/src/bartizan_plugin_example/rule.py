"""A rule: a frozen dataclass that turns the geometry of the updates into weights."""

from dataclasses import dataclass

import numpy as np

from bartizan.rules import Rule


@dataclass(frozen=True)
class NearestToMedian(Rule):
    """Average the `n_selected` clients with the smallest median distance to the others."""

    n_selected: int = 3

    def weigh(self, geometry):
        typical = np.median(geometry.squared_distances, axis=1)
        chosen = np.argsort(typical, kind="stable")[: self.n_selected]
        weights = np.zeros(geometry.n_clients)
        weights[chosen] = 1 / len(chosen)
        return weights
