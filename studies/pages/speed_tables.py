"""The tables and the panel of times, from the rows of `make speed`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from bartizan._util.arguments import short
from studies.plotting import DARK, GREY, LIGHT
from studies.speed.speed_rows import SpeedRow, load
from studies.tables import duration, markdown_table, multiple

CLIENTS = 50
RESNET18 = 11_689_512
MODELS = {5_483_032: "MobileNetV3-large", RESNET18: "ResNet18", 138_357_544: "VGG16"}  # as published, 1000 classes
RULES = ("krum", "bulyan", "geometric-median", "mca")
SHOWN = {"krum": "Krum", "bulyan": "Bulyan", "geometric-median": "geometric median", "mca": "MCA"}
PDR = "bartizan rotated"
# What stands beside it, its name here, and how it is drawn: in no colour or mark of the other panel.
OTHERS = {
    "bartizan exact": ("ours, exact", "#14171c", "v"),
    "byzfl": ("ByzFL", "#7a5c00", "P"),
    "pair-loop": ("a loop over pairs", "#6b7280", "X"),
    "bartizan achlioptas": ("PDR by the paper's matrix", "#1f8a99", "h"),
}
CROWDED = 1.6  # ratio of two neighbours in the figure below which their numbers take turns above and below the line
ONCE = "†"
COLUMNS = {"mean": "mean", **SHOWN, "median": "median", "trimmed-mean": "trimmed mean", "meamed": "MeaMed"}
ENGINES = {
    PDR: "bartizan, projected",
    "bartizan exact": "bartizan, exact",
    "torch": "torch: `mean`, `sort`",
    "byzfl": "ByzFL 0.0.11, faster input",
    "byzpy": "ByzPy 0.1.4",
    "krum": "krum 0.9.1",
    "flower": "Flower 1.41",
    "pair-loop": "a Python loop over pairs",
    "bartizan achlioptas": "bartizan, the paper's matrix",
}


def frame(rows: Iterable[SpeedRow]) -> pd.DataFrame:
    """Return rows with their labels, the better one where ByzFL was given both a tensor and an array.

    What was timed once is measured in the run's median read: its own read may be an odd one.
    """
    table = pd.DataFrame([asdict(row) | {"label": row.label, "failure": row.failure} for row in rows])
    run = ["run", "machine", "clients", "dim"]
    usual = table[table.repeats > 1].groupby(run).read_seconds.median().rename("usual")
    table = table.join(usual, on=run)
    once = (table.repeats == 1) & table.seconds.notna() & table.usual.notna()
    table.loc[once, "read_seconds"] = table.usual[once]
    table.loc[once, "reads"] = table.seconds[once] / table.usual[once]
    table["label"] = table.label.replace("byzfl-numpy", "byzfl")
    subject = ["label", "rule", "clients", "byzantine", "dim", "dtype", "device", "machine"]
    return table.sort_values("reads", kind="stable").drop_duplicates(subject).sort_index()


def read_rows(folder: Path) -> pd.DataFrame:
    """Return the rules of the paper at the sizes of its models, GPUs first, small models first."""
    table = pd.concat([frame(load(path)) for path in sorted(folder.glob("speed-*.json"))])
    table = table[(table.clients == CLIENTS) & table.dim.isin(MODELS) & table.rule.isin(RULES)]
    table = table[~((table.rule == "mca") & (table.label == "pair-loop"))]  # which does not need all pairs
    table["order"] = table.rule.map(RULES.index)
    return table.sort_values(["device", "machine", "dim", "order"], ascending=[False, True, True, True], kind="stable")


def cost_table(folder: Path, name: str, clients: int, dim: int, rules: Sequence[str] = tuple(COLUMNS)) -> str:
    """Return what a call costs at one size, a line per engine and a column per rule: reads, and time in brackets."""
    table = frame(load(folder / name))
    table = table[(table.clients == clients) & (table.dim == dim) & table.rule.isin(rules)]
    if table.run.nunique() != 1:
        raise ValueError(f"{name} has rows of several runs, or none, for {clients} clients of {dim} coordinates.")
    lines = []
    for label, shown in ENGINES.items():
        own = {row.rule: row for row in table[table.label == label].itertuples()}
        if own:
            extra = _bytes(max(0 if pd.isna(row.extra_bytes) else row.extra_bytes for row in own.values()))
            lines.append([shown, *(_cost(own.get(rule)) for rule in rules), extra])
    heads = ["reads (time)", *(COLUMNS[rule] for rule in rules), "extra memory"]
    return markdown_table(heads, lines, right=heads[1:]) + _footnote(table)


def _cost(row: Any) -> str:
    if row is None or pd.isna(row.reads):
        return "" if row is None else row.failure
    return f"{multiple(row.reads)} ({duration(row.seconds)}){_marks(row)}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 2**20:.0f} MiB"


def _marks(row: Any) -> str:
    return f"{'' if row.ok else ', wrong'}{ONCE * (row.repeats == 1)}"


def _footnote(table: pd.DataFrame) -> str:
    return f"\n\n{ONCE} timed once." if (table.repeats == 1).any() else ""


def tables(table: pd.DataFrame) -> str:
    """Return one table per machine: what a round costs in reads, and how many times PDR's that is."""
    heads, parts = ["model", "rule", "one read", "PDR, `Rotated`", *(name for name, *_ in OTHERS.values())], []
    for machine, here in table.groupby("machine", sort=False):
        lines = []
        for (dim, rule), own in here.groupby(["dim", "rule"], sort=False):
            rows = {row.label: row for row in own.itertuples()}
            pdr = rows[PDR]
            times = (
                f"{multiple(rows[label].reads / pdr.reads)}x ({multiple(rows[label].reads)}){_marks(rows[label])}"
                if label in rows and not pd.isna(rows[label].seconds)
                else rows[label].failure
                if label in rows
                else ""
                for label in OTHERS
            )
            names = f"{MODELS[dim]}, {short(dim)}", SHOWN[rule], duration(pdr.read_seconds)
            lines.append([*names, f"{duration(pdr.seconds)} ({multiple(pdr.reads)}){_marks(pdr)}", *times])
        parts.append(
            f"{CLIENTS} clients, float32, {machine}:\n\n{markdown_table(heads, lines, heads[2:])}{_footnote(here)}"
        )
    return "\n\n".join(parts)


