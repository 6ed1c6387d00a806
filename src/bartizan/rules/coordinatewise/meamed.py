"""The mean around the median of each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.rules.coordinatewise.base import CoordinateWise
from bartizan.rules.coordinatewise.median import Median
from bartizan.rules.coordinatewise.trimmed_mean import weighted_mean
from bartizan.rules.robust import Bounded


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
