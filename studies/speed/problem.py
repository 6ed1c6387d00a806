"""The updates of a benchmark, and each rule's answer by its definition in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan._util import machine
from bartizan._util.types import Floats
from bartizan.kernels import reference
from bartizan.measure.geometry import Geometry
from bartizan.measure.measurements import Measurements
from bartizan.rules.base import CoordinateStage, CoordinateWise, Rule
from bartizan.updates import Updates, parse_updates

BLOCK_WIDTH = 2**16  # columns widened to float64 at a time
NOISE_STEP = 64  # coordinates between the pieces of noise that two clients get
ATTACKER_NOISE = 5.0  # noise of the attackers, relative to the honest clients'


@dataclass(frozen=True, eq=False)
class Problem:
    """M updates in one array or tensor; the first `byzantine` are the attackers'."""

    x: Any
    byzantine: int
    dtype: str
    device: str

    @classmethod
    def draw(cls, clients: int, byzantine: int, dim: int, dtype: str, device: str, seed: int = 0) -> Problem:
        """Draw the updates: honest ones have a common direction and noise three times as long, attackers louder noise.

        All noise is cut from one stretch of white noise, in pieces that start at different places.
        """
        size = 8 if dtype == "float64" else 2 if "16" in dtype else 4
        free = machine.free_memory(device)
        if clients * dim * size > 0.9 * free:
            raise MemoryError(
                f"{clients} clients of {dim:,} {dtype} coordinates take {clients * dim * size / 1e9:.1f} GB, and "
                f"{free / 1e9:.1f} GB are free. Take a smaller --dim or fewer --clients."
            )
        rng = np.random.default_rng(seed)
        cuts = NOISE_STEP * rng.permutation(clients)
        common = rng.standard_normal(dim, dtype=np.float32) / 3
        noise = rng.standard_normal(dim + NOISE_STEP * clients, dtype=np.float32)
        x: Any = np.empty((clients, dim), dtype if dtype != "bfloat16" else "float32")
        if device == "cuda" or dtype == "bfloat16":
            torch = machine.torch_for(f"dtype {dtype} on {device}")
            common, noise = (torch.from_numpy(one).to(device) for one in (common, noise))
            x = torch.empty((clients, dim), device=device, dtype=getattr(torch, dtype))
        for m, cut in enumerate(cuts.tolist()):
            x[m] = ATTACKER_NOISE * noise[cut : cut + dim] if m < byzantine else noise[cut : cut + dim] + common
        return cls(x, byzantine, dtype, device)

    @property
    def clients(self) -> int:
        return int(self.x.shape[0])

    @property
    def dim(self) -> int:
        return int(self.x.shape[1])

    def narrowed(self, dim: int) -> Problem:
        """Return the problem on the first coordinates only."""
        return Problem(self.x[:, :dim], self.byzantine, self.dtype, self.device)

    def tensor(self) -> Any:
        """Return the updates as one torch tensor, not copied."""
        return self.x if hasattr(self.x, "dim") else machine.torch_for("This engine").from_numpy(self.x)

    @cached_property
    def updates(self) -> Updates:
        return parse_updates(self.x)

    @cached_property
    def gram(self) -> Floats:
        return self._gram(None)

    def combined(self, weights: Floats) -> Floats:
        """Return the weighted sum of the clients."""
        return np.concatenate([weights @ block for _, block in self._blocks()])

    @cached_property
    def mean(self) -> Floats:
        """The honest clients' mean."""
        return self.combined((np.arange(self.clients) >= self.byzantine) / (self.clients - self.byzantine))

    @cached_property
    def spread(self) -> float:
        """The largest distance of an honest client to the honest mean."""
        honest = np.zeros(self.clients)
        for low, block in self._blocks():
            honest += ((block - self.mean[low : low + BLOCK_WIDTH]) ** 2).sum(axis=1)
        return float(np.sqrt(honest[self.byzantine :].max()))

    def defined(self, rule: Rule | CoordinateWise) -> Floats:
        """Return the rule's answer, on exact float64 inner products and coordinates."""
        measured = Measurements(tuple(range(self.clients)), np.diag(self.gram).copy(), gram=self.gram)
        decision = rule.decide(Geometry.measured(measured, self._gram, seed=0))
        stage = decision.coordinate_stage
        return self.combined(decision.weights) if stage is None else self._reduced(stage)

    def distance(self, one: Any, other: Floats) -> float:
        """Return the distance of two vectors, relative to the honest spread."""
        return float(np.linalg.norm(_wide(one) - other)) / self.spread

    def _gram(self, row: int | None) -> Floats:
        total = np.zeros((self.clients, self.clients))
        for _, block in self._blocks():
            about = block if row is None else block - block[row]
            total += about @ about.T
        return total

    def _reduced(self, stage: CoordinateStage) -> Floats:
        values, used = np.empty((1, self.dim)), stage.used(self.clients)
        reduce = stage.kernel(reference) or (lambda rows, out: np.copyto(out[0], stage.reduce(rows)))
        for low, block in self._blocks():
            rows = block[used] if stage.mixing is None else stage.mixing @ block
            reduce(rows, out=values[:, low : low + BLOCK_WIDTH])
        return values[0]

    def _blocks(self) -> Iterator[tuple[int, Floats]]:
        for low in range(0, self.dim, BLOCK_WIDTH):
            yield low, _wide(self.x[:, low : low + BLOCK_WIDTH])


def _wide(values: Any) -> Floats:
    """Return values in float64 and in host memory."""
    return values.double().cpu().numpy() if hasattr(values, "double") else np.asarray(values, dtype=np.float64)
