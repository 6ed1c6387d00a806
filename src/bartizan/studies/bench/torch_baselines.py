"""What one would write in torch in an afternoon: the rules by their definitions, on all p coordinates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from bartizan._util import machine
from bartizan.studies.bench.engines import Answer, Engine, Job
from bartizan.studies.bench.problem import Problem

STEPS, TOLERANCE = 1000, 1e-6  # float32 sums carry no more


class Torch(Engine):
    """The rules on a tensor; how distances are taken is left to a subclass."""

    def job(self, rule: str, problem: Problem) -> Job | None:
        torch = machine.torch_for(f"The engine {self.name}")
        own: Callable[..., Any] | None = {
            "krum": self._krum,
            "multi-krum": self._multi_krum,
            "bulyan": self._bulyan,
            "geometric-median": self._geometric_median,
            "mca": self._mca,
        }.get(rule)
        if own is None:
            return None
        x = problem.tensor()
        return Job(lambda given: Answer(own(torch, x, problem.byzantine)))

    @abstractmethod
    def pairs(self, torch: Any, x: Any) -> Any:
        """Squared distances of all pairs, the diagonal infinite."""

    @abstractmethod
    def to_point(self, torch: Any, x: Any, z: Any) -> Any:
        """Distances of all rows to a point."""

    def _scores(self, torch: Any, D: Any, n_neighbours: int) -> Any:
        return D.sort(dim=1).values[:, :n_neighbours].sum(dim=1)

    def _krum(self, torch: Any, x: Any, f: int) -> Any:
        return x[self._scores(torch, self.pairs(torch, x), len(x) - f - 2).argmin()].clone()

    def _multi_krum(self, torch: Any, x: Any, f: int) -> Any:
        scores = self._scores(torch, self.pairs(torch, x), len(x) - f - 2)
        return x[scores.argsort()[: len(x) - f]].mean(dim=0)

    def _bulyan(self, torch: Any, x: Any, f: int) -> Any:
        """The selection and its mean, as `Bulyan` without `trim`."""
        D = self.pairs(torch, x)
        left = list(range(len(x)))
        selected: list[int] = []
        while len(selected) < len(x) - 2 * f:
            n_neighbours = min(max(len(left) - f - 2, f, 1), len(left) - 1)
            scores = self._scores(torch, D[left][:, left], n_neighbours)
            selected.append(left.pop(int(scores.argmin())))
        return x[selected].mean(dim=0)

    def _geometric_median(self, torch: Any, x: Any, f: int) -> Any:
        z = x.mean(dim=0)
        for _ in range(STEPS):
            weights = 1 / self.to_point(torch, x, z).clamp_min(1e-12)
            z, last = (weights / weights.sum()).to(x.dtype) @ x, z
            if (z - last).norm() <= TOLERANCE * last.norm():
                break
        return z

    def _mca(self, torch: Any, x: Any, f: int) -> Any:
        D = self.pairs(torch, x).fill_diagonal_(0)
        row = D[self._middle(torch, D).argmin()]
        width, z = self._middle(torch, row[None]).sqrt(), x[row.argmin()]
        for _ in range(STEPS):
            squares = self.to_point(torch, x, z) ** 2
            weights = ((squares.min() - squares) / (2 * width**2)).exp()
            z, last = (weights / weights.sum()).to(x.dtype) @ x, z
            if (z - last).norm() <= TOLERANCE * last.norm():
                break
        return z

    def _middle(self, torch: Any, D: Any) -> Any:
        """Medians of rows, half-way between the two middle values."""
        ordered, n = D.sort(dim=1).values, D.shape[1]
        return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2


class Cdist(Torch):
    """`torch.cdist` for all distances at once."""

    name = "torch-cdist"

    def pairs(self, torch: Any, x: Any) -> Any:
        D = torch.cdist(x, x).square()
        return D.fill_diagonal_(float("inf"))

    def to_point(self, torch: Any, x: Any, z: Any) -> Any:
        return torch.cdist(x, z[None])[:, 0]


class PairLoop(Torch):
    """A Python loop over the pairs."""

    name = "pair-loop"

    def pairs(self, torch: Any, x: Any) -> Any:
        D = torch.full((len(x), len(x)), float("inf"), device=x.device)
        for i in range(len(x)):
            for j in range(i):
                D[i, j] = D[j, i] = (x[i] - x[j]).norm() ** 2
        return D

    def to_point(self, torch: Any, x: Any, z: Any) -> Any:
        return torch.stack([(row - z).norm() for row in x])
