"""The tables and the panel of times, from the rows of `make speed`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from bartizan._util.arguments import short
from studies.speed.speed_rows import BenchRow, load
from studies.tables import duration, markdown_table, multiple
from studies.plotting import DARK, GREY, LIGHT

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
# For MCA nobody needs all pairs of whole updates: the paper's own base is 2 to 9 times as slow as its PDR.
NO_PEER = {("mca", "pair-loop")}
CLOSE = 1.6


def read_rows(folder: Path) -> list[BenchRow]:
    """The rules of the paper at the sizes of its models, GPUs first, small models first."""
    rows = [row for path in sorted(folder.glob("speed-*.json")) for row in faster_inputs(load_rows(path))]
    rows = [row for row in rows if row.clients == CLIENTS and row.dim in MODELS and row.rule in RULES]
    rows = [row for row in rows if (row.rule, row.label) not in NO_PEER]
    return sorted(rows, key=lambda row: (row.device == "cpu", row.machine, row.dim, RULES.index(row.rule)))


def load_rows(path: Path) -> list[BenchRow]:
    """The rows of a file. What was timed once is measured in the run's median read: its own read may be an odd one."""
    rows, reads = load(path), dict[tuple[object, ...], list[float]]()
    for row in rows:
        if row.repeats > 1 and row.read_seconds:
            reads.setdefault((row.run, row.machine, row.clients, row.dim), []).append(row.read_seconds)
    out = []
    for row in rows:
        of = reads.get((row.run, row.machine, row.clients, row.dim))
        if row.repeats == 1 and row.seconds and of:
            row = replace(row, reads=row.seconds / median(of), read_seconds=median(of))
        out.append(row)
    return out


def faster_inputs(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """One row where ByzFL was given both a tensor and an array: the faster."""
    found: dict[tuple[object, ...], BenchRow] = {}
    for row in rows:
        one = replace(row, engine="byzfl") if row.engine == "byzfl-numpy" else row
        other = found.get(one.subject)
        if other is None or other.reads is None or (one.reads is not None and one.reads < other.reads):
            found[one.subject] = one
    return list(found.values())


COLUMNS = {
    "mean": "mean",
    **SHOWN,
    "median": "median",
    "trimmed-mean": "trimmed mean",
    "meamed": "MeaMed",
}
ENGINES = {
    PDR: "bartizan, projected",
    "bartizan exact": "bartizan, exact",
    "torch": "torch: `mean`, `sort`",
    "byzfl": "ByzFL 0.0.11, faster input",
    "byzpy": "ByzPy 0.1.4",
    "flower": "Flower 1.41",
    "pair-loop": "a Python loop over pairs",
    "bartizan achlioptas": "bartizan, the paper's matrix",
}


def cost_table(folder: Path, name: str, clients: int, dim: int, rules: Sequence[str] = tuple(COLUMNS)) -> str:
    """What a call costs at one size, a line an engine and a column a rule: reads, and the time in brackets."""
    rows = [row for row in load_rows(folder / name) if (row.clients, row.dim) == (clients, dim) and row.rule in rules]
    if len({row.run for row in rows}) != 1:
        raise ValueError(f"{name} has rows of several runs, or none, for {clients} clients of {dim} coordinates.")
    cells = {(row.label, row.rule): row for row in faster_inputs(rows)}
    lines = []
    for label, shown in ENGINES.items():
        own = [cells.get((label, rule)) for rule in rules]
        if any(own):
            extra = max((row.extra_bytes or 0 for row in own if row is not None), default=0)
            lines.append([shown, *map(_cost, own), _bytes(extra)])
    heads = ["reads (time)", *(COLUMNS[rule] for rule in rules), "extra memory"]
    once = any(row.repeats == 1 for row in cells.values())
    return markdown_table(heads, lines, right=heads[1:]) + (f"\n\n{ONCE} timed once." if once else "")


def _cost(row: BenchRow | None) -> str:
    if row is None:
        return ""
    if row.reads is None or row.seconds is None:
        return row.failure
    return f"{multiple(row.reads)} ({duration(row.seconds)}){'' if row.ok else ', wrong'}{ONCE * (row.repeats == 1)}"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 2**20:.0f} MiB"


def tables(rows: list[BenchRow]) -> str:
    """One table a machine: what a round costs in reads, and how many times PDR's that is."""
    return "\n\n".join(
        f"{CLIENTS} clients, float32, {machine}:\n\n{_table(_on(rows, machine))}"
        for machine in dict.fromkeys(row.machine for row in rows)
    )


