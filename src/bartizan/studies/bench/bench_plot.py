"""Finished rows as a figure: cost against M and p, or bars where there is one size only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bartizan._util.arguments import short
from bartizan.studies.bench.bench_rows import Row, plain, seconds
from bartizan.studies.bench.growth import AXES, LETTER, OTHER, Axis, Curve, longest

# Okabe and Ito's colours, told apart by everyone; ours first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "os^Dv<>p"
NAMES = {"clients": "clients M", "dim": "coordinates p", "seconds": "time", "reads": "reads of all updates"}


def check(path: Path) -> None:
    """Refuse before hours of measuring what can't be drawn after them."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"--plot wants a file that ends in .png or .svg, got {str(path)!r}.")
    _figure(1, 1)


def draw(rows: Sequence[Row], path: Path) -> None:
    """A row of panels for each rule: seconds and reads against every axis that has more than one value."""
    rows = [row for row in rows if row.seconds]
    if not rows:
        raise ValueError("There is nothing to draw: no engine gave a time.")
    axes = [axis for axis in AXES if longest(rows, axis)]
    figure = _growth(rows, axes) if axes else _bars(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, bbox_inches="tight")


def _growth(rows: Sequence[Row], axes: list[Axis]) -> Any:
    rules = list(dict.fromkeys(row.rule for row in rows))
    figure, panels = _figure(len(rules), 2 * len(axes))
    style = _styles(rows)
    for r, rule in enumerate(rules):
        for a, axis in enumerate(axes):
            lines = [curve for curve in longest(rows, axis) if curve.rule == rule]
            for c, cost in enumerate(("seconds", "reads")):
                panel = panels[r][2 * a + c]
                _panel(panel, lines, axis, cost, style)
                held = f", {LETTER[OTHER[axis]]} = {short(lines[0].held)}" if lines else ""
                panel.set_title(f"{rule}{held}", fontsize=10)
    figure.suptitle(_headline(rows), fontsize=12)
    return figure


def _panel(panel: Any, lines: list[Curve], axis: Axis, cost: str, style: dict[str, dict[str, str]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for curve in lines:
        x = [getattr(row, axis) for row in curve.rows]
        y = [getattr(row, cost) for row in curve.rows]
        slope = f", {LETTER[axis]}^{curve.slope:.2f}" if cost == "seconds" else ""
        panel.plot(x, y, label=f"{curve.label}{slope}", linewidth=1.6, markersize=4, **style[curve.label])
        low = [getattr(row, f"{cost}_min") for row in curve.rows]
        high = [getattr(row, f"{cost}_max") for row in curve.rows]
        panel.fill_between(x, low, high, color=style[curve.label]["color"], alpha=0.12, linewidth=0)
    panel.set_xscale("log")
    panel.set_yscale("log")
    ticks = sorted({getattr(row, axis) for curve in lines for row in curve.rows})
    panel.set_xticks(ticks, [short(tick) for tick in ticks])
    panel.xaxis.set_minor_formatter(NullFormatter())
    low, high = panel.get_ylim()
    steps = [1.0, 2.0, 3.0, 5.0] if high < 30 * low else [1.0]  # label between the decades where there are few
    steps = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8] if high < 4 * low else steps
    panel.yaxis.set_major_locator(LogLocator(subs=steps))
    panel.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: seconds(value) if cost == "seconds" else f"{value:g}")
    )
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(NAMES[axis])
    panel.set_ylabel(NAMES[cost])
    panel.grid(True, which="major", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    if cost == "seconds":
        panel.legend(fontsize=7, frameon=False)


def _bars(rows: Sequence[Row]) -> Any:
    """Reads of each engine, a panel a rule."""
    rules = list(dict.fromkeys(row.rule for row in rows))
    figure, panels = _figure(1, len(rules))
    style = _styles(rows)
    labels = list(style)
    for panel, rule in zip(panels[0], rules, strict=True):
        here = {row.label: row for row in rows if row.rule == rule}
        for place, label in enumerate(labels):
            row = here.get(label)
            if row is None or row.reads is None or row.reads_min is None or row.reads_max is None:
                continue
            spread = [[row.reads - row.reads_min], [row.reads_max - row.reads]]
            panel.barh(place, row.reads, xerr=spread, color=style[label]["color"], height=0.7, ecolor="#555555")
            panel.annotate(
                plain(row.reads), (row.reads_max, place), (4, 0), textcoords="offset points", va="center", fontsize=8
            )
        panel.set_yticks(range(len(labels)), labels)
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.margins(x=0.25)
        panel.axvline(1, color="#888888", linewidth=0.8, linestyle=":")
        panel.set_title(rule, fontsize=10)
        panel.set_xlabel(NAMES["reads"])
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(_headline(rows), fontsize=12)
    return figure


def _headline(rows: Sequence[Row]) -> str:
    M, p = ({getattr(row, axis) for row in rows} for axis in AXES)
    sizes = "".join(f"{letter} = {short(min(values))}, " for letter, values in (("M", M), ("p", p)) if len(values) == 1)
    return f"Robust aggregation: {sizes}{rows[0].dtype} on {rows[0].machine}"


def _styles(rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    labels = dict.fromkeys(row.label for row in rows)
    return {
        label: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, label in enumerate(labels)
    }


def _figure(n_rows: int, n_columns: int) -> tuple[Any, Any]:
    """Without pyplot: nothing global, no window."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("--plot needs matplotlib: pip install 'bartizan[plot]'") from missing
    figure = Figure(figsize=(4.2 * n_columns, 3.2 * n_rows), layout="constrained")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False)
