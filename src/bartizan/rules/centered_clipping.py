"""Centered clipping: an average of differences that are clipped to a radius."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats
from bartizan.kernels.reference import squared_distances_to
from bartizan.measure.geometry import Geometry
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

    bytes_per_pair = 0.0
    radius: float | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        if self.radius is not None:
            positive(self, "radius", self.radius, "distance, or None")
        whole_number(self, "steps", self.steps)

    @property
    def needs_distances(self) -> bool:  # type: ignore[override]
        return self.steps > 1

    def weigh(self, geometry: Geometry) -> Floats:
        from bartizan.kernels import weigh

        M = geometry.n_clients
        weights = np.zeros(M + 1)  # the last is the origin's
        weights[M] = 1.0
        for step in range(self.steps):
            # The first step's distances are the norms, which are exact also under a projection. Later ones are about a
            # client: about the origin a common part of the clients would take their digits.
            distances = geometry.norms
            if step and geometry.rows is not None:
                distances = geometry.distances_to_mean(weights[:M])
            elif step:
                distances = np.sqrt(squared_distances_to(geometry.inner[: M + 1, : M + 1], weights))[:M]
            radius = weigh.median(distances) if self.radius is None else self.radius / geometry.unit
            clipped = geometry.shares * shortening(distances, radius)
            weights *= max(1 - clipped.sum(), 0)
            weights[:M] += clipped
        return weights[:M]
