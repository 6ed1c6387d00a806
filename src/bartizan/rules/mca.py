"""Maximum correntropy aggregation: a Gaussian kernel around the weighted mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bartizan._util.text import quoted
from bartizan._util.types import Floats
from bartizan.kernels.reference import squared_distances_to
from bartizan.measure.geometry import Geometry
from bartizan.rules import by_rows
from bartizan.rules.base import Rule, between, positive, warn_unless, whole_number


@dataclass(frozen=True)
class MCA(Rule):
    r"""Weigh clients by a Gaussian kernel around their own weighted mean, to a fixed point.

    Maximises :math:`\sum_i S_i \exp(-\|x_i - z\|^2 / 2\sigma^2)` (Luan et al., 2024), at whose maximum
    :math:`z = \sum_i w_i x_i` with :math:`w_i \propto S_i \exp(-\|x_i - z\|^2 / 2\sigma^2)`. `width` is sigma, or
    None for the median distance to the medoid, which less than half of the clients can't move. Starts at that medoid.

    With `start="mean"` it starts at the mean, and None is the mean distance to it. Attackers move both, and several
    of them on one side move the result without bound: a variant to compare with, not to defend with.

    >>> MCA()(Geometry.of([[0.0], [1.0], [2.0], [90.0]])).round(2).tolist()
    [0.27, 0.45, 0.27, 0.0]
    """

    bytes_per_pair = 0.0
    width: float | None = None
    tolerance: float = 1e-8
    max_steps: int = 1000
    start: str = "medoid"

    def __post_init__(self) -> None:
        if self.start not in ("medoid", "mean"):
            raise ValueError(f"MCA needs start, 'medoid' or 'mean'; got {quoted(self.start, 60)}.")
        if self.width is not None:
            positive(self, "width", self.width, "distance, or None for the median distance")
        between(self, "tolerance", self.tolerance, 0, 1, "a part of the median distance")
        whole_number(self, "max_steps", self.max_steps)

    def weigh(self, geometry: Geometry) -> Floats:
        from bartizan.kernels import weigh

        shares, medoid = geometry.shares, geometry.medoid
        if self.start == "medoid":
            start, squares = np.eye(1, geometry.n_clients, medoid)[0], geometry.squared_distances_from(medoid)
            usual = math.sqrt(geometry.spread)
        else:
            rows = geometry.rows
            squares = squared_distances_to(geometry.centred, shares) if rows is None else rows.squares_to_mean(shares)
            start = shares
            usual = float(shares @ np.sqrt(squares))
        width = usual if self.width is None else self.width / geometry.unit
        if width == 0:
            here = squares == 0
            return shares * here / shares[here].sum()
        steps = shares, width, self.tolerance, self.max_steps
        if geometry.rows is not None:
            weights, reached = by_rows.correntropy(geometry.rows, start, *steps)
        else:
            weights, reached = weigh.correntropy(geometry.inner, start, *steps)
        warn_unless(reached, self)
        return weights
