"""Rules that search all sets of M - f clients for the tightest one: by its diameter, or by its largest variance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import numpy as np

from bartizan._util.types import Array, Floats
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


BATCH_ENTRIES = 2**20  # of the matrices whose eigenvalues are computed at once


@dataclass(frozen=True)
class SMEA(Bounded, Rule):
    """Average, by sizes, the M - f clients whose covariance has the smallest largest eigenvalue.

    Allouah et al., 2023. There are C(M, f) sets to try, at (M - f)^3 steps each: beyond `max_work` in all the rule
    refuses. Withstands f attackers among M >= 2f + 1 clients.

    >>> SMEA(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [90.0]])).round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """

    max_work: int = 10**9

    def check(self, n_clients: int) -> None:
        """Raise TooFewClientsError unless the breakdown condition holds, and ValueError beyond `max_work`."""
        super().check(n_clients)
        M, f = n_clients, self.n_byzantine
        if comb(M, f) * (M - f) ** 3 > self.max_work:
            raise ValueError(
                f"SMEA with {M} clients and n_byzantine={f} has more sets to try than max_work={self.max_work} allows. "
                "Use MDA or SpectralDnC, which serve at this size."
            )

    def weigh(self, geometry: Geometry) -> Floats:
        C, f = geometry.centred, self.n_byzantine
        M = len(C)
        sets = combinations(range(M), M - f)
        best, least = np.arange(M - f), np.inf
        while batch := list(islice(sets, max(1, BATCH_ENTRIES // (M - f) ** 2))):
            spreads = _spreads(C, np.array(batch))
            if spreads.min() < least:
                best, least = np.array(batch[spreads.argmin()]), spreads.min()
        return averaged(best, geometry)


def _spreads(C: Floats, sets: Array) -> Floats:
    """Return the largest eigenvalue of each set's scatter, from inner products about the set's mean."""
    inner = C[sets[:, :, None], sets[:, None, :]]
    inner = (
        inner
        - inner.mean(axis=1, keepdims=True)
        - inner.mean(axis=2, keepdims=True)
        + inner.mean(axis=(1, 2), keepdims=True)
    )
    return np.linalg.eigvalsh(inner)[:, -1]
