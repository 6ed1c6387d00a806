"""Smallest maximum eigenvalue averaging, by trying all subsets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Bounded, Rule, averaged

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
