"""The fast projection: signs, a short Hadamard transform and one rotated addition for each block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bartizan._util.seeds import key_of
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.kernels.rows import unit_of
from bartizan.measure.base import Projection
from bartizan.measure.guarantees import gaussian_range, rotated_range


@dataclass(frozen=True)
class Rotated(Projection):
    r"""Sign, mix, sign, rotate, add: `mixing` non-zeros a column for log2(mixing) + 1 additions a coordinate.

    Coordinates are cut into blocks of k, a block into n = `mixing` sub-blocks of L = k/n lanes. Each coordinate gets
    a random sign; a Hadamard transform mixes the n sub-blocks, lane by lane; each result gets a second sign; each
    mixed sub-block is rotated by its own random offset inside its own L cells, and added there:

    .. math:: P = \sum_b R_b \, D'_b \, (H_n / \sqrt n \otimes I_L) \, D_b \, E_b

    with :math:`E_b` the block's coordinates. One block alone is mapped isometrically; errors come only from blocks
    that meet. Neither the subspace embedding theorem nor the bound for pairs holds: the span of one whole lane of two
    blocks loses a vector in a fifth of the seeds (mixing=32), and vectors in it have heavier tails than under a
    Gaussian matrix. For what is proven, what is measured and what an attacker can guess see
    `docs/explanation/sketches.md`.

    >>> x = np.random.default_rng(0).normal(size=(2, 10_000))
    >>> y = Rotated(k=4096)(x, seed=1)
    >>> bool(0.9 < np.sum((y[0] - y[1])**2) / np.sum((x[0] - x[1])**2) < 1.1)
    True
    """

    k: int = 4096
    mixing: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 64 or self.k & (self.k - 1):
            raise ValueError(
                f"Rotated needs k, a power of two from 64 up; got {self.k}. "
                f"The next one is {max(64, 2 ** math.ceil(math.log2(self.k)))}."
            )
        n = self.mixing
        if not isinstance(n, (int, np.integer)) or n < 1 or n & (n - 1) or n > self.k:
            raise ValueError(f"Rotated needs mixing, a power of two from 1 to k = {self.k}; got {n!r}.")

    @property
    def multiple_of(self) -> int:
        return self.k

    @cached_property
    def unit(self) -> int:
        return unit_of(self.k)

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        return rotated_range(int(self.k), int(self.mixing), odds)

    def typical_norm_ratio_range(self, odds: float) -> tuple[float, float]:
        # With less mixing any two large numbers may cancel: vectors of every client are the worst ones.
        return gaussian_range(int(self.k), odds) if self.mixing >= 16 else self.norm_ratio_range(odds)

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.rotated(rows, origin, start, key_of(seed), self.mixing, out, norms)
