"""PDR against base, a point a cell: what lies on the diagonal has lost nothing."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from bartizan._util.atomic import write_whole
from bartizan.studies.paper.compare import Row
from bartizan.studies.paper.summary import Summary, broke

COLOURS = {"krum": "#0072b2", "bulyan": "#d55e00", "geometric-median": "#00875f", "mca": "#b4549a"}
MARKS = {"sign-flip": "o", "lie": "s", "foe": "^", "gaussian": "D"}
INK, SOFT, LINE, PAPER = "#14171c", "#545c68", "#d9dbd8", "#9aa1ab"


def check(path: Path) -> None:
    """Refuse what can't be drawn before anything is read."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"--plot wants a file that ends in .png or .svg, got {str(path)!r}.")
    figure(1, (1, 1))


def draw(rows: Sequence[Row], path: Path) -> None:
    """The scatter alone, as a file."""
    drawn, (panel,) = figure(1, (5.2, 5.0))
    scatter(panel, rows)
    save(drawn, path)


def scatter(panel: Any, rows: Sequence[Row]) -> None:
    """Ours by rule and attack, hollow where a run did not converge; the paper's own cells in grey."""
    points = [(row, _best(row, 0), _best(row, 1)) for row in rows if row.compared]
    if not points:
        raise ValueError("There is nothing to draw: no cell has both a base and its projected twin.")
    panel.plot([0, 100], [0, 100], color=LINE, linewidth=1, zorder=0)
    theirs = [
        (base.accuracy, pdr.accuracy)
        for row, *_ in points
        for base, pdr in row.paper_pairs
        if base.accuracy is not None and pdr.accuracy is not None
    ]
    for x, y in dict.fromkeys(theirs):
        panel.plot(x, y, "+", color=PAPER, markersize=6, markeredgewidth=1, zorder=1)
    size = 7 if len(points) < 40 else 5.5
    for row, x, y in points:
        colour = COLOURS[row.cell.rule]
        hollow = broke(row.base) or broke(row.pdr)
        style = {"markerfacecolor": "white" if hollow else colour, "markeredgecolor": colour if hollow else "white"}
        panel.plot(x, y, MARKS[row.cell.attack], markersize=size, alpha=0.85, zorder=2, **style)
    values = [value for point in (*((x, y) for _, x, y in points), *theirs) for value in point]
    low, high = min(values) - 4, max(values) + 4
    panel.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    panel.grid(color=LINE, linewidth=0.5, zorder=0)
    panel.set_xlabel("base: the rule on all coordinates", color=SOFT)
    panel.set_ylabel("PDR: the rule on the projection", color=SOFT)
    distinct = len(Summary.of(rows).rows)
    told = f"{len(points)} cells" + (f" ({distinct} distinct)" if distinct < len(points) else "")
    panel.set_title(f"Best test accuracy, {told}, %", color=INK, fontsize=11, loc="left")
    _legend(panel, [row for row, *_ in points], bool(theirs))


def _legend(panel: Any, rows: Sequence[Row], theirs: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    # A rule is a colour and an attack a mark: patches for the one, marks without colour for the other.
    def entry(label: str, mark: str, **style: Any) -> Any:
        return Line2D([], [], linestyle="", marker=mark, markersize=6, label=label, **{"color": SOFT, **style})

    there = {row.cell.rule for row in rows}, {row.cell.attack for row in rows}
    entries: list[Any] = [Patch(color=colour, label=rule) for rule, colour in COLOURS.items() if rule in there[0]]
    entries += [entry(attack, mark) for attack, mark in MARKS.items() if attack in there[1]]
    if any(broke(row.base) or broke(row.pdr) for row in rows):
        entries.append(Patch(facecolor="white", edgecolor=SOFT, label="hollow: did not converge"))
    if theirs:
        entries.append(entry("the paper's", "+", color=PAPER))
    style = {"fontsize": 8, "frameon": False, "labelcolor": SOFT, "handletextpad": 0.6, "handlelength": 1.8}
    panel.legend(handles=entries, loc="upper left", **style)


def figure(n_panels: int, size: tuple[float, float], **more: Any) -> tuple[Any, Any]:
    """Without pyplot: nothing global, no window."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("A picture needs matplotlib: pip install 'bartizan[plot]'") from missing
    drawn = Figure(figsize=size, layout="constrained", facecolor="white")
    panels = drawn.subplots(1, n_panels, squeeze=False, **more)[0]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[:].set_color(LINE)
        panel.tick_params(color=LINE, labelcolor=SOFT)
    return drawn, panels


def save(drawn: Any, path: Path, about: str = "") -> None:
    """With `about` in the file, but neither the date nor matplotlib's version: the same runs give the same bytes."""
    from matplotlib import rc_context

    own = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "bartizan"}):
        more = {"Description": about} if about else {}
        drawn.savefig(out, format=path.suffix[1:], dpi=160, metadata={**own, **more})
    write_whole(path, out.getvalue())


def _best(row: Row, which: int) -> float:
    """Of base (0) or PDR (1), the mean over the seeds that both have."""
    return mean(best for pair in row.pairs if (best := pair[which].best) is not None)
