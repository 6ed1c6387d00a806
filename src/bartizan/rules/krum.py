"""Krum and Multi-Krum: select the clients that sit closest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats
from bartizan.errors import TooFewClientsError
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Bounded, Rule, averaged, smallest, whole_number


def krum_scores(geometry: Geometry, n_neighbours: int) -> Floats:
    """Return each client's sum of squared distances to its nearest neighbours and to itself, which is 0.

    Summed in sorted order, so that clients with the same distances have the same score to the last bit.
    """
    from bartizan.kernels import weigh

    if geometry.rows is None:
        return weigh.nearest_sums(geometry.squared_distances, n_neighbours + 1)
    stripes = geometry.distance_stripes()
    return np.concatenate([weigh.nearest_sums(D, n_neighbours + 1) for _, D in stripes])


@dataclass(frozen=True)
class Krum(Bounded, Rule):
    """Take the one client that sits closest to its neighbours; sizes play no part.

    Client i scores the sum of squared distances to its M - f - 2 nearest (Blanchard et al., 2017, section 4), and
    the least score wins. Withstands f attackers among M >= 2f + 3 clients.

    >>> Krum(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [3.0], [90.0]])).tolist()
    [0.0, 1.0, 0.0, 0.0, 0.0]
    """

    bytes_per_pair = 0.0

    @staticmethod
    def least_clients(n_byzantine: int) -> int:
        return 2 * n_byzantine + 3

    def weigh(self, geometry: Geometry) -> Floats:
        M, f = geometry.n_clients, self.n_byzantine
        weights = np.zeros(M)
        weights[krum_scores(geometry, M - f - 2).argmin()] = 1.0
        return weights


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Average the `n_selected` clients of least Krum score (M - f by default), by their sizes.

    Blanchard et al., 2017, section 5. Withstands f attackers among M >= 2f + 3 clients.

    >>> MultiKrum(n_byzantine=1, n_selected=2)(Geometry.of([[0.0], [1.0], [2.0], [3.0], [90.0]])).tolist()
    [0.0, 0.5, 0.5, 0.0, 0.0]
    """

    n_selected: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_selected is not None:
            whole_number(self, "n_selected", self.n_selected)

    def check(self, n_clients: int) -> None:
        super().check(n_clients)
        M, f, wanted = n_clients, self.n_byzantine, self.n_selected
        if wanted is not None and wanted > M - f:
            raise TooFewClientsError(
                f"MultiKrum with n_selected={wanted} needs that many clients beside {f} Byzantine ones, got {M}. "
                f"With {M} clients n_selected can be at most {M - f}."
            )

    def weigh(self, geometry: Geometry) -> Floats:
        M, f = geometry.n_clients, self.n_byzantine
        n_selected = M - f if self.n_selected is None else self.n_selected
        return averaged(smallest(krum_scores(geometry, M - f - 2), n_selected), geometry)
