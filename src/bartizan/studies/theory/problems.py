r"""Losses with known constants: :math:`F_m(w) = f(w) + \langle v_m, w \rangle` with :math:`\sum_m v_m = 0`.

Clients differ in a linear term only, so their gradients differ by :math:`v_m` everywhere, and kappa is the longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats


@dataclass(frozen=True, eq=False)
class Quadratic:
    """f(w) = sum_i h_i w_i^2 / 2, h from mu to L: strongly convex, least at 0."""

    curvatures: Floats
    convexity: float
    smoothness: float

    @classmethod
    def of(cls, dim: int, convexity: float = 1.0, smoothness: float = 4.0) -> Quadratic:
        return cls(np.linspace(convexity, smoothness, dim), convexity, smoothness)

    def start(self) -> Floats:
        """At squared distance 100 from the minimum."""
        return np.full(len(self.curvatures), 10 / np.sqrt(len(self.curvatures)))

    def value(self, w: Floats) -> float:
        return float(self.curvatures @ (w * w) / 2)

    def gradient(self, w: Floats) -> Floats:
        return self.curvatures * w


@dataclass(frozen=True, eq=False)
class Bumps:
    """f(w) = h sum_i u_i^2 / (1 + u_i^2), u = w / sqrt(h): smooth with L = 2, concave where |u| > 1 / sqrt(3)."""

    dim: int
    height: float
    smoothness: float = 2.0

    @classmethod
    def of(cls, dim: int) -> Bumps:
        return cls(dim, 100 / dim)

    def start(self) -> Floats:
        """In the concave part, at u = 1."""
        return np.full(self.dim, np.sqrt(self.height))

    def value(self, w: Floats) -> float:
        squares = w * w / self.height
        return float(self.height * (squares / (1 + squares)).sum())

    def gradient(self, w: Floats) -> Floats:
        return 2 * w / (1 + w * w / self.height) ** 2


Problem = Quadratic | Bumps
PROBLEMS: dict[str, type[Quadratic] | type[Bumps]] = {"strongly convex": Quadratic, "non-convex": Bumps}
