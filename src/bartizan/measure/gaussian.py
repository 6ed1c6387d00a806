"""The dense Gaussian matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bartizan._util.seeds import key_of
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.measure.base import Projection
from bartizan.measure.guarantees import gaussian_range


@dataclass(frozen=True)
class Gaussian(Projection):
    """Independent entries N(0, 1/k), for which the embedding theorem holds, at k multiplications a coordinate.

    >>> Gaussian(k=16)([[1.0, 2.0, 3.0]], seed=0).shape
    (1, 16)
    """

    most: ClassVar[int | None] = 4096

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        return gaussian_range(int(self.k), odds)

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.gaussian(rows, origin, start, key_of(seed), out, norms)
