"""Show the paper's tables beside ours: on a terminal, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean
from typing import Any

from bartizan._util.jsonl import flatten
from bartizan.studies.formatting import csv_text, markdown_table, text_table
from bartizan.studies.paper.cells import ABLATION, STRESS, labels, stress_cells, tables, twice
from bartizan.studies.paper.compare import (
    CellComparison,
    Comparison,
    accuracies,
    accuracy_text,
    headlines,
    last_text,
    printed,
    rank_correlations,
    spread,
)
from bartizan.studies.paper.kept_runs import RunSummary
from bartizan.studies.paper.paper_protocol import BUDGETED, CHOICES, MODELS, ROUNDS, usual_protocol

LEGEND = """Accuracies are the best on the test set, in percent; "-": did not converge. diff: PDR minus base.
last: in the last round, converged or not, where the best may hide a collapse.
speed: the server's time without PDR over that with it. Two values: the paper prints both."""
LEFT = ("attack", "rule", "sketch", "")


def listing() -> str:
    """Return what `bartizan paper list` prints."""
    lines = [f"{'table':<18} {'data':<14} {'model':<19} {'beta':<5} {'cells':<6} in the paper as"]
    for name, of in tables().items():
        first = of[0]
        where = ", ".join(sorted({value.label for cell in of for value in cell.values}))
        lines.append(
            f"{name:<18} {first.data:<14} {MODELS[BUDGETED][first.data]:<19} {first.beta:<5g} {len(of):<6} {where}"
        )
    lines += [
        "",
        f"`bartizan paper run` also takes a data set, all, or the paper's labels: {', '.join(labels())}.",
        f"Protocol: 50 clients, Dirichlet split, batches of 32, {ROUNDS} rounds, b of 0.1 and 0.3, four attacks; krum,",
        f"bulyan, geometric-median and mca, without PDR and with it (k=4096, s=8). {ABLATION} varies k and s at b=0.1.",
        f"{len(twice())} cells are printed twice with different values.",
        "",
        f"{STRESS} is ours, {len(stress_cells())} cells: LIE, ALIE, IPM and Min-Max at b=0.3, k of 4096, 1024 and 256;",
        "and k=16 with a sketch that keeps no distances, for a comparison that must fail.",
    ]
    for name, choices in CHOICES.items():
        lines += ["", f"Where the paper is silent, --protocol {name} (docs/guides/paper.md):"]
        lines += [f"  {question}: {choice}" for question, choice in choices.items()]
    return "\n".join(lines)


def markdown(found: Comparison, without: Sequence[str] = ()) -> str:
    """Return the tables for a document; columns in `without` are left out."""
    parts = []
    for table, rows in _by_table(found.rows):
        shown = [{head: text for head, text in _columns(row).items() if head not in without} for row in rows]
        heads = list(shown[0])
        body = [[text.replace("|", "\\|") for text in row.values()] for row in shown]
        parts.append(
            f"### {table}\n\n{markdown_table(heads, body, right=[head for head in heads if head not in LEFT])}"
        )
    return "\n\n".join([*parts, LEGEND, *notes(found)])


def csv_table(found: Comparison) -> str:
    """Return one line a row, numbers unrounded; a field is empty if it was not run or did not converge."""
    return csv_text([_record(row) for row in found.rows]) if found.rows else "table\n"


def text(found: Comparison) -> str:
    """Return the tables, headlines and notes for a terminal."""
    parts = []
    for table, rows in _by_table(found.rows):
        heads = [head.replace(" ", "\n", 1) for head in _columns(rows[0])]
        body: list[list[str]] = []
        for _, group in groupby(rows, key=lambda row: (row.cell.b, row.cell.rule)):
            body += [*([list(_columns(row).values()) for row in group]), []]
        parts.append(f"{table}\n\n{text_table(heads, body, LEFT)}")
    return "\n".join([*parts, LEGEND, "", *headlines(found.rows), "", *notes(found)])


