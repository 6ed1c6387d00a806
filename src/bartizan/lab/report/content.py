"""All that a page shows, as one object for JSON."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan._util.arguments import short
from bartizan._util.text import text
from bartizan.lab.report import pack
from bartizan.lab.report.factors import Factors, coordinatewise, differing, factors, order, plain
from bartizan.lab.report.finding import counted, findings, percent
from bartizan.lab.report.groups import Cell, Curve, Time, cells, curves, median, times
from bartizan.lab.report.load import Loaded
from bartizan.lab.report.pack import rounded
from bartizan.lab.report.run_data import Run, mean

SPLIT = 300_000
"""Numbers of data splits in a page, over all runs."""


@dataclass(frozen=True)
class Content:
    """Runs, how they are placed among each other, and what was made of them."""

    title: str
    loaded: Loaded
    placed: list[Factors]
    cells: list[Cell]
    curves: dict[str, list[Curve]]
    times: list[Time]
    findings: list[str]
    featured: int
    """The run whose clients are shown first."""

    @property
    def runs(self) -> list[Run]:
        return self.loaded.runs


def content(loaded: Loaded, title: str | None = None) -> Content:
    runs = loaded.runs
    placed = factors(runs)
    grid, costs = cells(runs, placed), times(runs, placed)
    names = list(dict.fromkeys(run.name for run in runs if run.name))
    return Content(
        title=text(title or (names[0] if len(names) == 1 else loaded.folder.resolve().name)),
        loaded=loaded,
        placed=placed,
        cells=grid,
        curves={name: curves(runs, placed, name) for name in ("accuracy", "backdoor")},
        times=costs,
        findings=findings(runs, placed, grid, costs),
        featured=_featured(runs, placed),
    )


def data(made: Content) -> dict[str, Any]:
    """The content as the page's script reads it."""
    runs, placed = made.runs, made.placed
    cohorts, splits = _Once(), _Once(budget=SPLIT)
    varied = differing(runs)
    shared = runs[0].config if runs else {}
    return {
        "cards": [{"label": label, "value": value, "note": note} for label, value, note in _cards(made)],
        "problems": list(_problems(made)),
        "known": any(run.byzantine is not None for run in runs),
        "rules": order(f.rule for f in placed),
        "sketches": order(f.sketch for f in placed),
        "attacks": order(f.attack for f in placed),
        "others": order(f.other for f in placed),
        "cells": [_cell(cell) for cell in made.cells],
        "curves": {name: [_curve(curve) for curve in many] for name, many in made.curves.items()},
        "times": [_time(time) for time in made.times],
        "featured": made.featured,
        "runs": list(_runs(made, varied, cohorts, splits)),
        "cohorts": cohorts.values,
        "splits": splits.values,
        "differs": [{"key": key, "values": _values(runs, key)} for key in varied],
        "shared": [[key, plain(value)] for key, value in shared.items() if key not in varied],
        "versions": versions(runs),
    }


def versions(runs: Sequence[Run]) -> list[str]:
    """What wrote the runs, and what drew them."""
    wrote = {
        key: list(dict.fromkeys(run.versions[key] for run in runs if key in run.versions))
        for key in ("bartizan", "torch", "machine")
    }
    parts = [f"{name} {', '.join(wrote[name])}" for name in ("bartizan", "torch") if wrote[name]]
    return [*parts, *wrote["machine"], f"drawn by bartizan {__version__}"]


@dataclass
class _Once:
    """Values that many runs share, each kept once, as long as the budget lasts."""

    budget: float = math.inf
    values: list[Any] = field(default_factory=list)
    known: dict[Hashable, int] = field(default_factory=dict)

    def place(self, key: Hashable, value: Any, size: int) -> int | None:
        if key not in self.known:
            if size > self.budget:
                return None
            self.budget -= size
            self.known[key] = len(self.values)
            self.values.append(value)
        return self.known[key]