def figure_panel(panel: object, rows: list[BenchRow]) -> None:
    """Times of a round over PDR's, for the largest model on each machine."""
    largest = {machine: max(row.dim for row in _on(rows, machine)) for machine in {row.machine for row in rows}}
    wanted = [row for row in rows if row.dim == largest[row.machine]]
    groups = list(dict.fromkeys((row.machine, row.dim) for row in wanted))
    places, labels = {}, []
    for group, rule in ((group, rule) for group in groups for rule in RULES):
        places[(*group, rule)] = len(places) + groups.index(group)
        labels.append(SHOWN[rule])
    for group in groups:
        of = [row for row in wanted if (row.machine, row.dim) == group]
        _title(panel, of[0], places[(*group, RULES[0])])
        for rule in RULES:
            here = {row.label: row for row in of if row.rule == rule}
            if PDR in here:
                _line(panel, here, places[(*group, rule)])
    panel.axvline(1, color=GREY, linewidth=1)
    panel.set_xscale("log")
    panel.minorticks_off()
    panel.spines["left"].set_visible(False)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    panel.set_yticks(list(places.values()), labels)
    panel.set_ylim(max(places.values()) + 0.5, -1.2)
    panel.grid(axis="x", color=LIGHT, linewidth=0.5)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("time of a round, PDR = 1", color=GREY)
    panel.set_title(f"Server time, {CLIENTS} clients", color=DARK, fontsize=11, loc="left")
    for label, colour, mark in OTHERS.values():
        panel.plot([], [], mark, color=colour, markersize=6, label=label)
    style = {"fontsize": 8, "frameon": False, "labelcolor": GREY, "handletextpad": 0.2}
    panel.legend(loc="lower left", bbox_to_anchor=(-0.3, -0.25), ncols=4, columnspacing=1, **style)


def _line(panel: object, here: dict[str, BenchRow], y: float) -> None:
    others = sorted((_ratio(row, here[PDR]), label) for label, row in _others(here))
    panel.plot([1, max([1, *(x for x, _ in others)])], [y, y], color=LIGHT, linewidth=1.5, zorder=0)
    last, above = 0.0, False
    for x, label in others:
        _, colour, mark = OTHERS[label]
        panel.plot(x, y, mark, color=colour, markersize=7, markeredgecolor="white")
        # Numbers of neighbours that are too close to stand side by side take turns above and below the line.
        above = x > CLOSE * last or not above
        where = {"xytext": (0, 5 if above else -12), "textcoords": "offset points", "ha": "center", "fontsize": 7}
        panel.annotate(f"{x:.0f}x" if x >= 10 else f"{x:.1f}x", (x, y), color=colour, **where)
        last = x


def _title(panel: object, row: BenchRow, y: float) -> None:
    text = f"{MODELS[row.dim]}, {short(row.dim)} coordinates, {_where(row)}"
    where = {"xycoords": ("axes fraction", "data"), "bbox": {"color": "white", "pad": 1}}
    panel.annotate(text, (0, y - 0.75), fontsize=8, color=DARK, weight="bold", **where)


def _table(rows: list[BenchRow]) -> str:
    heads = ["model", "rule", "one read", "PDR, `Rotated`", *(name for name, *_ in OTHERS.values())]
    lines = []
    for dim, rule in dict.fromkeys((row.dim, row.rule) for row in rows):
        here = {row.label: row for row in rows if (row.dim, row.rule) == (dim, rule)}
        own = here[PDR]
        told = f"{duration(own.seconds)} ({multiple(own.reads)}){'' if own.ok else ', wrong'}{_mark(own)}"
        cells = [_cell(here.get(label), own) for label in OTHERS]
        lines.append((f"{MODELS[dim]}, {short(dim)}", SHOWN[rule], duration(own.read_seconds), told, *cells))
    once = any(row.repeats == 1 for row in rows)
    return markdown_table(heads, lines, right=heads[2:]) + (f"\n\n{ONCE} timed once." if once else "")


ONCE = "†"


def _mark(row: BenchRow) -> str:
    return ONCE * (row.repeats == 1)


def _cell(row: BenchRow | None, own: BenchRow) -> str:
    if row is None:
        return ""
    if row.seconds is None:
        return row.failure
    return f"{_times(row, own)}x ({multiple(row.reads)}){'' if row.ok else ', wrong'}{_mark(row)}"


def _ratio(row: BenchRow, own: BenchRow) -> float:
    """By reads, each of the moment of its call: what else the machine had to do slows both."""
    return row.reads / own.reads


def _times(row: BenchRow, own: BenchRow) -> str:
    return multiple(_ratio(row, own))


def _others(here: dict[str, BenchRow]) -> list[tuple[str, BenchRow]]:
    """Who else was timed, and right."""
    return [(label, here[label]) for label in OTHERS if label in here and here[label].seconds and here[label].ok]


def _on(rows: list[BenchRow], machine: str) -> list[BenchRow]:
    return [row for row in rows if row.machine == machine]


def _where(row: BenchRow) -> str:
    """A GPU by its name, a processor by how many threads ran on it."""
    if row.device == "cuda":
        return row.machine.removeprefix("NVIDIA ")
    return row.machine.rpartition(", ")[2].replace("threads", "CPU threads")