def notes(found: Comparison) -> list[str]:
    """Return the meaning of the protocols' letters, the rank correlations with the paper, and what was left out."""
    out = [f"{letter}: {protocol_text(settings)}." for letter, settings in found.protocols.items()]
    if ranks := rank_correlations(found.rows):
        out.append(f'Rank correlation (Spearman, "-" lowest) with the paper: {"; ".join(ranks)}.')
    if apart := [row for row in found.rows if row.base and row.pdr and len(row.machines) > 1]:
        where = "; ".join(sorted({machine or "unknown" for row in apart for machine in row.machines}))
        out.append(f"Rows without our speed, as their times are of different machines: {len(apart)} ({where}).")
    if found.others:
        out.append(f"Runs here that are none of the paper's cells: {found.others}.")
    return [*out, *(f"Not read: {what}" for what in found.unread)]


def protocol_text(protocol: Mapping[str, Any]) -> str:
    """Describe a protocol, with all settings that differ from the default one."""
    model, clients, rounds = protocol["model"], protocol["clients"], protocol["rounds"]
    local = {
        "gradient": "one gradient a round",
        "steps": f"local steps: {clients['local']} of size {clients['step_size']:g}",
        "epochs": f"local epochs: {clients['local']} at step size {clients['step_size']:g}",
    }
    changed = ", ".join(f"{key}={value}" for key, value in sorted(_changes(protocol).items()))
    images, validation = protocol["data"].get("images"), protocol["data"]["validation"]
    on = "" if images is None else f"{images:,} images, "
    return (
        f"{protocol['protocol']} protocol, {model['name']}, {on}{local[clients['work']]}, {rounds} rounds"
        + ("" if rounds == ROUNDS else f" instead of the paper's {ROUNDS}")
        + (f"; tested on {100 * validation:g}% of the training images, not on the test set" if validation else "")
        + (f"; changed: {changed}" if changed else "")
    )


def _changes(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from the default protocol, except the model's name, the images and the rounds."""
    usual = flatten(usual_protocol(protocol["protocol"]))
    return {
        key: value
        for key, value in flatten(protocol).items()
        if usual.get(key) != value and key not in ("model.name", "data.images", "data.validation", "rounds")
    }


def _by_table(rows: Sequence[CellComparison]) -> list[tuple[str, list[CellComparison]]]:
    return [(table, list(of)) for table, of in groupby(rows, key=lambda row: row.cell.table)]


def _columns(row: CellComparison) -> dict[str, str]:
    cell = row.cell
    ablation = {"k": str(cell.k), "s": str(cell.s)}
    return {
        **(ablation if cell.table == ABLATION else {"b": f"{cell.b:g}", "attack": cell.attack}),
        "rule": row.rule,
        "paper base": printed(row.paper_base),
        "paper PDR": printed(cell.values),
        "paper diff": " / ".join(f"{number:+.2f}" for number in row.paper_differences),
        "paper speed": " / ".join(f"{number:.3g}x" for number in row.paper_speedups),
        "ours base": accuracy_text(row.base),
        "ours PDR": accuracy_text(row.pdr),
        "ours diff": spread(row.differences, "+"),
        "last base": last_text(row.base),
        "last PDR": last_text(row.pdr),
        "ours speed": "" if row.speedup is None else f"{row.speedup:.3g}x",
        "sketch": row.sketch,
        "rounds": row.rounds,
        "seeds": str(row.seeds),
        "": row.protocol,
    }


def _record(row: CellComparison) -> dict[str, Any]:
    cell = row.cell
    base, pdr = accuracies(row.base), accuracies(row.pdr)
    return {
        **{name: getattr(cell, name) for name in ("table", "data", "beta", "b", "attack", "rule", "k", "s")},
        "run_as": row.rule,
        "sketch": row.sketch,
        "protocol": row.protocol,
        "paper_base": printed(row.paper_base, "|"),
        "paper_pdr": printed(cell.values, "|"),
        "paper_difference": "|".join(f"{number:.2f}" for number in row.paper_differences),
        "paper_speedup": "|".join(f"{number:.4g}" for number in row.paper_speedups),
        "base": mean(base) if base else "",
        "pdr": mean(pdr) if pdr else "",
        "difference": mean(row.differences) if row.differences else "",
        "base_last": _mean_last(row.base),
        "pdr_last": _mean_last(row.pdr),
        "speedup": row.speedup or "",
        "rounds": row.rounds,
        "base_seeds": len(row.base),
        "pdr_seeds": len(row.pdr),
        "base_converged": len(base),
        "pdr_converged": len(pdr),
    }


def _mean_last(runs: Sequence[RunSummary]) -> float | str:
    reached = [run.last_percent for run in runs if run.last_percent is not None]
    return mean(reached) if reached else ""