def _runs(made: Content, varied: list[str], cohorts: _Once, splits: _Once) -> Iterator[dict[str, Any]]:
    left = float(pack.CELLS)
    # The one that is shown first must not be the one that is left out.
    turns = sorted(range(len(made.runs)), key=lambda i: i != made.featured)
    packed: dict[int, dict[str, Any] | None] = {}
    for turn, i in enumerate(turns):
        run = made.runs[i]
        n = pack.columns(run, max(left / (len(turns) - turn), min(left, 24.0 * len(run.clients)))) if run.weighs else 0
        packed[i] = pack.weights(run, n) if n else None
        left -= n * len(run.clients)
    for i, (run, place) in enumerate(zip(made.runs, made.placed, strict=True)):
        attackers = None if run.byzantine is None else np.flatnonzero(run.byzantine).tolist()
        yield {
            "label": place.label,
            "place": run.place,
            "id": run.id,
            "name": run.name,
            "rule": place.rule,
            "sketch": place.sketch,
            "attack": place.attack,
            "other": place.other,
            "seed": place.seed,
            "status": run.status,
            "converged": run.converged,
            "rounds": run.n_rounds,
            "last": rounded(run.last, 6),
            "best": rounded(run.best, 6),
            "attackers": rounded(mean(run.on_attackers(), axis=0)),
            "server": rounded(median([run.server])),
            "reads": rounded(median([run.reads])),
            "seconds": rounded(run.seconds),
            "cohort": cohorts.place((run.clients, str(attackers)), {"ids": run.clients, "attackers": attackers}, 0),
            "split": _split(run, splits),
            "weighs": run.weighs,
            "coordinatewise": coordinatewise(run),
            "weights": packed[i],
            "share": [rounded(value, 3) for value in run.share()] if packed[i] else None,
            "quarantined": run.quarantined.sum(axis=0).tolist() if run.quarantined.any() else None,
            "compared": pack.dots(run) if packed[i] else None,
            "config": {key: plain(run.config.get(key)) for key in varied},
            "notes": [[number, note] for number, note in run.notes[:20]],
        }


def _split(run: Run, splits: _Once) -> int | None:
    if run.split is None or not run.split.size:
        return None
    counts = np.nan_to_num(run.split).round().astype(int)
    names = run.classes or tuple(str(c) for c in range(counts.shape[1]))
    value = {"classes": names, "counts": counts.ravel().tolist()}
    return splits.place((counts.tobytes(), counts.shape, names), value, counts.size)


def _cards(made: Content) -> Iterator[tuple[str, str, str]]:
    runs = made.runs
    if not runs:
        return
    states = [run.status for run in runs]
    unfinished, diverged = states.count("unfinished"), states.count("diverged")
    told = [f"{n} {word}" for n, word in ((unfinished, "unfinished"), (diverged, "diverged")) if n]
    told += [f"{len(made.loaded.broken)} unreadable"] if made.loaded.broken else []
    yield "Runs", str(len(runs)), ", ".join(told) or "all finished"
    alone = "so far" if unfinished else "done"
    yield "Rounds", _range([run.n_rounds for run in runs]), "in each run" if len(runs) > 1 else alone
    dims = [run.dim for run in runs if run.dim]
    yield (
        "Clients",
        _range([len(run.clients) for run in runs]),
        (f"{_range(dims)} coordinates each" if dims else "in each run"),
    )
    known = [run for run in runs if run.byzantine is not None]
    if not known:
        yield "Attackers", "?", "not known: a deployment"
        return
    known = [run for run in known if _flags(run).any()] or known  # runs without an attack have none
    by_data = [run.ratio[1] for run in known if math.isfinite(run.ratio[1])]
    by_count = [run.ratio[0] if math.isfinite(run.ratio[0]) else _part(run) for run in known]
    note = f"{_percents(by_count)} by count" + (f", {_percents(by_data)} by data" if by_data else "")
    yield "Attackers", _range([int(_flags(run).sum()) for run in known]), note
    yield from _best(made.cells)


