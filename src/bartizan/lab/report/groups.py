"""Cells of the table of rules and attacks, curves and server times of runs that differ only in their seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Floats
from bartizan.lab.metrics import ACCURACY, Metric
from bartizan.lab.report.factors import Factors
from bartizan.lab.report.run_data import SERVER_STAGES, Run, mean, quantiles

K = TypeVar("K")
MAX_CURVE_POINTS = 240
"""Points of one curve, at most: more can't be told apart on a page."""


@dataclass(frozen=True)
class GridCell:
    """The accuracy, or perplexity, of one rule under one attack, over all seeds."""

    other: str
    sketch: str
    rule: str
    attack: str
    n: int
    n_converged: int
    n_unfinished: int
    last: tuple[float, float]
    """Mean and standard deviation over the runs that converged; NaN if there is none, or only one."""
    best: tuple[float, float]
    least: float
    """The worst end of a run that converged."""
    ended: float
    """Mean over all runs, also those that stayed near guessing; NaN if a model was no longer finite."""
    on_attackers: float
    """Fraction of the weight on attackers, mean over rounds and runs; NaN if unknown."""
    backdoor: tuple[float, float] = (math.nan, math.nan)
    """Success of a backdoor at the end, mean and standard deviation over all runs; NaN without one."""
    metric: Metric = ACCURACY


@dataclass(frozen=True)
class Curve:
    """A number per round: mean, minimum and maximum over seeds."""

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
class ServerTime:
    """The server's time per round with one rule: medians over all rounds and seeds, and their spread."""

    other: str
    """Other settings that differ between the runs, and the machine if there are several."""
    rule: str
    sketch: str
    seconds: float
    parts: tuple[float, ...]
    """Seconds to sketch, to weigh, to combine: their medians, scaled to the sum `seconds`."""
    reads: float
    seconds_range: tuple[float, float]
    """The 10th and the 90th percentile over all rounds and seeds."""
    reads_range: tuple[float, float]


def cells(runs: Sequence[Run], factors: Sequence[Factors]) -> list[GridCell]:
    """Return a cell for each combination that has an accuracy or did not converge."""
    return [
        GridCell(
            *key,
            n=len(group),
            n_converged=sum(run.converged for run in group),
            n_unfinished=sum(run.status == "unfinished" for run in group),
            last=_spread([run.last for run in group if run.converged]),
            best=_spread([run.best for run in group if run.converged]),
            least=group[0].metric.worst(run.last for run in group if run.converged),
            ended=math.nan if any(run.status == "diverged" for run in group) else _spread([r.last for r in group])[0],
            on_attackers=float(mean(np.concatenate([run.on_attackers() for run in group]), axis=0)),
            backdoor=_spread([run.backdoor for run in group]),
            metric=group[0].metric,
        )
        for key, group in _grouped(runs, [(f.other, f.sketch, f.rule, f.attack) for f in factors]).items()
        if any(math.isfinite(run.last) or not run.converged for run in group)
    ]


def curves(runs: Sequence[Run], factors: Sequence[Factors], name: str) -> list[Curve]:
    """Return a curve of one of the round's numbers, such as `accuracy`, for each combination that has it."""
    found = []
    for key, group in _grouped(runs, [(f.other, f.attack, f.rule, f.sketch) for f in factors]).items():
        values = np.full((len(group), max(run.n_rounds for run in group)), math.nan)
        for row, run in zip(values, group, strict=True):
            row[: run.n_rounds] = run.series[name]
        rounds = np.flatnonzero(np.isfinite(values).any(axis=0))
        if rounds.size:
            found.append(Curve(*key, n=len(group), **_thinned(rounds, values[:, rounds])))
    return found


def times(runs: Sequence[Run], factors: Sequence[Factors]) -> list[ServerTime]:
    """Return the server's time for each combination that was timed, per machine."""
    machines = [run.versions.get("machine", "") for run in runs]
    several = len(set(machines)) > 1
    keys = [
        (", ".join(filter(None, (f.other, machine if several else ""))), f.rule, f.sketch)
        for f, machine in zip(factors, machines, strict=True)
    ]
    found = []
    for key, group in _grouped(runs, keys).items():
        spent, reads = [run.server for run in group], [run.reads for run in group]
        low, seconds, high = quantiles(spent, 0.1, 0.5, 0.9)
        if math.isfinite(seconds):
            least_reads, median_reads, most_reads = quantiles(reads, 0.1, 0.5, 0.9)
            timed = [
                quantiles([run.series[part][np.isfinite(run.server)] for run in group], 0.5)[0]
                for part in SERVER_STAGES
            ]
            parts = tuple(seconds * part / np.nansum(timed) for part in timed)
            found.append(ServerTime(*key, seconds, parts, median_reads, (low, high), (least_reads, most_reads)))
    return found


def _grouped(runs: Sequence[Run], keys: Sequence[K]) -> dict[K, list[Run]]:
    groups: dict[K, list[Run]] = {}
    for run, key in zip(runs, keys, strict=True):
        groups.setdefault(key, []).append(run)
    return groups


def _thinned(rounds: npt.NDArray[np.intp], values: Floats) -> dict[str, Any]:
    """Thin a curve to at most `MAX_CURVE_POINTS` intervals: each keeps its last mean, its minimum and its maximum."""
    middle, low, high = mean(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    edges = np.unique(np.linspace(0, len(rounds), min(MAX_CURVE_POINTS, len(rounds)) + 1).astype(int))
    return {
        "rounds": (rounds[edges[1:] - 1] + 1).tolist(),
        "mean": middle[edges[1:] - 1].tolist(),
        "low": np.minimum.reduceat(low, edges[:-1]).tolist(),
        "high": np.maximum.reduceat(high, edges[:-1]).tolist(),
    }


def _spread(values: list[float]) -> tuple[float, float]:
    known = [value for value in values if math.isfinite(value)]
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else math.nan
    return (float(np.mean(known)) if known else math.nan, deviation)
