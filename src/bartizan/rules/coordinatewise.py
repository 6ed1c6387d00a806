"""Rules that treat each coordinate separately; none can be projected, since a projection mixes coordinates."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import Kernels
from bartizan.kernels.rows import CODES, Rows
from bartizan.rules.base import Bounded, ColumnKernel, CoordinateWise

__all__ = ["CoordinateWise", "MeaMed", "Median", "TrimmedMean"]


class OrderStatistic(CoordinateWise):
    """A coordinate-wise rule with a kernel that sorts each column."""

    @abstractmethod
    def kernel(self, kernels: Kernels) -> ColumnKernel: ...

    def reduce(self, columns: Array, sizes: Floats) -> Floats:
        known = columns.dtype.kind == "f" and columns.dtype in CODES and columns.dtype.isnative
        rows = Rows.of(np.require(columns, None if known else np.float64, "A"))
        out = np.empty((1, rows.width))
        if out.size:
            self.kernel(rows.kernels)(rows, sizes=np.asarray(sizes, dtype=np.float64), out=Rows.of(out))
        return out[0]


@dataclass(frozen=True)
class Median(OrderStatistic):
    """The middle value of each coordinate, or the mean of the two middle ones (Yin et al., 2018).

    With unequal sizes: half of the data lies on either side. Withstands attackers with less than half of the data.

    >>> Median()(np.array([[1.0, 5.0], [2.0, 6.0], [90.0, -90.0]]), np.ones(3)).tolist()
    [2.0, 5.0]
    """

    def kernel(self, kernels: Kernels) -> ColumnKernel:
        return kernels.median


@dataclass(frozen=True)
class TrimmedMean(Bounded, OrderStatistic):
    """The mean of each coordinate, by sizes, without the f smallest and the f largest values (Yin et al., 2018).

    Of equal values those of smaller clients count as smaller. Withstands f attackers among M >= 2f + 1 clients.

    >>> TrimmedMean(n_byzantine=1)(np.array([[1.0], [2.0], [4.0], [90.0]]), np.ones(4)).tolist()
    [3.0]
    """

    def kernel(self, kernels: Kernels) -> ColumnKernel:
        return partial(kernels.trimmed_mean, f=self.n_byzantine)


@dataclass(frozen=True)
class MeaMed(Bounded, OrderStatistic):
    """The mean of each coordinate, by sizes, of the M - f values closest to its median (Xie et al., 2018).

    Of two values equally far from the median the smaller one is kept, so the clients' order does not matter. Withstands
    f attackers among M >= 2f + 1 clients.

    >>> MeaMed(n_byzantine=1)(np.array([[1.0], [2.0], [3.0], [90.0]]), np.ones(4)).tolist()
    [2.0]
    """

    def kernel(self, kernels: Kernels) -> ColumnKernel:
        return partial(kernels.meamed, f=self.n_byzantine)
