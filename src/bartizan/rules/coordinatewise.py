"""Rules that treat each coordinate separately: a random projection mixes coordinates, so none can be projected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.rules.base import Bounded, CoordinateWise

__all__ = ["CoordinateWise", "MeaMed", "Median", "TrimmedMean"]


@dataclass(frozen=True)
class Median(CoordinateWise):
    """The middle value of each coordinate, or the mean of the two middle ones (Yin et al., 2018).

    With unequal sizes: half of the data lies on either side. Withstands attackers with less than half of the data.

    >>> Median()(np.array([[1.0, 5.0], [2.0, 6.0], [90.0, -90.0]]), np.ones(3)).tolist()
    [2.0, 5.0]
    """

    def reduce(self, columns: Array, sizes: Floats) -> Floats:
        if (sizes == sizes[0]).all():
            return np.median(columns.astype(np.float64, copy=False), axis=0)
        order = np.argsort(columns, axis=0, kind="stable")
        ordered = np.take_along_axis(columns, order, axis=0).astype(np.float64)
        below = np.cumsum(sizes[order], axis=0) / sizes.sum()
        low = (below >= 0.5 - 1e-12).argmax(axis=0)
        high = (below > 0.5 + 1e-12).argmax(axis=0)
        take = np.arange(columns.shape[1])
        return (ordered[low, take] + ordered[high, take]) / 2


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


@dataclass(frozen=True)
class MeaMed(Bounded, CoordinateWise):
    """In each coordinate, the mean, by sizes, of the M - f values closest to the median (Xie et al., 2018).

    Withstands f attackers among M >= 2f + 1 clients.

    >>> MeaMed(n_byzantine=1)(np.array([[1.0], [2.0], [3.0], [90.0]]), np.ones(4)).tolist()
    [2.0]
    """

    def reduce(self, columns: Array, sizes: Floats) -> Floats:
        away = np.abs(columns - Median().reduce(columns, sizes))
        kept = np.argsort(away, axis=0, kind="stable")[: len(columns) - self.n_byzantine]
        return weighted_mean(columns, sizes, kept)
