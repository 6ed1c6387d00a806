"""The tables of the comparison, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import mean, median
from typing import Any

from bartizan._util.jsonl import flatten
from bartizan.lab.report.intervals import interval
from studies.paper import compare
from studies.paper.cells import ABLATION
from studies.paper.compare import CellComparison, Comparison, Summary
from studies.paper.interval_plot import label, main_protocol
from studies.paper.kept_runs import RunSummary
from studies.paper.paper_protocol import usual_protocol
from studies.tables import markdown_table

LEFT = ("table", "attack", "rule", "sketch", "")
CELL = ("beta", "b", "attack", "rule")
HIGH, NEAR = 60.0, 55.0  # percent: a base cell that the paper has above the first should be above the second here


def markdown(found: Comparison, without: Sequence[str] = (), padded: bool = False) -> str:
    """Return one table per table of the paper; columns in `without` are left out."""
    parts = []
    for table, rows in groupby(found.rows, key=lambda row: row.cell.table):
        shown = [{head: text for head, text in columns(row).items() if head not in without} for row in rows]
        heads = list(shown[0])
        body = [[text.replace("|", "\\|") for text in row.values()] for row in shown]
        right = [head for head in heads if head not in LEFT]
        parts.append(f"### {table}\n\n{markdown_table(heads, body, right, padded)}")
    return "\n\n".join(parts)


def notes(found: Comparison) -> list[str]:
    """Return the meaning of the protocols' letters, and what was left out."""
    out = [f"{letter}: {protocol_text(settings)}." for letter, settings in found.protocols.items()]
    if apart := [row for row in found.rows if row.base and row.pdr and len(row.machines) > 1]:
        where = "; ".join(sorted({machine or "unknown" for row in apart for machine in row.machines}))
        out.append(f"Rows without our speed, as their times are of different machines: {len(apart)} ({where}).")
    if found.others:
        out.append(f"Runs here that are none of the paper's cells: {found.others}.")
    return [*out, *(f"Not read: {what}" for what in found.unread)]


def protocol_text(protocol: Mapping[str, Any]) -> str:
    """Name a protocol, its model and images, and all settings that differ from the usual ones."""
    usual, given = flatten(usual_protocol(protocol["protocol"])), flatten(protocol)
    told = ("model.name", "data.images")
    changed = sorted(f"{key}={value}" for key, value in given.items() if usual.get(key) != value and key not in told)
    images = f", {given['data.images']:,} images" if given.get("data.images") is not None else ""
    more = f"; changed: {', '.join(changed)}" if changed else ""
    return f"{protocol['protocol']} protocol, {given['model.name']}{images}{more}"


def columns(row: CellComparison) -> dict[str, str]:
    """Return the texts of a row by their heads."""
    cell = row.cell
    ablation = {"k": str(cell.k), "s": str(cell.s)}
    return {
        **(ablation if cell.table == ABLATION else {"b": f"{cell.b:g}", "attack": cell.attack}),
        "rule": row.rule,
        "paper base": compare.printed(row.paper_base),
        "paper PDR": compare.printed(cell.values),
        "paper diff": " / ".join(f"{number:+.2f}" for number in row.paper_differences),
        "paper speed": " / ".join(f"{number:.3g}x" for number in row.paper_speedups),
        "ours base": compare.accuracy_text(row.base),
        "ours PDR": compare.accuracy_text(row.pdr),
        "ours diff": compare.spread(row.differences, "+"),
        "last base": compare.last_text(row.base),
        "last PDR": compare.last_text(row.pdr),
        "ours speed": "" if row.speedup is None else f"{row.speedup:.3g}x",
        "sketch": row.sketch,
        "rounds": row.rounds,
        "seeds": str(row.seeds),
        "": row.protocol,
    }


def totals(rows: Sequence[CellComparison]) -> str:
    """Return the statistics of each table, protocol and sketch: what the pages' sentences quote."""
    groups: dict[str, list[CellComparison]] = {}
    for row in rows:
        if row.compared:
            size = f"(k={row.cell.k})" if row.cell.table != ABLATION else ""
            groups.setdefault(f"{row.cell.table}, {row.protocol}, {row.sketch}{size}", []).append(row)
    heads, body = [*GROUP_HEADS, "95% interval of the mean", "ranks with the paper"], []
    for name, of in groups.items():
        summary, ranks = Summary.of(of), compare.rank_correlation(of)
        raw, half = summary.raw_differences, summary.half
        low, high = (mean(raw) - half, mean(raw) + half) if half is not None else (0.0, 0.0)
        shown = "" if half is None else f"{low:+.2f} to {high:+.2f}, {compare.verdict(raw)}"
        body.append([*_group(name, summary), shown, "" if ranks is None else f"{ranks:+.2f}"])
    return markdown_table(heads, body, heads[1:], padded=True)


