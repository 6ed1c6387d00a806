"""Gaussian noise that is added to a result, as a function of the round's seed and the coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan._util.seeds import generator_of
from bartizan._util.types import Floats
from bartizan.kernels.rows import Rows
from bartizan.updates.columns import HostRows, Row
from bartizan.updates.layout import Layout, is_tensor

BLOCK = 2**16  # coordinates that are drawn at a time, by a generator of their own


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of standard deviation `std`; coordinates count from `first`, so that shards add parts of one."""

    std: float
    seed: int
    first: int = 0

    def values(self, low: int, high: int) -> Floats:
        """The noise of coordinates low to high.

        >>> whole = Noise(2.0, seed=7).values(0, 9)
        >>> bool((Noise(2.0, seed=7, first=4).values(0, 5) == whole[4:]).all())
        True
        """
        low, high = self.first + low, self.first + high
        start = low // BLOCK
        # Bucketing draws by the generators from 0 up.
        drawn = [generator_of(self.seed, 2**32 + b).standard_normal(BLOCK) for b in range(start, -(-high // BLOCK))]
        values: Floats = self.std * np.concatenate(drawn)[low - start * BLOCK : high - start * BLOCK]
        return values

    def add_to(self, floats: Sequence[Any], layout: Layout) -> None:
        """Add the noise to the flat arrays of a result, one an entry, in place."""
        if not self.std:
            return
        p = int(layout.ends[-1])
        if any(map(is_tensor, floats)):
            import torch

            for array, end in zip(floats, layout.ends.tolist(), strict=True):
                flat, size = array.view(-1), array.numel()
                for low in range(0, size, BLOCK):
                    high = min(low + BLOCK, size)
                    flat[low:high] += torch.from_numpy(self.values(end - size + low, end - size + high)).to(flat)
            return
        from bartizan.kernels import cpu

        written = HostRows.of([Row(tuple(floats), ())], layout)
        for low in range(0, p, BLOCK):
            high = min(low + BLOCK, p)
            part = written.part(low, high)
            noisy = Rows.of(np.asarray(part, dtype=np.float64) + self.values(low, high))
            cpu.weighted_sum(noisy, np.ones(1), 0.0, None, part)
