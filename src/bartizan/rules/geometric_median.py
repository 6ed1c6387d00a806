"""The geometric median, computed on the Gram matrix alone."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules import by_rows
from bartizan.rules.base import Rule, between, warn_unless, whole_number


@dataclass(frozen=True)
class GeometricMedian(Rule):
    r"""Weigh clients by the geometric median, computed on the Gram matrix alone.

    The median minimises :math:`\sum_i S_i \|x_i - z\|` and is :math:`z = \sum_i w_i x_i` with
    :math:`w_i \propto S_i / \|x_i - z\|`, so a step needs only
    :math:`\|x_i - z\|^2 = G_{ii} - 2 (Gw)_i + w^\top G w`: never a p-vector. Begins at the best client and stays there
    if it is the median (Vardi and Zhang, 2000); else each step of Weiszfeld's iteration is followed by a search along
    the line through the last two, until a step is shorter than `tolerance` times the median distance. That takes 5 to
    20 steps; if `max_steps` are too few, a warning says so. Between two equal groups the median is their average. Where
    clients are on one line to 1e-4 of their distances, the sum is so flat along it that rounding moves the minimum.
    Withstands attackers with less than half of the sizes (Chen et al., 2017).

    >>> GeometricMedian()(Geometry.of([[0.0], [1.0], [90.0]])).round(6).tolist()
    [0.0, 1.0, 0.0]
    """

    bytes_per_pair = 0.0
    tolerance: float = 1e-8
    max_steps: int = 1000

    def __post_init__(self) -> None:
        between(self, "tolerance", self.tolerance, 0, 1, "a part of the median distance")
        whole_number(self, "max_steps", self.max_steps)

    def weigh(self, geometry: Geometry) -> Floats:
        from bartizan.kernels import weigh

        shares = geometry.shares
        if geometry.rows is not None:
            weights, reached = by_rows.geometric_median(geometry.rows, shares, self.tolerance, self.max_steps)
        else:
            D, medoid = geometry.squared_distances, geometry.medoid
            weights, reached = weigh.weiszfeld(geometry.inner, D, medoid, shares, self.tolerance, self.max_steps)
        warn_unless(reached, self)
        return weights