def _best(cells: Sequence[Cell]) -> Iterator[tuple[str, str, str]]:
    """Who does best under the attack that is worst for it."""
    attacked = [cell for cell in cells if cell.attack != "none"] or list(cells)
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in attacked:
        groups.setdefault((cell.rule, cell.sketch, cell.other), []).append(cell)
    most = max((len(group) for group in groups.values()), default=0)
    # One that was tried under fewer attacks, or failed under one, is not comparable.
    worst = [
        min(group, key=lambda cell: cell.last[0])
        for group in groups.values()
        if len(group) == most and all(cell.n_converged == cell.n and math.isfinite(cell.last[0]) for cell in group)
    ]
    if worst:
        top = max(worst, key=lambda cell: cell.last[0])
        named = " · ".join(part for part in (top.rule, top.sketch, top.other) if part)
        several = most > 1
        yield (
            "Best worst case" if several else "Highest accuracy",
            percent(top.last[0]),
            (f"{named}, under {top.attack}" if several else named),
        )


def _problems(made: Content) -> Iterator[dict[str, str]]:
    for place, why in made.loaded.broken:
        yield {"place": place, "state": "unreadable", "why": why}
    for run in made.runs:
        if run.status == "unfinished":
            why = f"after {counted(run.n_rounds, 'round')}; shown as far as it got"
            if run.torn:
                why += f". Its last line is not whole: {run.torn}"
            yield {"place": run.place, "state": "unfinished", "why": why}
        elif run.torn:
            yield {"place": run.place, "state": "torn", "why": f"something follows its end: {run.torn}"}


def _featured(runs: Sequence[Run], placed: Sequence[Factors]) -> int:
    """The one that shows most: attacked, weighed, compared with the exact weights, and accurate."""

    def worth(i: int) -> tuple[bool, bool, bool, bool, float]:
        run, place = runs[i], placed[i]
        attacked = run.byzantine is not None and bool(run.byzantine.any()) and place.attack != "none"
        return (
            run.weighs,
            len(run.exact_rounds) > 0 and place.sketch != "exact",
            attacked,
            place.rule != "mean",
            float(np.nan_to_num(run.last)),
        )

    return max(range(len(runs)), key=worth, default=0)


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "other": cell.other,
        "sketch": cell.sketch,
        "rule": cell.rule,
        "attack": cell.attack,
        "n": cell.n,
        "converged": cell.n_converged,
        "unfinished": cell.n_unfinished,
        "last": [rounded(value, 6) for value in cell.last],
        "best": [rounded(value, 6) for value in cell.best],
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "other": curve.other,
        "attack": curve.attack,
        "rule": curve.rule,
        "sketch": curve.sketch,
        "n": curve.n,
        "x": curve.rounds,
        "y": [rounded(value) for value in curve.mean],
        "low": [rounded(value) for value in curve.low],
        "high": [rounded(value) for value in curve.high],
    }


def _time(time: Time) -> dict[str, Any]:
    return {
        "other": time.other,
        "rule": time.rule,
        "sketch": time.sketch,
        "seconds": rounded(time.seconds),
        "parts": [rounded(part) for part in time.parts],
        "reads": rounded(time.reads),
    }


def _values(runs: Sequence[Run], key: str) -> list[str]:
    return list(dict.fromkeys(plain(run.config[key]) for run in runs if key in run.config))


def _flags(run: Run) -> Any:
    return run.byzantine if run.byzantine is not None else np.zeros(len(run.clients), dtype=bool)


def _part(run: Run) -> float:
    return float(_flags(run).mean())


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return _count(low) if low == high else f"{_count(low)} to {_count(high)}"


def _percents(values: Sequence[float]) -> str:
    low, high = percent(min(values)), percent(max(values))
    return low if low == high else f"{low} to {high}"


def _count(value: int) -> str:
    return f"{value:,}" if value < 100_000 else short(value)
