"""The runs as CSV: one row for each run, and one row for each round of each run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bartizan.lab.report.factors import Factors, setting
from bartizan.lab.report.run_data import ROUND, SECONDS, Run, mean, median

ROUNDS = ("run", "round", *ROUND, *(f"{name}_seconds" for name in SECONDS), "server_reads", "weight_on_attackers")


def summary(run: Run, factors: Factors) -> dict[str, Any]:
    """Return one run in single values; None or NaN where a value is not known."""
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
        "last_accuracy": run.last,
        "best_accuracy": run.best,
        "weight_on_attackers": float(mean(run.on_attackers(), axis=0)),
        "server_seconds": median(run.server),
        "server_reads": median(run.reads),
        "total_seconds": run.seconds,
    }


def runs(many: Sequence[Run], factors: Sequence[Factors]) -> str:
    rows = [summary(run, f) for run, f in zip(many, factors, strict=True)]
    return _csv(rows[0] if rows else ["run"], (row.values() for row in rows))


def rounds(many: Sequence[Run]) -> str:
    return _csv(ROUNDS, (row for run in many for row in _rounds(run)))


def _rounds(run: Run) -> Iterable[list[Any]]:
    columns = [run.series[name] for name in (*ROUND, *SECONDS)] + [run.reads, run.on_attackers()]
    for t, values in enumerate(zip(*columns, strict=True), start=1):
        yield [run.folder, t, *values]


def _csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Any) -> Any:
    """Return a value for CSV: empty if unknown; a text that a spreadsheet would take for a formula is quoted.

    >>> _field("=1+1"), _field(float("nan")), _field(0.25)
    ("'=1+1", '', 0.25)
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return float(value) if isinstance(value, np.floating) else value
