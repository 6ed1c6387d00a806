"""The paper's tables and ours, on a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean
from typing import TYPE_CHECKING, Any

from bartizan.studies.paper.cell_settings import parted
from bartizan.studies.paper.cells import ABLATION, cells, labels, tables, twice
from bartizan.studies.paper.compare import Comparison, Row, agreed, printed, spread
from bartizan.studies.paper.protocol import CHOICES, MODELS, ROUNDS, experiment
from bartizan.studies.paper.results_page import headlines
from bartizan.studies.paper.results_page import table as as_table

if TYPE_CHECKING:
    from rich.table import Table

LEGEND = """Accuracies are the best on the test set, in percent; "-": did not converge. diff: PDR minus base.
speed: the server's time without PDR over that with it. Two values: the paper prints both."""


def listing() -> str:
    """What `bartizan paper list` prints."""
    lines = [f"{'table':<18} {'data':<14} {'model':<19} {'beta':<5} {'cells':<6} in the paper as"]
    for name, of in tables().items():
        first = of[0]
        where = ", ".join(sorted({value.label for cell in of for value in cell.values}))
        lines.append(f"{name:<18} {first.data:<14} {MODELS[first.data]:<19} {first.beta:<5g} {len(of):<6} {where}")
    lines += [
        "",
        f"`bartizan paper run` also takes a data set, all, or the paper's labels: {', '.join(labels())}.",
        f"Protocol: 50 clients, Dirichlet split, batches of 32, {ROUNDS} rounds, b of 0.1 and 0.3, four attacks; krum,",
        f"bulyan, geometric-median and mca, without PDR and with it (k=4096, s=8). {ABLATION} varies k and s at b=0.1.",
        f"{len(twice(cells()))} cells are printed twice with different values.",
        "",
        "Where the paper is silent (docs/guides/paper.md):",
        *(f"  {choice.question}: {choice.chosen}" for choice in CHOICES),
    ]
    return "\n".join(lines)


def markdown(found: Comparison, without: Sequence[str] = ()) -> str:
    """The tables for a document, without some of their columns."""
    parts = []
    for table, rows in _by_table(found.rows):
        shown = [{head: text for head, text in _columns(row).items() if head not in without} for row in rows]
        heads = list(shown[0])
        align = ["---" if head in LEFT else "--:" for head in heads]
        lines = [heads, align, *([_escaped(cell) for cell in row.values()] for row in shown)]
        parts.append(f"### {table}\n\n{as_table(lines)}")
    return "\n\n".join([*parts, LEGEND, *notes(found)])


