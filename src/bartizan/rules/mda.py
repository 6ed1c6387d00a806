"""Minimum diameter averaging, solved exactly as a vertex cover of the far pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Bounded, Rule, averaged, smallest


@dataclass(frozen=True)
class MDA(Bounded, Rule):
    """Average, by sizes, the M - f clients whose largest mutual distance is least.

    El Mhamdi et al., 2021 (and Rousseeuw's minimal diameter). All M - f clients lie within a diameter exactly when f
    clients cover every pair farther apart, so a bisection over the distances with a bounded search for a vertex cover
    finds the exact optimum, in time that grows with f and not with the number of subsets; more than `max_work` steps
    are refused. Several sets may share the least diameter: which is taken depends on the clients' order.
    Withstands f attackers among M >= 2f + 1 clients.

    >>> MDA(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [90.0]])).round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """

    max_work: int = 10**9

    def weigh(self, geometry: Geometry) -> Floats:
        from bartizan.kernels import weigh

        D, f = geometry.squared_distances, self.n_byzantine
        M = len(D)
        passes_left = self.max_work // M
        diameters = np.unique(D[np.tri(M, dtype=bool)])
        low, high, removed = 0, len(diameters) - 1, np.arange(M - f, M)
        while low <= high:
            middle = (low + high) // 2
            cover, passes = weigh.vertex_cover(diameters[middle] < D, f, passes_left)
            passes_left -= passes
            if passes_left < 0:
                raise ValueError(
                    f"MDA gave up after max_work={self.max_work} steps: {M} clients with n_byzantine={f} are too many "
                    f"to search exactly. Raise max_work, lower n_byzantine, or use MultiKrum."
                )
            if cover is None:
                low = middle + 1
            else:
                high, removed = middle - 1, cover
        kept = np.delete(np.arange(M), removed)
        # Where the cover needed fewer than f clients, the farthest of the rest go too.
        return averaged(kept[smallest(D[np.ix_(kept, kept)].sum(axis=1), M - f)], geometry)
