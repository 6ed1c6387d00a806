"""Centered clipping: an average of differences that are clipped to a radius."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats
from bartizan.geometry import Geometry
from bartizan.kernels.reference import squared_distances_to
from bartizan.rules.base import Rule, positive, shortening, whole_number


@dataclass(frozen=True)
class CenteredClipping(Rule):
    r"""Move from the origin by the average of the clients' differences, each clipped to a radius.

    :math:`v \leftarrow v + \sum_i S_i (x_i - v) \min(1, \tau / \|x_i - v\|)`, `steps` times from the origin
    (Karimireddy et al., 2021, equation 6): the `reference`, where there is one. `radius` is tau, or None for the median
    distance to v in each step. What was clipped off stays at the origin, so weights may sum to less than 1.

    >>> CenteredClipping(radius=1.0)(Geometry.of([[1.0], [1.0], [1.0], [100.0]])).tolist()
    [0.25, 0.25, 0.25, 0.0025]
    """

    radius: float | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        if self.radius is not None:
            positive(self, "radius", self.radius, "distance, or None")
        whole_number(self, "steps", self.steps)

    def weigh(self, geometry: Geometry) -> Floats:
        weights = np.zeros(geometry.n_clients)
        for step in range(self.steps):
            # The first step's distances are the norms, which are exact also under a projection.
            distances = geometry.norms if step == 0 else np.sqrt(squared_distances_to(geometry.gram, weights))
            radius = float(np.median(distances)) if self.radius is None else self.radius
            clipped = geometry.shares * shortening(distances, radius)
            weights = weights * (1 - clipped.sum()) + clipped
        return weights
