"""The median of each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.rules.coordinatewise.base import CoordinateWise


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
