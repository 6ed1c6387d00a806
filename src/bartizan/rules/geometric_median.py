"""The geometric median, computed on the Gram matrix alone."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan._util.types import Floats
from bartizan.geometry import Geometry
from bartizan.rules.base import Rule, whole_number


@dataclass(frozen=True)
class GeometricMedian(Rule):
    r"""Weigh clients by Weiszfeld's iteration, run on the Gram matrix alone.

    The median minimises :math:`\sum_i S_i \|x_i - z\|` and is :math:`z = \sum_i w_i x_i` with
    :math:`w_i \propto S_i / \|x_i - z\|`, so a step needs only
    :math:`\|x_i - z\|^2 = G_{ii} - 2 (Gw)_i + w^\top G w`: never a p-vector. Where z meets a client it stays, or
    leaves it, as Vardi and Zhang (2000) show. Stops when a step is shorter than `tolerance` times the median
    distance. Withstands attackers with less than half of the sizes (Chen et al., 2017).

    >>> GeometricMedian()(Geometry.of([[0.0], [1.0], [90.0]])).round(6).tolist()
    [0.0, 1.0, 0.0]
    """

    tolerance: float = 1e-8
    max_steps: int = 1000

    def __post_init__(self) -> None:
        whole_number(self, "max_steps", self.max_steps)

    def weigh(self, geometry: Geometry) -> Floats:
        from bartizan.kernels import weigh

        # If any client is the median it is the one of least summed distance: begun there, the first step shows it.
        return weigh.weiszfeld(
            geometry.inner,
            geometry.squared_distances,
            geometry.medoid,
            geometry.shares,
            self.tolerance,
            self.max_steps,
        )
