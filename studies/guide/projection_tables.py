"""The tables of what projecting changes: runs with a sketch minus the exact run of the same cell and seed, in points.

A cell is a rule under an attack. Pooled numbers are means over the cells for each seed, and their interval is over the
seeds: cells of one seed share data, batches and attackers, so that they are not independent. A run that diverged counts
as chance. Seeds that lack a cell are left out.
"""

from __future__ import annotations

from math import isnan, nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pandas as pd

from bartizan.lab.report.intervals import interval
from studies.guide.kept_rows import kept
from studies.paper.compare import MARGIN
from studies.tables import markdown_table

CHANCE = 0.1  # accuracy of guessing among ten classes
CELL = ["rule", "attack"]
PLACEBO = " (placebo)"


def projection_tables(file: Path, b: float | None = None) -> str:
    """Return what each sketch changes, pooled by seed and by cell; of the runs with `b` attackers if it is given."""
    rows = kept(file)
    rows = rows if b is None or rows.empty else rows[rows.b == b]
    if rows.empty or rows.sketch.nunique() < 2:
        return f"*No pairs of runs are kept in {file.name} yet.*"
    return f"{pooled_table(rows)}\n\n{cell_table(rows)}"


def changes(rows: pd.DataFrame, sketch: str, field: str = "last") -> pd.DataFrame:
    """Return sketch minus exact in points of accuracy: a line per cell, a column per seed that has all cells."""
    found = (100 * rows.set_index([*CELL, "sketch", "seed"])[field].fillna(CHANCE)).unstack("seed").sort_index()
    differences = found.xs(sketch, level="sketch") - found.xs("exact", level="sketch")
    return differences.dropna(how="all").dropna(axis="columns")


def pooled(change: pd.DataFrame) -> tuple[float, float]:
    """Return the mean over seeds of the mean over cells, and half of its 95% interval over the seeds."""
    return estimate(list(change.mean(axis="index")))


def estimate(seeds: list[float]) -> tuple[float, float]:
    """Return the mean of one number per seed, and half of its 95% interval by Student's t; NaN from one seed."""
    half = interval(seeds, least=2)
    return (mean(seeds) if seeds else nan), nan if half is None else half


def lies(middle: float, half: float) -> str:
    """Return where an interval lies; nothing for a single seed, which has none.

    >>> lies(-0.2, 0.5), lies(-0.2, 1.0), lies(-3.0, 1.0)
    ('inside', 'across', 'outside')
    """
    if isnan(half):
        return ""
    return "inside" if abs(middle) + half < MARGIN else "outside" if abs(middle) - half > MARGIN else "across"


def sketches(rows: pd.DataFrame) -> list[str]:
    """Return the sketches beside the exact one, the largest k first."""
    return sorted({*rows.sketch} - {"exact"}, key=lambda text: [-int(word) for word in text.split()[1:]])


def label(sketch: str, rows: pd.DataFrame) -> str:
    """Return a sketch as it is called in Python; one with k of at least p is the placebo."""
    name, *numbers = sketch.split()
    dim = rows["dim"].max() if "dim" in rows else nan
    part = PLACEBO if int(numbers[0]) >= dim else ""
    return f"{''.join(word.title() for word in name.split('-'))}({', '.join(numbers)}){part}"


def pooled_table(rows: pd.DataFrame) -> str:
    """Return a line per sketch, the largest k first: the response to the dose."""
    exact, body = rows[rows.sketch == "exact"], []
    for sketch in sketches(rows):
        own, change = rows[rows.sketch == sketch], changes(rows, sketch)
        if change.empty:
            continue
        cells = change.apply(lambda seeds: lies(*estimate(list(seeds))), axis="columns")
        middle, half = pooled(change)
        lowest = change.mean(axis="columns").idxmin()
        base = exact.merge(own[[*CELL, "seed"]])
        shares = [part.on_attackers.mean() for part in (base, own)]  # which early rows do not have
        shown = [label(sketch, rows), str(change.shape[1]), _shown(middle, half)]
        shown += [_shown(*pooled(changes(rows, sketch, "best"))), f"{sum(cells == 'inside')} of {len(cells)}"]
        shown += [str(sum(cells == "outside")), f"{change.mean(axis='columns').min():+.2f} ({' under '.join(lowest)})"]
        attackers = "" if pd.isna(shares).any() else " / ".join(map(_percent, shares))
        shown += [_percent(own.moved.mean()), attackers, lies(middle, half)]
        body.append(shown)
    heads = ["sketch", "seeds", "last", "best", "cells inside", "outside", "worst cell", "moved"]
    heads += ["on attackers, exact / sketch", f"the interval lies to ±{MARGIN:g} point"]
    if not any(shown[8] for shown in body):
        body, heads = [[*shown[:8], shown[9]] for shown in body], [*heads[:8], heads[9]]
    return markdown_table(heads, body, right=[head for head in heads[1:-1] if head != "worst cell"])


def cell_table(rows: pd.DataFrame) -> str:
    """Return a line per cell: the exact rule's last accuracy in percent, and its change by each sketch."""
    found = {label(sketch, rows): changes(rows, sketch) for sketch in sketches(rows)}
    body = []
    for cell, own in rows[rows.sketch == "exact"].groupby(CELL):
        ends = list(100 * own["last"].fillna(CHANCE))
        spread = f" ± {stdev(ends):.1f}" if len(ends) > 1 else ""
        by_sketch = [_shown(*estimate(list(one.loc[cell])), 1) if cell in one.index else "" for one in found.values()]
        body.append([*(f"`{name}`" for name in cell), f"{mean(ends):.1f}{spread}", *by_sketch])
    return markdown_table([*CELL, "exact", *found], body, right=["exact", *found])


def findings(file: Path, control: str) -> str:
    """Return what the pooled intervals say of the control and the placebo, and where those of other sketches lie."""
    rows = kept(file)
    if rows.empty or control not in set(rows.sketch):
        return f"*No pairs of runs are kept in {file.name} yet.*"
    middle, half = pooled(changes(rows, control))
    if middle + half < -MARGIN:
        lost = f"loses {-middle:.2f} ± {half:.2f} points: a loss of that size would have been seen."
    else:
        change = f"it changes the last accuracy by {_shown(middle, half)} points"
        lost = f"does not lose: {change}, so these cells can't show a loss."
    said = [f"The control {label(control, rows)}, which must lose, {lost}"]
    found: dict[str, list[str]] = {"inside": [], "across": [], "outside": []}
    for sketch in sketches(rows):
        name, where = label(sketch, rows), lies(*pooled(changes(rows, sketch)))
        if PLACEBO in name:
            said.append(f"The placebo {name.removesuffix(PLACEBO)}, an isometry, lies {where} ±{MARGIN:g} point.")
        elif sketch != control:
            found[where].append(name)
    said += [f"Of the others {where} it: {', '.join(names)}." for where, names in found.items() if names]
    return " ".join(said)


def _shown(middle: float, half: float, digits: int = 2) -> str:
    return f"{middle:+.{digits}f}" + ("" if isnan(half) else f" ± {half:.{digits}f}")


def _percent(value: Any) -> str:
    return "" if pd.isna(value) else f"{100 * value:.1f}%"
