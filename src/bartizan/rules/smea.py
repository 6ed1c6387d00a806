"""Smallest maximum eigenvalue averaging."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import numpy as np

from bartizan.geometry import Geometry
from bartizan.robust import Bounded
from bartizan.rules.base import Rule, averaged
from bartizan.types import Array, Floats


@dataclass(frozen=True)
class SMEA(Bounded, Rule):
    """Average, by sizes, the M - f clients whose covariance has the smallest largest eigenvalue.

    Allouah et al., 2023. There are C(M, f) sets to try: up to `max_sets` of them are all tried, beyond that the rule
    refuses, unless `greedy=True`: then clients leave one by one, each time the one without whom that eigenvalue
    is least (an approximation, without the paper's guarantee). Withstands f liars among M >= 2f + 1 clients.

    >>> SMEA(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [90.0]])).round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """

    greedy: bool = False
    max_sets: int = 200_000

    def weigh(self, geometry: Geometry) -> Floats:
        C, f = geometry.centred, self.n_byzantine
        M = len(C)
        if self.greedy:
            kept = np.arange(M)
            for _ in range(f):
                smaller = np.array([np.delete(kept, i) for i in range(len(kept))])
                kept = smaller[_spreads(C, smaller).argmin()]
            return averaged(kept, geometry)
        if comb(M, f) > self.max_sets:
            raise ValueError(
                f"SMEA with {M} clients and n_byzantine={f} has {comb(M, f)} sets to try, more than max_sets="
                f"{self.max_sets}. Use SMEA(n_byzantine={f}, greedy=True), or MDA, which is exact at this size."
            )
        sets = combinations(range(M), M - f)
        best, least = np.arange(M - f), np.inf
        while batch := list(islice(sets, 4096)):
            spreads = _spreads(C, np.array(batch))
            if spreads.min() < least:
                best, least = np.array(batch[spreads.argmin()]), spreads.min()
        return averaged(best, geometry)


def _spreads(C: Floats, sets: Array) -> Floats:
    """The largest eigenvalue of each set's scatter, from inner products centred on the set's mean."""
    inner = C[sets[:, :, None], sets[:, None, :]]
    inner = (
        inner
        - inner.mean(axis=1, keepdims=True)
        - inner.mean(axis=2, keepdims=True)
        + inner.mean(axis=(1, 2), keepdims=True)
    )
    return np.linalg.eigvalsh(inner)[:, -1]
