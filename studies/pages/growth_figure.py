"""The plot of how a call grows: with the number of clients, and with the number of coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from studies.measurements.many_clients import LINEAR
from studies.plotting import COLOURS, DARK, GREY, LIGHT, RED, new_figure
from studies.rows import kept

READ = "one read of the updates"
FROM_CLIENTS = 10_000
"""Where the exponents are fitted from: with fewer clients rules take the matrix, and "auto" more dimensions."""


def draw() -> Any:
    """Return the figure of the kept rows: whole calls on the left, their distances alone on the right."""
    figure, panels = new_figure(1, 2, (9.6, 5.0))
    many = pd.DataFrame(kept("many-clients"))
    for number, (rule, own) in enumerate(many.groupby("rule", sort=False)):
        label = f"{rule}, M^{exponent(own):.2f}" if rule in LINEAR else rule
        style = "o-" if rule in LINEAR else "x--"
        panels[0][0].plot(own.clients, own.seconds, style, color=COLOURS[number], label=label, markersize=5)
    reads = many.groupby("clients").read.first()
    panels[0][0].plot(reads.index, reads, "-", color=RED, label=READ)
    _finish(panels[0][0], "10,000 coordinates", "clients")
    crossover = pd.DataFrame(kept("crossover"))
    for number, (M, own) in enumerate(crossover[crossover.M.isin([16, 64])].groupby("M")):
        for name, style in (("projected", "o-"), ("exact", "v--")):
            label = f"{name} distances, {M} clients"
            panels[0][1].plot(own.p, own[name], style, color=COLOURS[number], label=label, markersize=5)
        panels[0][1].plot(own.p, own["read"], "-", color=RED, label=READ if number else None)
    _finish(panels[0][1], "16 and 64 clients", "coordinates")
    return figure


def exponent(rows: pd.DataFrame) -> float:
    """Return the slope of log seconds over log clients, by least squares."""
    some = rows[rows.clients >= FROM_CLIENTS]
    return float(np.polyfit(np.log(some.clients), np.log(some.seconds), 1)[0])


def _finish(panel: Any, title: str, across: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.grid(which="major", color=LIGHT, linewidth=0.6)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g} s" if value >= 1 else f"{1000 * value:g} ms")
    panel.set_xlabel(across, color=GREY, fontsize=10)
    panel.set_title(title, color=DARK, fontsize=11, loc="left")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False, fontsize=8, labelcolor=GREY)
