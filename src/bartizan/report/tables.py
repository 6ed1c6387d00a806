"""The runs as CSV: one row a run, and one row a run and round."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bartizan.report.factors import Factors
from bartizan.report.runs import ROUND, SECONDS, Run

RUNS = (
    "run,id,name,rule,sketch,attack,other,seed,status,converged,rounds,clients,attackers,attackers_by_count,"
    "attackers_by_data,dim,last_accuracy,best_accuracy,weight_on_attackers,server_seconds,server_reads,total_seconds"
).split(",")
ROUNDS = ("run", "round", *ROUND, *(f"{name}_seconds" for name in SECONDS), "server_reads", "weight_on_attackers")


def runs(many: Sequence[Run], placed: Sequence[Factors]) -> str:
    rows = []
    for run, place in zip(many, placed, strict=True):
        liars = None if run.byzantine is None else int(run.byzantine.sum())
        rows.append(
            [run.place, run.id, run.name, place.rule, place.sketch, place.attack, place.other, run.config.get("seed")]
            + [run.status, run.converged, run.n_rounds, len(run.clients), liars, *run.ratio, run.dim, run.last, run.best]
            + [_middle(run.on_attackers(), np.mean), _middle(run.server), _middle(run.reads), run.seconds]
        )
    return _csv(RUNS, rows)


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


def _middle(values: Any, of: Any = np.median) -> float:
    known = values[np.isfinite(values)]
    return float(of(known)) if known.size else math.nan