def figure_panel(panel: Any, table: pd.DataFrame) -> None:
    """Draw times of a round over PDR's, for the largest model of which all rules were timed, on each machine."""
    table = table[table.groupby(["machine", "dim"]).rule.transform("nunique") == len(RULES)]
    table = table[table.dim == table.groupby("machine").dim.transform("max")]
    places: list[int] = []
    for number, (_, here) in enumerate(table.groupby("machine", sort=False)):
        _title(panel, here.iloc[0], len(places) + number)
        for rule in RULES:
            places.append(len(places) + number)
            _line(panel, here[here.rule == rule], places[-1])
    panel.axvline(1, color=GREY, linewidth=1)
    panel.set_xscale("log")
    panel.minorticks_off()
    panel.spines["left"].set_visible(False)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    panel.set_yticks(places, [SHOWN[rule] for rule in RULES] * (len(places) // len(RULES)))
    panel.set_ylim(max(places) + 0.5, -1.2)
    panel.grid(axis="x", color=LIGHT, linewidth=0.5)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("time of a round, PDR = 1", color=GREY)
    panel.set_title(f"Server time, {CLIENTS} clients", color=DARK, fontsize=11, loc="left")
    for label, colour, mark in OTHERS.values():
        panel.plot([], [], mark, color=colour, markersize=6, label=label)
    style = {"fontsize": 8, "frameon": False, "labelcolor": GREY, "handletextpad": 0.2}
    panel.legend(loc="lower left", bbox_to_anchor=(-0.3, -0.25), ncols=4, columnspacing=1, **style)


def _line(panel: Any, own: pd.DataFrame, y: float) -> None:
    """Draw the engines that were timed, and right. Ratios are of reads: what else the machine had to do slows both."""
    pdr = own[own.label == PDR].reads.iloc[0]
    right = own[own.label.isin(OTHERS) & own.seconds.notna() & own.ok].sort_values("reads")
    panel.plot([1, max(1, right.reads.max() / pdr)], [y, y], color=LIGHT, linewidth=1.5, zorder=0)
    last, above = 0.0, False
    for row in right.itertuples():
        x, (_, colour, mark) = row.reads / pdr, OTHERS[row.label]
        panel.plot(x, y, mark, color=colour, markersize=7, markeredgecolor="white")
        above = x > CROWDED * last or not above
        where = {"xytext": (0, 5 if above else -12), "textcoords": "offset points", "ha": "center", "fontsize": 7}
        panel.annotate(f"{x:.0f}x" if x >= 10 else f"{x:.1f}x", (x, y), color=colour, **where)
        last = x


def _title(panel: Any, row: Any, y: float) -> None:
    """Name the model and the machine, a GPU by its name and a processor by how many threads ran on it."""
    threads = row.machine.rpartition(", ")[2].replace("threads", "CPU threads")
    machine = row.machine.removeprefix("NVIDIA ") if row.device == "cuda" else threads
    where = {"xycoords": ("axes fraction", "data"), "bbox": {"color": "white", "pad": 1}}
    text = f"{MODELS[row.dim]}, {short(row.dim)} coordinates, {machine}"
    panel.annotate(text, (0, y - 0.75), fontsize=8, color=DARK, weight="bold", **where)
