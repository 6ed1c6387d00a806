"""Runs that differ in their seeds alone, put together: cells of the heatmap, curves, server times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Floats
from bartizan.lab.report.factors import Factors
from bartizan.lab.report.run_data import SERVER, Run, mean

K = TypeVar("K")
POINTS = 240
"""More than these in one curve can't be told apart in a page's width."""


@dataclass(frozen=True)
class Cell:
    """How well one rule did under one attack, over all seeds."""

    other: str
    sketch: str
    rule: str
    attack: str
    n: int
    n_converged: int
    n_unfinished: int
    last: tuple[float, float]
    """Mean and standard deviation over the runs that converged; NaN where there is none, or only one."""
    best: tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Something by rounds: the mean over seeds, least and most."""

    other: str
    attack: str
    rule: str
    sketch: str
    n: int
    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Time:
    """What one rule costs the server in a round: medians over all rounds and seeds."""

    other: str
    """What else differs between the runs, and the machine where there are several."""
    rule: str
    sketch: str
    seconds: float
    parts: tuple[float, ...]
    """To sketch, to weigh, to combine."""
    reads: float


def cells(runs: Sequence[Run], placed: Sequence[Factors]) -> list[Cell]:
    groups = _grouped(runs, [(f.other, f.sketch, f.rule, f.attack) for f in placed])
    return [
        Cell(
            *key,
            n=len(group),
            n_converged=sum(run.converged for run in group),
            n_unfinished=sum(run.status == "unfinished" for run in group),
            last=_spread([run.last for run in group if run.converged]),
            best=_spread([run.best for run in group if run.converged]),
        )
        for key, group in groups.items()
        if any(math.isfinite(run.last) or not run.converged for run in group)
    ]


def curves(runs: Sequence[Run], placed: Sequence[Factors], name: str) -> list[Curve]:
    """Of one of the round's numbers, such as `accuracy`, for all who have it."""
    found = []
    for key, group in _grouped(runs, [(f.other, f.attack, f.rule, f.sketch) for f in placed]).items():
        T = max(run.n_rounds for run in group)
        values = np.full((len(group), T), math.nan)
        for row, run in zip(values, group, strict=True):
            row[: run.n_rounds] = run.series[name]
        there = np.flatnonzero(np.isfinite(values).any(axis=0))
        if there.size:
            found.append(Curve(*key, n=len(group), **_thinned(there, values[:, there])))
    return found


def times(runs: Sequence[Run], placed: Sequence[Factors]) -> list[Time]:
    found = []
    machines = [run.versions.get("machine", "") for run in runs]
    if len(set(machines)) == 1:
        machines = [""] * len(runs)
    others = [
        ", ".join(part for part in (f.other, machine) if part) for f, machine in zip(placed, machines, strict=True)
    ]
    keys = [(other, f.rule, f.sketch) for other, f in zip(others, placed, strict=True)]
    for key, group in _grouped(runs, keys).items():
        seconds = median([run.server for run in group])
        if math.isfinite(seconds):
            parts = tuple(median([run.series[part][np.isfinite(run.server)] for run in group]) for part in SERVER)
            found.append(Time(*key, seconds=seconds, parts=parts, reads=median([run.reads for run in group])))
    return found


def _grouped(runs: Sequence[Run], keys: Sequence[K]) -> dict[K, list[Run]]:
    groups: dict[K, list[Run]] = {}
    for run, key in zip(runs, keys, strict=True):
        groups.setdefault(key, []).append(run)
    return groups


def _thinned(rounds: npt.NDArray[np.intp], values: Floats) -> dict[str, Any]:
    """The last round of each of `POINTS` stretches; low and high are of the whole stretch, so no dip is lost."""
    middle = mean(values, axis=0)
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    ends = np.unique(np.linspace(0, len(rounds), min(POINTS, len(rounds)) + 1).astype(int))[1:]
    starts = np.concatenate([[0], ends[:-1]])
    return {
        "rounds": [int(rounds[end - 1]) + 1 for end in ends],
        "mean": [float(middle[end - 1]) for end in ends],
        "low": [float(low[start:end].min()) for start, end in zip(starts, ends, strict=True)],
        "high": [float(high[start:end].max()) for start, end in zip(starts, ends, strict=True)],
    }


def _spread(values: list[float]) -> tuple[float, float]:
    known = [value for value in values if math.isfinite(value)]
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
    return (float(np.mean(known)) if known else math.nan, deviation)


def median(values: list[Floats]) -> float:
    """Of what is there in all of them; NaN where nothing is."""
    known = np.concatenate(values)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if known.size else math.nan
