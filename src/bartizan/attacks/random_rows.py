"""Random rows, one generator an attacker, drawn on the device of the honest updates."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan.attacks.honest_updates import Matrix, Vector, empty, narrowed
from bartizan.updates.layout import is_tensor

DRAWN = 2**18  # numbers drawn at a time in host memory


@dataclass(frozen=True)
class AttackerRandom:
    """The generator of one attacker: NumPy's, or torch's on the device of the honest updates."""

    attacker: int
    honest: Matrix
    generator: Any

    @classmethod
    def of(cls, attacker: int, honest: Matrix, seed: int) -> AttackerRandom:
        if not is_tensor(honest):
            return cls(attacker, honest, np.random.default_rng(seed))
        import torch

        return cls(attacker, honest, torch.Generator(device=honest.device).manual_seed(seed))

    def normal(self, size: int) -> Vector:
        """N(0, 1), in float64 where the honest updates are, else in float32."""
        double = self.honest.itemsize == 8
        if not is_tensor(self.honest):
            return self.generator.standard_normal(size, dtype=np.float64 if double else np.float32)
        import torch

        dtype = torch.float64 if double else torch.float32
        return torch.randn(size, generator=self.generator, dtype=dtype, device=self.honest.device)

    def bits(self, size: int) -> Any:
        """Random integers of as many bits as the honest updates' floats."""
        width = 8 * self.honest.itemsize
        most = 2 ** (width - 1)
        if not is_tensor(self.honest):
            return self.generator.integers(-most, most, size, dtype=f"int{width}")
        import torch

        integers = torch.empty(size, dtype=getattr(torch, f"int{width}"), device=self.honest.device)
        return integers.random_(-most, None if width == 64 else most, generator=self.generator)


def random_rows(
    honest: Matrix,
    count: int,
    rng: np.random.Generator,
    draw: Callable[[AttackerRandom, int, int], Vector],
    *,
    fit: bool = True,
) -> Matrix:
    """One row an attacker, from draw(own, first column, last column + 1); clipped to the dtype's range if `fit`."""
    p = honest.shape[1]
    sent = empty(honest, (count, p))
    step = p if is_tensor(honest) else DRAWN

    def fill(attacker: int) -> None:
        own = AttackerRandom.of(attacker, honest, int(seeds[attacker]))
        with np.errstate(over="ignore", invalid="ignore"):
            for low in range(0, p, step):
                high = min(p, low + step)
                drawn = draw(own, low, high)
                sent[attacker, low:high] = narrowed(drawn, sent) if fit else drawn

    # Seeds, not rng.spawn: the rows are then a function of the generator's state alone.
    seeds = rng.integers(2**63, size=count)
    if is_tensor(honest):
        for attacker in range(count):
            fill(attacker)
    else:
        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, range(count)))
    return sent
