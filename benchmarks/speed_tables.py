"""Tables, a sentence and a panel from the rows of benchmarks/speedups.py; used by benchmarks/results_page.py."""

from __future__ import annotations

from pathlib import Path

from speedups import CLIENTS, MODELS, RULES

from bartizan._util.arguments import short
from bartizan.studies.bench.bench_rows import Row, load, plain, seconds
from bartizan.studies.paper import results_page as page
from bartizan.studies.paper import scatter as picture

NAMES = {"mobilenet-v3-large": "MobileNetV3-large", "resnet18": "ResNet18", "vgg16": "VGG16"}
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
# The one row that is not of the run of its neighbours.
EARLIER = "h200-50x138M.json"
SAID = {"bartizan exact": "our exact engine", "byzfl": "ByzFL", "pair-loop": "a loop over pairs"}
CLOSE = 1.6


def read_rows(folder: Path) -> list[Row]:
    """All that was measured and can be compared, GPUs first, small models first."""
    rows = [row for path in sorted(folder.glob("speedups-*.json")) for row in load(path)]
    rows = [row for row in rows if (row.rule, row.label) not in NO_PEER]
    return sorted(rows, key=lambda row: (row.device == "cpu", row.machine, row.dim, RULES.index(row.rule)))


def read_earlier(folder: Path) -> list[Row]:
    return load(folder / EARLIER)


def tables(rows: list[Row], earlier: list[Row]) -> str:
    """One table a machine: what a round costs in reads, and how many times PDR's that is."""
    return "\n\n".join(
        f"{CLIENTS} clients, float32, {machine}:\n\n{_table(_on(rows, machine), earlier)}"
        for machine in dict.fromkeys(row.machine for row in rows)
    )


def sentence(rows: list[Row]) -> str:
    """Krum at the size of ResNet18 on every machine, and what projecting gains over our exact engine there."""
    out, gains = [], []
    for machine in dict.fromkeys(row.machine for row in rows):
        here = {row.label: row for row in _on(rows, machine) if (row.rule, row.dim) == ("krum", MODELS["resnet18"])}
        own = here.get(PDR)
        if own is None or own.seconds is None:
            continue
        times = [
            f"{_times(row, own)} times as long with {SAID[label]}" + (", timed once" if row.repeats == 1 else "")
            for label, row in _others(here)
            if label in SAID
        ]
        out.append(f"{seconds(own.seconds)} on {_where(own)} ({'; '.join(times)})")
        if gained := _gained(_on(rows, machine)):
            gains.append(f"{min(gained):.2g} to {max(gained):.2g} times as long as PDR on {_where(own)}")
    if not out:
        return ""
    more = f" Over all rules and sizes our exact engine takes {', '.join(gains)}." if gains else ""
    return f"A round of Krum on {CLIENTS} updates of ResNet18's size takes {', and '.join(out)}.{more}"


def figure_panel(panel: object, rows: list[Row]) -> None:
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
    panel.axvline(1, color=picture.SOFT, linewidth=1)
    panel.set_xscale("log")
    panel.minorticks_off()
    panel.spines["left"].set_visible(False)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    panel.set_yticks(list(places.values()), labels)
    panel.set_ylim(max(places.values()) + 0.5, -1.2)
    panel.grid(axis="x", color=picture.LINE, linewidth=0.5)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("time of a round, PDR = 1", color=picture.SOFT)
    panel.set_title(f"Server time, {CLIENTS} clients", color=picture.INK, fontsize=11, loc="left")
    for label, colour, mark in OTHERS.values():
        panel.plot([], [], mark, color=colour, markersize=6, label=label)
    style = {"fontsize": 8, "frameon": False, "labelcolor": picture.SOFT, "handletextpad": 0.2}
    panel.legend(loc="lower left", bbox_to_anchor=(-0.3, -0.25), ncols=4, columnspacing=1, **style)


