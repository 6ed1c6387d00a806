"""Baselines in plain torch: the rules by their definitions, on all p coordinates."""

from __future__ import annotations

from functools import partial
from typing import Any

from bartizan._util import machine
from studies.speed.engines import Engine, Rules
from studies.speed.problem import Problem

STEPS, TOLERANCE = 1000, 1e-6  # of the iterations; float32 sums have no more digits


class Torch(Engine):
    """The mean and the coordinate-wise rules by torch's operations on one tensor."""

    name = "torch"

    def rules(self, problem: Problem) -> Rules:
        f = problem.byzantine
        return {
            "mean": lambda x: x.mean(dim=0),
            "median": lambda x: _median(x.sort(dim=0).values),
            "trimmed-mean": lambda x: x.sort(dim=0).values[f : len(x) - f].mean(dim=0),
            "meamed": partial(self._meamed, f),
        }

    def _meamed(self, f: int, x: Any) -> Any:
        away = (x - _median(x.sort(dim=0).values)).abs()
        return x.gather(0, away.argsort(dim=0)[: len(x) - f]).mean(dim=0)


def _median(ordered: Any) -> Any:
    """Return the mean of the two middle rows."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


class PairLoop(Engine):
    """The rules on one tensor, with distances by a Python loop over the pairs."""

    name = "pair-loop"

    def rules(self, problem: Problem) -> Rules:
        f = problem.byzantine
        return {
            "krum": partial(self._krum, f),
            "multi-krum": partial(self._multi_krum, f),
            "bulyan": partial(self._bulyan, f),
            "geometric-median": self._geometric_median,
            "mca": self._mca,
        }

    def pairs(self, x: Any) -> Any:
        """Return the squared distances of all pairs, with an infinite diagonal."""
        D = machine.torch_for(self.name).full((len(x), len(x)), float("inf"), device=x.device)
        for i in range(len(x)):
            for j in range(i):
                D[i, j] = D[j, i] = (x[i] - x[j]).norm() ** 2
        return D

    def distances_to(self, x: Any, z: Any) -> Any:
        """Return the distances of all rows to a point."""
        return machine.torch_for(self.name).stack([(row - z).norm() for row in x])

    def _krum(self, f: int, x: Any) -> Any:
        return x[_scores(self.pairs(x), len(x) - f - 2).argmin()].clone()

    def _multi_krum(self, f: int, x: Any) -> Any:
        scores = _scores(self.pairs(x), len(x) - f - 2)
        return x[scores.argsort()[: len(x) - f]].mean(dim=0)

    def _bulyan(self, f: int, x: Any) -> Any:
        """Return the mean of the selection, as `Bulyan` without `trim`."""
        D = self.pairs(x)
        left = list(range(len(x)))
        selected: list[int] = []
        while len(selected) < len(x) - 2 * f:
            n_neighbours = min(max(len(left) - f - 2, f, 1), len(left) - 1)
            selected.append(left.pop(int(_scores(D[left][:, left], n_neighbours).argmin())))
        return x[selected].mean(dim=0)

    def _geometric_median(self, x: Any) -> Any:
        return _iterated(x, x.mean(dim=0), lambda z: 1 / self.distances_to(x, z).clamp_min(1e-12))

    def _mca(self, x: Any) -> Any:
        D = self.pairs(x).fill_diagonal_(0)
        row = D[_row_medians(D).argmin()]
        width = _row_medians(row[None]).sqrt()

        def weights(z: Any) -> Any:
            squares = self.distances_to(x, z) ** 2
            return ((squares.min() - squares) / (2 * width**2)).exp()

        return _iterated(x, x[row.argmin()], weights)


def _scores(D: Any, n_neighbours: int) -> Any:
    return D.sort(dim=1).values[:, :n_neighbours].sum(dim=1)


def _row_medians(D: Any) -> Any:
    """Return the mean of the two middle values of each row."""
    return _median(D.sort(dim=1).values.T)


def _iterated(x: Any, z: Any, weights_at: Any) -> Any:
    """Repeat the weighted mean, with weights at the last one, until it no longer moves."""
    for _ in range(STEPS):
        weights = weights_at(z)
        z, last = (weights / weights.sum()).to(x.dtype) @ x, z
        if (z - last).norm() <= TOLERANCE * last.norm():
            break
    return z
