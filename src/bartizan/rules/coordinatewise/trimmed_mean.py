"""The mean of each coordinate without its extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.rules.coordinatewise.base import CoordinateWise
from bartizan.rules.robust import Bounded


@dataclass(frozen=True)
class TrimmedMean(Bounded, CoordinateWise):
    """In each coordinate, the mean, by sizes, without the f smallest and the f largest values (Yin et al., 2018).

    Withstands f attackers among M >= 2f + 1 clients.

    >>> TrimmedMean(n_byzantine=1)(np.array([[1.0], [2.0], [4.0], [90.0]]), np.ones(4)).tolist()
    [3.0]
    """

    def reduce(self, columns: Array, sizes: Floats) -> Floats:
        f, M = self.n_byzantine, len(columns)
        if (sizes == sizes[0]).all():
            ordered = np.sort(columns, axis=0)[f : M - f]
            return ordered.mean(axis=0, dtype=np.float64)
        kept = np.argsort(columns, axis=0, kind="stable")[f : M - f]
        return weighted_mean(columns, sizes, kept)


def weighted_mean(columns: Array, sizes: Floats, kept: Array) -> Floats:
    """Down each column, the mean of the kept rows by their sizes."""
    values = np.take_along_axis(columns, kept, axis=0).astype(np.float64, copy=False)
    return (sizes[kept] * values).sum(axis=0) / sizes[kept].sum(axis=0)