DIFFERENCES = ("PDR - base", "also not converged", "worst", "the paper's")
GROUP_HEADS = ("", "cells", "distinct", *DIFFERENCES, "same end", "speed-up")


def groups(rows: Sequence[CellComparison]) -> str:
    """Return the statistics by rule, attack and share of attackers; speed-ups by rule only."""
    keys: tuple[Callable[[CellComparison], str], ...] = (
        lambda row: row.cell.rule,
        lambda row: row.cell.attack,
        lambda row: f"b={row.cell.b:g}, beta={row.cell.beta:g}",
    )
    body = []
    for number, key in enumerate(keys):
        for name in dict.fromkeys(map(key, rows)):
            line = _group(name, Summary.of(row for row in rows if key(row) == name))
            body.append(line if number == 0 else [*line[:-1], ""])
    return markdown_table(GROUP_HEADS, body, right=GROUP_HEADS[1:])


def _group(name: str, of: Summary) -> list[str]:
    differences = (of.differences, of.raw_differences, of.paper_differences)
    both, raw, paper = (compare.spread(some, "+", compare.MIN_DISTINCT) for some in differences)
    worst = f"{mean(of.worst.raw_differences):+.2f}" if of.worst else ""
    speedup = f"{median(of.speedups):.3g}x" if of.speedups else ""
    counts = str(len(of.cells)), str(len(of.rows))
    return [name, *counts, both, raw, worst, paper, f"{of.same_end} of {len(of.rows)}", speedup]


def pooled_table(found: Comparison) -> str:
    """Return the pooled differences of every sketch, of the best and of the last accuracy."""
    heads, body = ["sketch", "cells", "seeds", "best", "last", "worst cell", "moved", "the interval lies"], []
    for (sketch, k), of in main_protocol(found.rows).items():
        last = [mean(row.last_differences) for row in of.rows if row.last_differences]
        shown = [f"{mean(some):+.2f} ± {interval(some) or 0:.2f}" for some in (of.raw_differences, last)]
        worst = f"{mean(of.worst.raw_differences):+.2f} ({compare.cell_text(of.worst)})" if of.worst else ""
        moved, lies = _percent([run.moved for row in of.rows for run in row.pdr]), compare.verdict(of.raw_differences)
        body.append([label(sketch, k), str(len(of.rows)), compare.seeds_text(of.cells), *shown, worst, moved, lies])
    return markdown_table(heads, body, right=["cells", "best", "last", "moved"])


def far_cells(found: Comparison) -> str:
    """Return every base cell that the paper has above 60% and we have not above 55%."""
    rows = {row.cell.base: row for row in found.rows if row.base and row.paper_base and row.cell.table != ABLATION}
    cells = []
    for row in rows.values():
        paper, ours = compare.mean_accuracy(row.paper_base), compare.mean_accuracy(row.base)
        if paper > HIGH and ours <= NEAR:
            on_attackers = _percent([run.on_attackers for run in row.base])
            cells.append((row, compare.printed(row.paper_base), compare.accuracy_text(row.base) or "-", on_attackers))
    return _cell_table(["paper base", "ours base", "on attackers"], cells)


def breakdowns(rows: Sequence[CellComparison]) -> str:
    """Return every cell in which one of the four is "-"; ours with the best accuracy that it reached."""
    cells = []
    for row in Summary.of(rows).cells:
        ours, paper = (row.base, row.pdr), (row.paper_base, row.cell.values)
        if any(compare.failed(side) for side in ours) or any(compare.failed(side) for side in paper):
            cells.append((row, *map(compare.printed, paper), *map(_end, ours)))
    return _cell_table(["paper base", "paper PDR", "ours base", "ours PDR"], cells)


def weights(rows: Sequence[CellComparison]) -> str:
    """Return the weight on attackers, and how much weight the projection moved."""
    cells = []
    for row in Summary.of(rows).cells:
        on_attackers = [_percent([run.on_attackers for run in runs]) for runs in (row.base, row.pdr)]
        cells.append((row, *on_attackers, _percent([run.moved for run in row.pdr])))
    return _cell_table(["on attackers, base", "on attackers, PDR", "moved by projecting"], cells)


def _cell_table(heads: list[str], cells: Sequence[tuple[Any, ...]]) -> str:
    """Return a table with a line per cell, from (row, texts ...)."""
    body = [[f"{row.cell.beta:g}", f"{row.cell.b:g}", row.cell.attack, row.cell.rule, *texts] for row, *texts in cells]
    return markdown_table([*CELL, *heads], body, right=["beta", "b", *heads])


def _end(runs: Sequence[RunSummary]) -> str:
    best = [run.best_percent for run in runs if run.best_percent is not None]
    return f"- ({mean(best):.2f})" if compare.failed(runs) and best else compare.accuracy_text(runs)


def _percent(parts: Sequence[float | None]) -> str:
    known = [part for part in parts if part is not None]
    return f"{100 * mean(known):.1f}%" if known else ""
