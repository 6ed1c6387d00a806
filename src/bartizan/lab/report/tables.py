"""The runs as CSV, one row per run or per round, and their rounds as TensorBoard scalars."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bartizan.lab.metrics import ACCURACY, PERPLEXITY
from bartizan.lab.report.factors import Factors, setting
from bartizan.lab.report.run_data import ROUND_NUMBERS, STAGES, Run, mean, quantiles
from bartizan.watch.tensorboard_watch import TensorBoard

STAGE_COLUMNS = [f"{name}_seconds" for name in STAGES]
ROUND_COLUMNS = ["run", "round", *ROUND_NUMBERS, *STAGE_COLUMNS, "server_reads", "weight_on_attackers"]
EVENTS_SUFFIX = ".bartizan"
"""Suffix of the event files."""


def summary(run: Run, factors: Factors) -> dict[str, Any]:
    """Return one run in single values; None or NaN for those that are not known."""
    return {
        "run": run.folder,
        "id": run.id,
        "name": run.name,
        "rule": factors.rule,
        "sketch": factors.sketch,
        "attack": factors.attack,
        "other": factors.other,
        "seed": setting(run.config.get("seed")),
        "status": run.status,
        "converged": run.converged,
        "rounds": run.n_rounds,
        "clients": len(run.clients),
        "attackers": None if run.byzantine is None else run.n_attackers,
        "attackers_by_count": run.ratio[0],
        "attackers_by_data": run.ratio[1],
        "dim": run.dim,
        "last_accuracy": run.last if run.metric == ACCURACY else math.nan,
        "best_accuracy": run.best if run.metric == ACCURACY else math.nan,
        "last_perplexity": run.last if run.metric == PERPLEXITY else math.nan,
        "best_perplexity": run.best if run.metric == PERPLEXITY else math.nan,
        "last_backdoor": run.backdoor,
        "weight_on_attackers": float(mean(run.on_attackers(), axis=0)),
        "server_seconds": quantiles([run.server], 0.5)[0],
        "server_reads": quantiles([run.reads], 0.5)[0],
        "committed_bytes": quantiles([run.series["committed_bytes"]], 0.5)[0],
        "total_seconds": run.seconds,
    }


def runs(many: Sequence[Run], factors: Sequence[Factors]) -> str:
    rows = [summary(run, f) for run, f in zip(many, factors, strict=True)]
    return _csv(rows[0] if rows else ["run"], (row.values() for row in rows))


def rounds(many: Sequence[Run]) -> str:
    rows: list[list[Any]] = []
    for run in many:
        columns = [run.series[name] for name in (*ROUND_NUMBERS, *STAGES)] + [run.reads, run.on_attackers()]
        rows += [[run.folder, t, *values] for t, values in enumerate(zip(*columns, strict=True), start=1)]
    return _csv(ROUND_COLUMNS, rows)


def _csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Any) -> Any:
    """Return a value for CSV: empty if unknown; a text that a spreadsheet could read as a formula is quoted.

    >>> _field("=1+1"), _field(float("nan")), _field(0.25)
    ("'=1+1", '', 0.25)
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return float(value) if isinstance(value, np.floating) else value


def write_events(runs: Sequence[Run], folder: Path) -> None:
    """Write TensorBoard scalars of each run to a folder of its own; those of an earlier report are replaced."""
    for run in runs:
        target = folder / run.folder
        old = list(target.glob(f"events.out.tfevents.*{EVENTS_SUFFIX}"))
        board = TensorBoard(target, suffix=EVENTS_SUFFIX)
        board.open()
        scalars = {
            **{name: run.series[name] for name in ROUND_NUMBERS if name != "read"},
            "server/seconds": run.server,
            "server/reads": run.reads,
            "weight on attackers": run.on_attackers(),
        }
        # The record has durations, not times of day: the clock starts at 0.
        clock = np.cumsum(np.nan_to_num(run.server) + np.nan_to_num(run.series["train"]))
        for t in range(run.n_rounds):
            known = {tag: float(values[t]) for tag, values in scalars.items() if np.isfinite(values[t])}
            board.add(t + 1, known, float(clock[t]))
        board.close()
        for path in old:
            path.unlink()
