"""The tables of sweeps: rules x attacks x heterogeneity x b, momentum, and adapters.

    bartizan sweep studies/guide/images.toml        # to runs/guide-images; half an hour for both on two cores
    bartizan sweep studies/guide/text.toml
    python -m studies guide keep-rows runs/guide-images runs/guide-text --out studies/results/guide.jsonl
    python -m studies pages                                        # write the tables of docs/guides/choosing.md

Likewise momentum.toml and adapters.toml, kept by --out, for the tables of docs/reference/models.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean
from typing import Any

import pandas as pd

from bartizan.lab.metrics import METRICS
from bartizan.lab.report.wording import level
from studies.guide.kept_rows import kept
from studies.rows import RESULTS
from studies.tables import markdown_table

KEPT = RESULTS / "guide.jsonl"


def end_text(runs: pd.DataFrame) -> str:
    """Return mean ± standard deviation of the ends over the seeds, or how many failed."""
    metric, ends = METRICS[runs.metric.iloc[0]], runs["last"].dropna()
    if len(ends) < len(runs):
        return f"fails ({len(runs) - len(ends)} of {len(runs)} seeds)"
    spread = ends.std() if len(ends) > 1 else 0.0
    shown = f"{100 * spread:.1f}" if metric.name == "accuracy" else f"{spread:.2f}"
    return f"{level(mean(ends), metric)} ± {shown}"  # not pandas' mean, whose last bit would decide ties


def merit(runs: pd.DataFrame) -> float:
    """Return a cell's mean end, more is better; that of a cell where a run failed is below all others."""
    metric = METRICS[runs.metric.iloc[0]]
    return -math.inf if runs["last"].isna().any() else float(metric.merit(runs["last"].mean()))


def worst_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Return, by rule, the merit and text of its worst cell under attack and of its worst without, best rule first."""
    cells = [
        {"rule": key[0], "clean": key[1] == "none", "merit": merit(own), "text": end_text(own), "where": key[1:]}
        for key, own in runs.groupby(["rule", "attack", "clients_differ"], sort=False)
    ]
    worst = pd.DataFrame(cells).sort_values("merit", kind="stable").groupby(["rule", "clean"], sort=False).first()
    return worst.unstack("clean").sort_values(("merit", False), ascending=False, kind="stable")


def worst_case_table(metric: str, rows: pd.DataFrame | None = None) -> str:
    """Return a table of the rules, ordered by their worst case at the largest b."""
    rows = kept(KEPT) if rows is None else rows
    groups = {b: worst_cells(some) for b, some in rows[rows.metric == metric].groupby("b")}
    heads = ["rule", *(head for b in groups for head in (f"b = {b:g}: no attack", "worst case"))]
    body = []
    for rule in groups[max(groups)].index:
        shown = [f"`{rule}`"]
        for worst in groups.values():
            attacked = f"{worst.loc[rule, ('text', False)]} ({', '.join(worst.loc[rule, ('where', False)])})"
            shown += [worst.loc[rule, ("text", True)], attacked]
        body.append(shown)
    return markdown_table(heads, body)


def momentum_table() -> str:
    """Return the ends with and without the clients' momentum, by attack and rule."""
    across = lambda row: f"server `{row.optimiser}`, clients {row.worker_momentum:g}"  # noqa: E731
    return pivot(kept(RESULTS / "momentum.jsonl"), ["attack", "rule"], across)


def adapters_table() -> str:
    """Return the ends of training by adapters under attack, and beside that of all weights without."""
    rows = kept(RESULTS / "adapters.jsonl")
    rows["trained"] = rows.adapters.map({0: "all weights", 8: "adapters of rank 8"})
    return pivot(rows, ["trained", "attack", "rule"], lambda row: row.metric)


def pivot(rows: pd.DataFrame, down: list[str], across: Callable[[Any], str]) -> str:
    """Return a table of the ends, training without attack first."""
    rows = rows.assign(attacked=rows.attack != "none", column=rows.apply(across, axis=1))
    rows = rows.sort_values(["adapters", "attacked", "attack", "rule"], kind="stable")
    columns = sorted(rows.column.unique(), key=lambda text: (" `sgd`" not in text, text))
    body = []
    for names, own in rows.groupby(down, sort=False):
        shown = [name if head == "trained" else f"`{name}`" for head, name in zip(down, names, strict=True)]
        body.append([*shown, *(end_text(own[own.column == column]) for column in columns)])
    return markdown_table([*down, *columns], body)
