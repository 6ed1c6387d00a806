"""Draw benchmark rows: cost against M and p, or bars where there is one size only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bartizan._util.arguments import short
from studies.speed.speed_rows import LETTER, OTHER, Axis, BenchRow, Curve, longest
from studies.tables import duration, multiple
from studies.plotting import COLOURS, new_figure

MARKERS = "os^Dv<>p"
NAMES = {"clients": "clients M", "dim": "coordinates p", "seconds": "time", "reads": "reads of all updates"}
PANEL = 4.2, 3.2  # inches
Styles = dict[str, dict[str, str]]


def draw(rows: Sequence[BenchRow]) -> Any:
    """Return a figure with a row of panels for each rule: seconds and reads against every axis that varies."""
    rows = [row for row in rows if row.seconds]
    if not rows:
        raise ValueError("There is nothing to draw: no engine gave a time.")
    labels = list(dict.fromkeys(row.label for row in rows))
    styles: Styles = {
        label: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, label in enumerate(labels)
    }
    axes = [axis for axis in LETTER if longest(rows, axis)]
    figure = _growth(rows, axes, styles) if axes else _bars(rows, styles)
    sizes = {"M": {row.clients for row in rows}, "p": {row.dim for row in rows}}
    shown = "".join(f"{letter} = {short(min(of))}, " for letter, of in sizes.items() if len(of) == 1)
    figure.suptitle(f"Robust aggregation: {shown}{rows[0].dtype} on {rows[0].machine}", fontsize=12)
    return figure


def _growth(rows: Sequence[BenchRow], axes: list[Axis], styles: Styles) -> Any:
    rules = list(dict.fromkeys(row.rule for row in rows))
    n_columns = 2 * len(axes)
    figure, panels = new_figure(len(rules), n_columns, (PANEL[0] * n_columns, PANEL[1] * len(rules)))
    for r, rule in enumerate(rules):
        for a, axis in enumerate(axes):
            lines = [curve for curve in longest(rows, axis) if curve.rule == rule]
            for c, cost in enumerate(("seconds", "reads")):
                panel = panels[r][2 * a + c]
                _panel(panel, lines, axis, cost, styles)
                held = f", {LETTER[OTHER[axis]]} = {short(lines[0].held)}" if lines else ""
                panel.set_title(f"{rule}{held}", fontsize=10)
    return figure


def _panel(panel: Any, lines: list[Curve], axis: Axis, cost: str, styles: Styles) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for curve in lines:
        x = [getattr(row, axis) for row in curve.rows]
        y, low, high = ([getattr(row, cost + end) for row in curve.rows] for end in ("", "_min", "_max"))
        slope = f", {LETTER[axis]}^{curve.slope:.2f}" if cost == "seconds" else ""
        panel.plot(x, y, label=f"{curve.label}{slope}", linewidth=1.6, markersize=4, **styles[curve.label])
        panel.fill_between(x, low, high, color=styles[curve.label]["color"], alpha=0.12, linewidth=0)
    panel.set_xscale("log")
    panel.set_yscale("log")
    ticks = sorted({getattr(row, axis) for curve in lines for row in curve.rows})
    panel.set_xticks(ticks, [short(tick) for tick in ticks])
    panel.xaxis.set_minor_formatter(NullFormatter())
    low, high = panel.get_ylim()
    steps = [1.0, 2.0, 3.0, 5.0] if high < 30 * low else [1.0]  # labels between the decades where there are few
    steps = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8] if high < 4 * low else steps
    panel.yaxis.set_major_locator(LogLocator(subs=steps))
    panel.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: duration(value) if cost == "seconds" else f"{value:g}")
    )
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel(NAMES[axis])
    panel.set_ylabel(NAMES[cost])
    panel.grid(True, which="major", alpha=0.25)
    if cost == "seconds":
        panel.legend(fontsize=7, frameon=False)


def _bars(rows: Sequence[BenchRow], styles: Styles) -> Any:
    """Reads of each engine, a panel a rule."""
    rules = list(dict.fromkeys(row.rule for row in rows))
    figure, panels = new_figure(1, len(rules), (PANEL[0] * len(rules), PANEL[1]))
    labels = list(styles)
    for panel, rule in zip(panels[0], rules, strict=True):
        for row in (row for row in rows if row.rule == rule):
            if row.reads is None or row.reads_min is None or row.reads_max is None:
                continue
            place, spread = labels.index(row.label), [[row.reads - row.reads_min], [row.reads_max - row.reads]]
            panel.barh(place, row.reads, xerr=spread, color=styles[row.label]["color"], height=0.7, ecolor="#555555")
            end = {"textcoords": "offset points", "va": "center", "fontsize": 8}
            panel.annotate(multiple(row.reads), (row.reads_max, place), (4, 0), **end)
        panel.set_yticks(range(len(labels)), labels)
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.margins(x=0.25)
        panel.axvline(1, color="#888888", linewidth=0.8, linestyle=":")
        panel.set_title(rule, fontsize=10)
        panel.set_xlabel(NAMES["reads"])
    return figure
