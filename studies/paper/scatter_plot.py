"""Draw PDR against base, a point a cell: on the diagonal nothing is lost by projecting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from studies.paper.compare import CellComparison, Summary, failed
from studies.plotting import COLOURS, DARK, GREY, LIGHT, new_figure

RULES = dict(zip(("krum", "bulyan", "geometric-median", "mca"), COLOURS, strict=False))
MARKERS = {"sign-flip": "o", "lie": "s", "foe": "^", "gaussian": "D", "alie": "v", "ipm": "P", "min-max": "X"}
PAPER = "#9aa1ab"


def draw(rows: Sequence[CellComparison]) -> Any:
    """Return a figure with the scatter plot alone."""
    figure, panels = new_figure(1, 1, (5.2, 5.0))
    scatter(panels[0][0], rows)
    return figure


def scatter(panel: Any, rows: Sequence[CellComparison]) -> None:
    """Draw our cells by rule and attack, hollow where a run did not converge, and the paper's cells in grey."""
    points = [(row, _best(row, 0), _best(row, 1)) for row in rows if row.compared]
    if not points:
        raise ValueError("There is nothing to draw: no cell has both a base and a projected run.")
    panel.plot([0, 100], [0, 100], color=LIGHT, linewidth=1, zorder=0)
    paper = [
        (base.accuracy_percent, pdr.accuracy_percent)
        for row, *_ in points
        for base, pdr in row.paper_pairs
        if base.accuracy_percent is not None and pdr.accuracy_percent is not None
    ]
    for x, y in dict.fromkeys(paper):
        panel.plot(x, y, "+", color=PAPER, markersize=6, markeredgewidth=1, zorder=1)
    size = 7 if len(points) < 40 else 5.5
    for row, x, y in points:
        colour, hollow = RULES[row.cell.rule], _hollow(row)
        style = {"markerfacecolor": "white" if hollow else colour, "markeredgecolor": colour if hollow else "white"}
        panel.plot(x, y, MARKERS[row.cell.attack], markersize=size, alpha=0.85, zorder=2, **style)
    values = [value for point in (*((x, y) for _, x, y in points), *paper) for value in point]
    low, high = min(values) - 4, max(values) + 4
    panel.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    panel.grid(color=LIGHT, linewidth=0.5, zorder=0)
    panel.set_xlabel("base: the rule on all coordinates", color=GREY)
    panel.set_ylabel("PDR: the rule on the projection", color=GREY)
    distinct = len(Summary.of(rows).rows)
    count = f"{len(points)} cells" + (f" ({distinct} distinct)" if distinct < len(points) else "")
    panel.set_title(f"Best test accuracy, {count}, %", color=DARK, fontsize=11, loc="left")
    _legend(panel, [row for row, *_ in points], bool(paper))


def _legend(panel: Any, rows: Sequence[CellComparison], paper: bool) -> None:
    """Patches for rules, which are colours; grey markers for attacks."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def entry(label: str, marker: str, colour: str = GREY) -> Any:
        return Line2D([], [], linestyle="", marker=marker, markersize=6, label=label, color=colour)

    rules, attacks = {row.cell.rule for row in rows}, {row.cell.attack for row in rows}
    entries: list[Any] = [Patch(color=colour, label=rule) for rule, colour in RULES.items() if rule in rules]
    entries += [entry(attack, marker) for attack, marker in MARKERS.items() if attack in attacks]
    if any(map(_hollow, rows)):
        entries.append(Patch(facecolor="white", edgecolor=GREY, label="hollow: did not converge"))
    if paper:
        entries.append(entry("the paper's", "+", PAPER))
    style = {"fontsize": 8, "frameon": False, "labelcolor": GREY, "handletextpad": 0.6, "handlelength": 1.8}
    panel.legend(handles=entries, loc="upper left", **style)


def _hollow(row: CellComparison) -> bool:
    return failed(row.base) or failed(row.pdr)


def _best(row: CellComparison, which: int) -> float:
    """Return the best accuracy of base (0) or PDR (1), mean over the seeds that both have."""
    return mean(best for pair in row.pairs if (best := pair[which].best_percent) is not None)