def as_csv(found: Comparison) -> str:
    """One line a row, numbers unrounded; an empty field is what was not run or did not converge."""
    out = io.StringIO()
    records = [_record(row) for row in found.rows]
    writer = csv.DictWriter(out, fieldnames=list(records[0]) if records else ["table"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def on_terminal(found: Comparison) -> None:
    try:
        from rich.console import Console
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("bartizan paper compare needs rich: pip install 'bartizan[lab]'") from missing
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to keep to
        console.width = 200
    for table in _tables(found):
        console.print(table)
    console.print("\n".join([LEGEND, "", *headlines(found.rows), "", *notes(found)]), highlight=False, markup=False)


def _tables(found: Comparison) -> list[Table]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = []
    for table, rows in _by_table(found.rows):
        shown = [_columns(row) for row in rows]
        one = Table(title=table, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for head in shown[0]:
            one.add_column(head.replace(" ", "\n", 1), justify="left" if head in LEFT else "right", no_wrap=True)
        last: Any = None
        for row, texts in zip(rows, shown, strict=True):
            if last not in (None, (row.cell.b, row.cell.rule)):
                one.add_section()
            last = (row.cell.b, row.cell.rule)
            one.add_row(*texts.values())
        out.append(one)
    return out


def notes(found: Comparison) -> list[str]:
    """What the letters stand for, and what was left out."""
    out = [f"{letter}: {described(settings)}." for letter, settings in found.protocols.items()]
    if apart := [row for row in found.rows if row.base and row.pdr and len(row.machines) > 1]:
        where = "; ".join(sorted({machine or "unknown" for row in apart for machine in row.machines}))
        out.append(f"Rows without our speed, as their times are of different machines: {len(apart)} ({where}).")
    if found.strangers:
        out.append(f"Runs here that are none of the paper's cells: {found.strangers}.")
    return [*out, *(f"Not read: {what}" for what in found.unread)]


LEFT = ("attack", "rule", "sketch", "")


def _by_table(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(table, list(of)) for table, of in groupby(rows, key=lambda row: row.cell.table)]


def _columns(row: Row) -> dict[str, str]:
    cell = row.cell
    swept = {"k": str(cell.k), "s": str(cell.s)} if cell.table == ABLATION else {"b": f"{cell.b:g}"}
    attack = {} if cell.table == ABLATION else {"attack": cell.attack}
    return {
        **swept,
        **attack,
        "rule": cell.rule,
        "paper base": printed(row.paper_base),
        "paper PDR": printed(cell.values),
        "paper diff": " / ".join(f"{number:+.2f}" for number in row.paper_differences),
        "paper speed": " / ".join(f"{number:.3g}x" for number in row.paper_speedups),
        "ours base": agreed(row.base),
        "ours PDR": agreed(row.pdr),
        "ours diff": spread(row.differences, "+"),
        "ours speed": "" if row.speedup is None else f"{row.speedup:.3g}x",
        "sketch": row.sketch,
        "rounds": row.rounds,
        "seeds": str(row.seeds),
        "": row.protocol,
    }


def _record(row: Row) -> dict[str, Any]:
    cell = row.cell
    base, pdr = ([run.accuracy for run in runs if run.accuracy is not None] for runs in (row.base, row.pdr))
    return {
        **{"table": cell.table, "data": cell.data, "beta": cell.beta, "b": cell.b, "attack": cell.attack},
        **{"rule": cell.rule, "k": cell.k, "s": cell.s, "sketch": row.sketch, "protocol": row.protocol},
        "paper_base": printed(row.paper_base, "|"),
        "paper_pdr": printed(cell.values, "|"),
        "paper_difference": "|".join(f"{number:.2f}" for number in row.paper_differences),
        "paper_speedup": "|".join(f"{number:.4g}" for number in row.paper_speedups),
        "base": mean(base) if base else "",
        "pdr": mean(pdr) if pdr else "",
        "difference": mean(row.differences) if row.differences else "",
        "speedup": row.speedup or "",
        **{"rounds": row.rounds, "base_seeds": len(row.base), "pdr_seeds": len(row.pdr)},
        **{"base_converged": len(base), "pdr_converged": len(pdr)},
    }


def described(protocol: Mapping[str, Any]) -> str:
    """A protocol by what is in it, and by all in which it is not the default one."""
    model, clients, rounds = protocol["model"], protocol["clients"], protocol["rounds"]
    local = {
        "gradient": "one gradient a round",
        "steps": f"local steps: {clients['local']} of size {clients['step_size']:g}",
        "epochs": f"local epochs: {clients['local']} at step size {clients['step_size']:g}",
    }
    changed = ", ".join(f"{key}={value}" for key, value in sorted(changes(protocol).items()))
    images = protocol["data"].get("images")
    return (
        f"{model['name']}, {'' if images is None else f'{images:,} images, '}{local[clients['work']]}, {rounds} rounds"
        + ("" if rounds == ROUNDS else f" instead of the paper's {ROUNDS}")
        + (f"; changed: {changed}" if changed else "")
    )


def changes(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Where a protocol differs from the default one, but for the model's name, the images and the rounds."""
    usual = flat(json.loads(parted(experiment(cells()[0]).as_dict())[1]))
    return {
        key: value
        for key, value in flat(protocol).items()
        if usual.get(key) != value and key not in ("model.name", "data.images", "rounds")
    }


def flat(nested: Mapping[str, Any], front: str = "") -> dict[str, Any]:
    """Sections as `section.key`.

    >>> flat({"rounds": 3, "model": {"norm": "group"}})
    {'rounds': 3, 'model.norm': 'group'}
    """
    out: dict[str, Any] = {}
    for key, value in nested.items():
        out |= flat(value, f"{front}{key}.") if isinstance(value, Mapping) else {front + key: value}
    return out


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
