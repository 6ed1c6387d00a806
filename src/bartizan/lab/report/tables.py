"""The runs as CSV: one row a run, and one row a run and round."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bartizan.lab.report.factors import Factors, plain
from bartizan.lab.report.groups import median
from bartizan.lab.report.run_data import ROUND, SECONDS, Run, mean

ROUNDS = ("run", "round", *ROUND, *(f"{name}_seconds" for name in SECONDS), "server_reads", "weight_on_attackers")


def runs(many: Sequence[Run], placed: Sequence[Factors]) -> str:
    rows = [_run(run, place) for run, place in zip(many, placed, strict=True)]
    return _csv(rows[0] if rows else ["run"], (row.values() for row in rows))


def _run(run: Run, place: Factors) -> dict[str, Any]:
    return {
        "run": run.place,
        "id": run.id,
        "name": run.name,
        "rule": place.rule,
        "sketch": place.sketch,
        "attack": place.attack,
        "other": place.other,
        "seed": plain(run.config.get("seed")),
        "status": run.status,
        "converged": run.converged,
        "rounds": run.n_rounds,
        "clients": len(run.clients),
        "attackers": None if run.byzantine is None else int(run.byzantine.sum()),
        "attackers_by_count": run.ratio[0],
        "attackers_by_data": run.ratio[1],
        "dim": run.dim,
        "last_accuracy": run.last,
        "best_accuracy": run.best,
        "weight_on_attackers": float(mean(run.on_attackers(), axis=0)),
        "server_seconds": median([run.server]),
        "server_reads": median([run.reads]),
        "total_seconds": run.seconds,
    }


def rounds(many: Sequence[Run]) -> str:
    return _csv(ROUNDS, (row for run in many for row in _rounds(run)))


def _rounds(run: Run) -> Iterable[list[Any]]:
    columns = [run.series[name] for name in (*ROUND, *SECONDS)] + [run.reads, run.on_attackers()]
    for t, values in enumerate(zip(*columns, strict=True), start=1):
        yield [run.place, t, *values]


def _csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_field(value) for value in row] for row in rows)
    return out.getvalue()


def _field(value: Any) -> Any:
    """A gap for what is not known; text that a spreadsheet would take for a formula is quoted.

    >>> _field("=1+1"), _field(float("nan")), _field(0.25)
    ("'=1+1", '', 0.25)
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return float(value) if isinstance(value, np.floating) else value
