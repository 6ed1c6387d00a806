"""The paper's sparse random matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bartizan._util.seeds import key_of
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.measure.base import Projection
from bartizan.measure.guarantees import achlioptas_range


@dataclass(frozen=True)
class Achlioptas(Projection):
    r"""The paper's sparse matrix: independent entries sqrt(s/k) {+1, 0, -1} with odds 1/2s, 1 - 1/s, 1/2s.

    After Achlioptas (2003), who has s = 3. Each column holds about k/s non-zeros, so a sketch costs k/s additions a
    coordinate (512 at the paper's k=4096, s=8), not one: the reference to compare `Rotated` with, not what to deploy.

    >>> np.unique(Achlioptas(k=64, s=4)([[1.0]], seed=1)).tolist()
    [-0.25, 0.0, 0.25]
    """

    s: int = 8

    most: ClassVar[int | None] = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.s, (int, np.integer)) or not 1 <= self.s < 2**31:
            raise ValueError(
                f"Achlioptas needs s, a whole number from 1 on (one entry in s is not zero); got {self.s!r}."
            )

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        return achlioptas_range(int(self.k), int(self.s), odds)

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.achlioptas(rows, origin, start, key_of(seed), self.s, out, norms)
