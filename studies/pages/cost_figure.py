"""The README's plot of costs: the milliseconds of one call by rule and library, at two sizes."""

from __future__ import annotations

from typing import Any

from studies.pages.speed_tables import PDR, RESNET18, RULES, SHOWN, frame
from studies.plotting import COLOURS, DARK, GREY, LIGHT, RED, new_figure
from studies.rows import RESULTS
from studies.speed.speed_rows import load

CLIENTS, CPU = 50, RESULTS / "speed-cpu.json"
SIZES = {1_000_000: "50 clients x 1 million numbers", RESNET18: "50 clients x 11.7 million numbers"}
DRAWN = {
    PDR: ("bartizan, projected", COLOURS[0], "o"),
    "bartizan exact": ("bartizan, exact", COLOURS[5], "v"),
    "byzfl": ("ByzFL", COLOURS[4], "s"),
    "pair-loop": ("a Python loop over pairs", GREY, "X"),
}


def draw() -> Any:
    """Return the figure of the kept rows."""
    table = frame(load(CPU))
    figure, panels = new_figure(1, 2, (9.6, 3.9), sharey=True)
    for panel, (dim, title) in zip(panels[0], SIZES.items(), strict=True):
        _size(panel, table[(table.clients == CLIENTS) & (table.dim == dim) & table.seconds.notna()], title)
    panels[0][0].set_yticks(range(len(RULES)), [SHOWN[rule] for rule in RULES])
    panels[0][0].tick_params(axis="y", length=0, labelsize=11, labelcolor=DARK)
    panels[0][0].set_ylim(len(RULES) - 0.5, -0.5)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=10, labelcolor=DARK
    )
    return figure


def _size(panel: Any, table: Any, title: str) -> None:
    milliseconds = {(row.label, row.rule): 1000 * row.seconds for row in table.itertuples()}
    panel.axvline(milliseconds["torch", "mean"], color=RED, linewidth=1.5, label="torch's plain mean", zorder=1)
    for label, (name, colour, mark) in DRAWN.items():
        points = [(milliseconds[label, rule], y) for y, rule in enumerate(RULES) if (label, rule) in milliseconds]
        panel.plot(*zip(*points, strict=True), mark, color=colour, markersize=9, label=name, zorder=3)
    panel.set_xscale("log")
    panel.grid(axis="both", which="major", color=LIGHT, linewidth=0.6)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms")
    panel.set_xlabel("one call on two CPU cores", color=GREY, fontsize=10)
    panel.set_title(title, color=DARK, fontsize=12, loc="left")
    panel.tick_params(axis="x", labelsize=10)
    panel.tick_params(which="minor", color=LIGHT)
