"""Krum and Multi-Krum: trust whoever has close neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan.errors import TooFewClientsError
from bartizan.geometry import Geometry
from bartizan.robust import Bounded, whole_number
from bartizan.rules.base import Rule, averaged, smallest
from bartizan.types import Floats


def krum_scores(squared_distances: Floats, n_neighbours: int) -> Floats:
    """Each client's sum of squared distances to its nearest neighbours, itself not counted."""
    others = squared_distances + np.diag(np.full(len(squared_distances), np.inf))
    return np.sort(others, axis=1)[:, :n_neighbours].sum(axis=1)


@dataclass(frozen=True)
class Krum(Bounded, Rule):
    """Take the one client that sits closest to its neighbours; sizes play no part.

    Client i scores the sum of squared distances to its M - f - 2 nearest (Blanchard et al., 2017, section 4), and
    the least score wins. Withstands f liars among M >= 2f + 3 clients.

    >>> Krum(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [3.0], [90.0]])).tolist()
    [0.0, 1.0, 0.0, 0.0, 0.0]
    """

    @staticmethod
    def least_clients(n_byzantine: int) -> int:
        return 2 * n_byzantine + 3

    def weigh(self, geometry: Geometry) -> Floats:
        scores = krum_scores(geometry.squared_distances, geometry.n_clients - self.n_byzantine - 2)
        return averaged(smallest(scores, 1), geometry)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Average the `n_selected` clients of least Krum score (M - f of them, if not said), by their sizes.

    Blanchard et al., 2017, section 5. Withstands f liars among M >= 2f + 3 clients.

    >>> MultiKrum(n_byzantine=1, n_selected=2)(Geometry.of([[0.0], [1.0], [2.0], [3.0], [90.0]])).tolist()
    [0.0, 0.5, 0.5, 0.0, 0.0]
    """

    n_selected: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_selected is not None:
            whole_number(self, "n_selected", self.n_selected)

    def weigh(self, geometry: Geometry) -> Floats:
        M, f = geometry.n_clients, self.n_byzantine
        n_selected = M - f if self.n_selected is None else self.n_selected
        if n_selected > M - f:
            raise TooFewClientsError(
                f"MultiKrum with n_selected={n_selected} needs that many clients beside the {f} that may lie, got {M}. "
                f"With {M} clients n_selected can be at most {M - f}."
            )
        return averaged(smallest(krum_scores(geometry.squared_distances, M - f - 2), n_selected), geometry)