def _line(panel: object, here: dict[str, Row], y: float) -> None:
    others = sorted((_ratio(row, here[PDR]), label) for label, row in _others(here))
    panel.plot([1, max([1, *(x for x, _ in others)])], [y, y], color=picture.LINE, linewidth=1.5, zorder=0)
    last, above = 0.0, False
    for x, label in others:
        _, colour, mark = OTHERS[label]
        panel.plot(x, y, mark, color=colour, markersize=7, markeredgecolor="white")
        # Numbers of neighbours that are too close to stand side by side take turns above and below the line.
        above = x > CLOSE * last or not above
        where = {"xytext": (0, 5 if above else -12), "textcoords": "offset points", "ha": "center", "fontsize": 7}
        panel.annotate(f"{x:.0f}x" if x >= 10 else f"{x:.1f}x", (x, y), color=colour, **where)
        last = x


def _title(panel: object, row: Row, y: float) -> None:
    text = f"{_model(row.dim)}, {short(row.dim)} coordinates, {_where(row)}"
    where = {"xycoords": ("axes fraction", "data"), "bbox": {"color": "white", "pad": 1}}
    panel.annotate(text, (0, y - 0.75), fontsize=8, color=picture.INK, weight="bold", **where)


def _table(rows: list[Row], earlier: list[Row]) -> str:
    heads = ("model", "rule", "one read", "PDR, `Rotated`", *(name for name, *_ in OTHERS.values()))
    lines = [heads, ("---", "---", *["--:"] * (len(heads) - 2))]
    for dim, rule in dict.fromkeys((row.dim, row.rule) for row in rows):
        here = {row.label: row for row in rows if (row.dim, row.rule) == (dim, rule)}
        own = here[PDR]
        told = f"{seconds(own.seconds)} ({plain(own.reads)}){'' if own.ok else ', wrong'}{_mark(own, earlier)}"
        cells = [_cell(here.get(label), own, earlier) for label in OTHERS]
        lines.append((f"{_model(dim)}, {short(dim)}", SHOWN[rule], seconds(own.read_seconds), told, *cells))
    notes = [f"{ONCE} timed once."] if any(row.repeats == 1 for row in rows) else []
    if of := [row for row in rows if row in earlier]:
        notes.append(f"{BEFORE} of an earlier run, {of[0].repeats} calls (`benchmarks/results/{EARLIER}`).")
    return page.table(lines) + "".join(f"\n\n{note}" for note in notes)


ONCE, BEFORE = "†", "‡"


def _mark(row: Row, earlier: list[Row]) -> str:
    return ONCE * (row.repeats == 1) + BEFORE * (row in earlier)


def _cell(row: Row | None, own: Row, earlier: list[Row]) -> str:
    if row is None:
        return ""
    if row.seconds is None:
        return "not run" if row.judged.startswith("not run") else "fails"
    return f"{_times(row, own)}x ({plain(row.reads)}){'' if row.ok else ', wrong'}{_mark(row, earlier)}"


def _ratio(row: Row, own: Row) -> float:
    """By reads, each of the moment of its call: what else the machine had to do slows both."""
    return row.reads / own.reads


def _times(row: Row, own: Row) -> str:
    return plain(_ratio(row, own))


def _gained(rows: list[Row]) -> list[float]:
    """Our exact engine's time over PDR's, of every rule and size."""
    exact = {(row.dim, row.rule): row for row in rows if row.label == "bartizan exact" and row.reads}
    both = [(exact[row.dim, row.rule], row) for row in rows if row.label == PDR and (row.dim, row.rule) in exact]
    return [_ratio(one, own) for one, own in both if own.reads]


def _others(here: dict[str, Row]) -> list[tuple[str, Row]]:
    """Who else was timed, and right."""
    return [(label, here[label]) for label in OTHERS if label in here and here[label].seconds and here[label].ok]


def _on(rows: list[Row], machine: str) -> list[Row]:
    return [row for row in rows if row.machine == machine]


def _model(dim: int) -> str:
    return next(NAMES[model] for model, p in MODELS.items() if p == dim)


def _where(row: Row) -> str:
    """A GPU by its name, a processor by how many threads ran on it."""
    if row.device == "cuda":
        return row.machine.removeprefix("NVIDIA ")
    return row.machine.rpartition(", ")[2].replace("threads", "CPU threads")
