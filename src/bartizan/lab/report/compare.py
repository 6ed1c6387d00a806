"""Compare two runs or sweeps: the differences of pairs that share their other settings, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan.lab.metrics import ACCURACY, METRICS, Metric
from bartizan.lab.report.factors import REPETITION, differing, setting
from bartizan.lab.report.intervals import interval
from bartizan.lab.report.run_data import Run, mean, quantiles

Pair = tuple[Run, Run]


@dataclass(frozen=True)
class Comparison:
    """Pairs of runs of two folders, by cell: the settings, but for the seed, that vary within the folders."""

    changed: dict[str, tuple[str, str]]
    """Settings in which each run differs from its partner."""
    cells: dict[tuple[tuple[str, str], ...], dict[str, Pair]]
    """Pairs by their seed, by cell."""
    alone: tuple[int, int]
    """Runs of each folder without a partner."""

    @property
    def metrics(self) -> list[Metric]:
        pairs = [pair for by_seed in self.cells.values() for pair in by_seed.values()]
        return [one for one in METRICS.values() if any(run.metric == one for run, _ in pairs)]


def compare(first: Sequence[Run], second: Sequence[Run]) -> Comparison:
    """Pair the runs of two folders by the settings that vary within either; ValueError if no two belong together.

    What differs between the folders only is what is compared. Of several runs with the same settings the last counts.
    """
    within = dict.fromkeys([*differing(first), *differing(second)])
    keys = [key for key in within if key not in REPETITION]
    by_key = [{(_cell(run, keys), setting(run.config.get("seed"))): run for run in runs} for runs in (first, second)]
    shared = [key for key in by_key[0] if key in by_key[1]]
    if not shared:
        shown = ", ".join(keys) or "the seed"
        raise ValueError(
            "No run of the one folder has a partner in the other: wanted two runs or sweeps that share the values of "
            f"what varies within them ({shown}), and their seeds."
        )
    cells: dict[tuple[tuple[str, str], ...], dict[str, Pair]] = {}
    for cell, seed in shared:
        cells.setdefault(cell, {})[seed] = (by_key[0][cell, seed], by_key[1][cell, seed])
    pairs = [pair for by_seed in cells.values() for pair in by_seed.values()]
    changed = {}
    for key in differing([run for pair in pairs for run in pair]):
        one, two = ({setting(pair[side].config.get(key)) for pair in pairs} for side in (0, 1))
        if key not in within and key not in REPETITION:
            changed[key] = (" | ".join(sorted(one)), " | ".join(sorted(two)))
    return Comparison(changed, cells, (len(by_key[0]) - len(shared), len(by_key[1]) - len(shared)))


def table(made: Comparison) -> str:
    """Return the comparison as lines for a terminal."""
    lines = [f"{key}: {one or 'none'} -> {two or 'none'}" for key, (one, two) in made.changed.items()]
    lines += ["" if lines else "The settings are the same.\n"]
    for metric in made.metrics:
        scale, unit = (100.0, " points") if metric == ACCURACY else (1.0, "")
        better = "lower" if metric.lower_is_better else "higher"
        lines.append(f"last {metric.name} ({better} is better), B - A{unit and f' in{unit}'} with its 95% interval")
        rows = [_row(_named(cell), by_seed, metric, scale) for cell, by_seed in made.cells.items()]
        if len(rows) > 1:
            rows.append(_pooled(made, metric, scale))
        lines += [*_aligned([("", "A", "B", "B - A", "pairs"), *rows]), ""]
    for name, of in QUANTITIES.items():
        pairs = [pair for by_seed in made.cells.values() for pair in by_seed.values()]
        one, two = (quantiles([np.array([of(pair[side]) for pair in pairs])], 0.5)[0] for side in (0, 1))
        if math.isfinite(one) and math.isfinite(two):
            lines.append(f"{name}, median over runs: {one:.3g} -> {two:.3g}")
    for which, alone in zip("AB", made.alone, strict=True):
        lines += [f"{alone} runs of {which} have no partner and are left out."] if alone else []
    return "\n".join(lines)


QUANTITIES: dict[str, Callable[[Run], float]] = {
    "weight on attackers": lambda run: float(mean(run.on_attackers(), axis=0)),
    "server seconds per round": lambda run: quantiles([run.server], 0.5)[0],
}


def difference(values: Sequence[tuple[float, float]], scale: float = 1.0) -> tuple[float, float, float, float | None]:
    """Return the means of A, of B and of B - A, and half of the 95% interval of the last."""
    a, b = (np.array(side) for side in zip(*values, strict=True))
    return float(a.mean()), float(b.mean()), scale * float((b - a).mean()), interval(list(scale * (b - a)), least=2)


def _row(name: str, by_seed: dict[str, Pair], metric: Metric, scale: float) -> tuple[str, ...]:
    values = [(one.last, two.last) for one, two in by_seed.values() if one.metric == two.metric == metric]
    known = [pair for pair in values if all(map(math.isfinite, pair))]
    if not known:
        return (name, "-", "-", "-", f"0 of {len(by_seed)}")
    return (name, *_shown(*difference(known, scale), metric), f"{len(known)} of {len(by_seed)}")


def _pooled(made: Comparison, metric: Metric, scale: float) -> tuple[str, ...]:
    """Return the row of all cells: one number per seed, the mean over the cells that have this seed."""
    seeds = list(dict.fromkeys(seed for by_seed in made.cells.values() for seed in by_seed))
    whole = []
    for seed in seeds:
        pairs = [by_seed[seed] for by_seed in made.cells.values() if seed in by_seed]
        values = [(one.last, two.last) for one, two in pairs if one.metric == two.metric == metric]
        if len(values) == len(made.cells) and all(math.isfinite(one) for pair in values for one in pair):
            whole.append(tuple(np.mean(values, axis=0)))
    if not whole:
        return ("all cells", "-", "-", "-", "no seed has all")
    return ("all cells", *_shown(*difference(whole, scale), metric), f"{len(whole)} seeds")


def _shown(a: float, b: float, change: float, half: float | None, metric: Metric) -> tuple[str, str, str]:
    digits = 2 if metric.lower_is_better else 1
    spread = "" if half is None else f" ± {half:.{digits}f}"
    return metric.shown(a), metric.shown(b), f"{change:+.{digits}f}{spread}"


def _cell(run: Run, keys: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((key, setting(run.config.get(key))) for key in keys)


def _named(cell: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(value if key.endswith(".name") else f"{key}={value}" for key, value in cell if value) or "all runs"


def _aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return ["  ".join(row) for row in padded]
