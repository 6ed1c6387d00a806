"""The updates of a benchmark, and each rule's answer by its definition in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from bartizan._util import machine
from bartizan._util.types import Floats
from bartizan.defense.decide import weigh
from bartizan.geometry import Geometry, GramStats
from bartizan.kernels import reference
from bartizan.kernels.reference import squared_distances_to
from bartizan.rules.base import CoordinateStage, CoordinateWise, Rule
from bartizan.updates import Updates, parse_updates


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A vector of p coordinates, in float64 where the updates are."""

    values: Any


Point: TypeAlias = Floats | Coordinates
"""A vector given by its coordinates, or by weights, as the weighted sum of the clients."""

WIDTH = 2**16  # columns widened to float64 at a time
STEP = 64  # between the pieces of noise that two clients get
LOUD = 5.0  # noise of the attackers, relative to the honest clients'


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
        cuts = STEP * rng.permutation(clients)
        common = rng.standard_normal(dim, dtype=np.float32) / 3
        noise = rng.standard_normal(dim + STEP * clients, dtype=np.float32)
        x: Any = np.empty((clients, dim), dtype if dtype != "bfloat16" else "float32")
        if device == "cuda" or dtype == "bfloat16":
            torch = machine.torch_for(f"dtype {dtype} on {device}")
            common, noise = (torch.from_numpy(one).to(device) for one in (common, noise))
            x = torch.empty((clients, dim), device=device, dtype=getattr(torch, dtype))
        for m, cut in enumerate(cuts.tolist()):
            x[m] = LOUD * noise[cut : cut + dim] if m < byzantine else noise[cut : cut + dim] + common
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
        """The updates as one torch tensor, not copied."""
        return self.x if hasattr(self.x, "dim") else machine.torch_for("This engine").from_numpy(self.x)

    @cached_property
    def updates(self) -> Updates:
        return parse_updates(self.x)

    @cached_property
    def gram(self) -> Floats:
        return self._gram(None)

    @property
    def mean_weights(self) -> Floats:
        weights = np.zeros(self.clients)
        weights[self.byzantine :] = 1 / (self.clients - self.byzantine)
        return weights

    @cached_property
    def spread(self) -> float:
        """The largest distance of an honest client to the honest mean."""
        return float(np.sqrt(squared_distances_to(self.gram, self.mean_weights)[self.byzantine :].max()))

    def defined(self, rule: Rule | CoordinateWise) -> Point:
        """Return the rule's answer on exact float64 inner products."""
        stats = GramStats(self.gram, np.diag(self.gram).copy(), self._gram)
        decision = weigh(rule, Geometry.from_stats(stats, self.clients, seed=0))
        stage = decision.coordinate_stage
        return decision.weights if stage is None else Coordinates(self._reduced(stage))

    def distances(self, update: Any, points: Sequence[Point]) -> Floats:
        """Return the distances of an update to these points, in one pass over the coordinates."""
        squares = np.zeros(len(points))
        for low, block in self._blocks():
            answer = _like(update[low : low + block.shape[1]], block)
            squares += [float(((answer - _at(point, low, block)) ** 2).sum()) for point in points]
        return np.sqrt(squares)

    def distance_to_mean(self, point: Point) -> float:
        """Return the distance of a point to the honest mean, relative to the honest spread."""
        if isinstance(point, Coordinates):
            return float(self.distances(point.values, [self.mean_weights])[0]) / self.spread
        difference = point - self.mean_weights
        return float(np.sqrt(np.maximum(difference @ self.gram @ difference, 0))) / self.spread

    def _gram(self, row: int | None) -> Floats:
        total: Any = 0
        for _, block in self._blocks():
            about = block if row is None else block - block[row]
            total = total + about @ about.T
        return _numpy(total)

    def _reduced(self, stage: CoordinateStage) -> Any:
        values, used = np.empty((1, self.dim)), stage.used(self.clients)
        reduce = stage.kernel(reference) or (lambda rows, out: np.copyto(out[0], stage.reduce(rows)))
        for low, block in self._blocks():
            columns = _numpy(block)
            rows = columns[used] if stage.mixing is None else stage.mixing @ columns
            reduce(rows, out=values[:, low : low + WIDTH])
        return _like(values[0], self.x)

    def _blocks(self) -> Iterator[tuple[int, Any]]:
        for low in range(0, self.dim, WIDTH):
            yield low, _wide(self.x[:, low : low + WIDTH])


def _at(point: Point, low: int, block: Any) -> Any:
    """A point in the columns of a block, which begins at column `low`."""
    if isinstance(point, Coordinates):
        return point.values[low : low + block.shape[1]]
    return _like(point, block) @ block


def _wide(block: Any) -> Any:
    return block.double() if hasattr(block, "double") else np.asarray(block, dtype=np.float64)


def _like(values: Any, block: Any) -> Any:
    """In float64, in the library and on the device of the block."""
    if isinstance(block, np.ndarray):
        return _numpy(_wide(values))
    torch = machine.torch_for("A tensor")
    return torch.as_tensor(values, dtype=torch.float64, device=block.device)


def _numpy(result: Any) -> Floats:
    return result if isinstance(result, np.ndarray) else result.cpu().numpy()
