"""Draw PDR minus base of the stress table: each cell with its seeds, and the pooled 95% interval of each sketch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from studies.paper.cells import BAD_SIZE, STRESS
from studies.paper.compare import MARGIN, USUAL, CellComparison, Summary
from studies.plotting import COLOURS, DARK, GREY, LIGHT, RED, new_figure

MAIN = "rotated"
LINEAR = 2.0  # points to both sides; beyond, the axis is logarithmic
NAMES = {"rotated": "Rotated", "achlioptas": "Achlioptas", "bad-unsigned-sum": "bad sketch"}


def draw(rows: Sequence[CellComparison]) -> Any:
    """Return the figure: cells of the usual sketch and of the bad one to the left, pooled intervals to the right."""
    pooled = main_protocol(rows)
    if not pooled:
        raise ValueError("There is nothing to draw: no cell of the stress table has both a base and a projected run.")
    figure, panels = new_figure(1, 2, (10.4, 4.8), width_ratios=[1.25, 1])
    _cells(panels[0][0], pooled)
    _intervals(panels[0][1], pooled)
    return figure


def main_protocol(rows: Sequence[CellComparison]) -> dict[tuple[str, int], Summary]:
    """Return the stress table's pairs by sketch and k, pooled, of the protocol that has most of them."""
    own = [row for row in rows if row.compared and row.cell.table == STRESS]
    letters = sorted(row.protocol for row in own)
    own = [row for row in own if row.protocol == max(letters, key=letters.count)]
    keys = dict.fromkeys((row.sketch, row.cell.k or 0) for row in own)
    return {key: Summary.of(row for row in own if (row.sketch, row.cell.k or 0) == key) for key in keys}


def _cells(panel: Any, pooled: dict[tuple[str, int], Summary]) -> None:
    shown = [(key, pooled[key]) for key in ((MAIN, USUAL), ("bad-unsigned-sum", BAD_SIZE)) if key in pooled]
    places = {base: n for n, base in enumerate(dict.fromkeys(row.cell.base for _, of in shown for row in of.cells))}
    names = {row.cell.base: f"{row.rule}, {row.cell.attack}" for _, of in shown for row in of.cells}
    for (sketch, _), of in shown:
        bad = sketch != MAIN
        colour = RED if bad else COLOURS[0]
        for row in of.cells:
            if row.cell.base in places and row.raw_differences:
                y = places[row.cell.base] + 0.18 * (1 if bad else -1)
                panel.plot(row.raw_differences, [y] * len(row.raw_differences), color=colour, linewidth=1, alpha=0.5)
                panel.plot(row.raw_differences, [y] * len(row.raw_differences), ".", color=colour, markersize=4)
                panel.plot(mean(row.raw_differences), y, "s" if bad else "o", color=colour, markersize=5.5)
        panel.plot(
            [], [], "s" if bad else "o", color=colour, label=label(sketch, USUAL if sketch == MAIN else BAD_SIZE)
        )
    panel.set_yticks(list(places.values()), [names[base] for base in places])
    panel.invert_yaxis()
    _band(panel)
    panel.set_title("Each cell: mean of its seeds (small points)", color=DARK, fontsize=11, loc="left")
    style = {"fontsize": 8, "frameon": False, "labelcolor": GREY}
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, **style)


def _intervals(panel: Any, pooled: dict[tuple[str, int], Summary]) -> None:
    with_interval = [(key, of) for key, of in pooled.items() if of.half is not None]
    for y, ((sketch, _), of) in enumerate(with_interval):
        colour = RED if sketch not in ("rotated", "achlioptas") else COLOURS[0]
        middle, half = mean(of.raw_differences), of.half or 0.0
        panel.errorbar(middle, y, xerr=half, fmt="D", color=colour, capsize=4, markersize=6, linewidth=2)
        panel.annotate(
            f"{middle:+.2f} ± {half:.2f}",
            (middle, y),
            (0, 9),
            textcoords="offset points",
            fontsize=9,
            color=DARK,
            ha="center",
        )
    panel.set_yticks(range(len(with_interval)), [label(*key) for key, _ in with_interval])
    panel.set_ylim(len(with_interval) - 0.4, -0.7)
    _band(panel)
    panel.set_title("Pooled: 95% interval of the mean", color=DARK, fontsize=11, loc="left")


def _band(panel: Any) -> None:
    panel.set_xscale("symlog", linthresh=LINEAR)
    low, high = panel.get_xlim()
    ticks = [tick for tick in (-40, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 40) if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    panel.minorticks_off()
    panel.axvspan(-MARGIN, MARGIN, color=LIGHT, alpha=0.5, zorder=0)
    panel.axvline(0, color=GREY, linewidth=0.8, zorder=0)
    panel.set_xlabel("PDR minus base, points of accuracy", color=GREY)


def label(sketch: str, k: int) -> str:
    """Return the name of a sketch for readers.

    >>> label("rotated", 4096), label("bad-unsigned-sum", 16)
    ('Rotated(k=4096)', 'bad sketch (k=16, no signs)')
    """
    return f"{NAMES[sketch]} (k={k}, no signs)" if sketch.startswith("bad") else f"{NAMES[sketch]}(k={k})"
