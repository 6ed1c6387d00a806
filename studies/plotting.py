"""Create and save matplotlib figures without pyplot, so that nothing is global and no window opens."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from bartizan._util.atomic import write_whole
from bartizan._util.extras import missing_extra

# Distinguishable with any colour vision.
COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b4549a", "#a67500", "#3a9bd5", "#5c4b9b", "#6c737d")
DARK, GREY, LIGHT, RED = "#14171c", "#545c68", "#d9dbd8", "#c1121f"


def check_path(path: Path) -> None:
    """Raise before any measurement if a figure could not be drawn or saved after it."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"--plot wants a file that ends in .png or .svg, got {str(path)!r}.")
    new_figure(1, 1, (1, 1))


def new_figure(n_rows: int, n_columns: int, size: tuple[float, float], **more: Any) -> tuple[Any, Any]:
    """Return a figure of `size` inches and its panels, an array of `n_rows` by `n_columns`."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise missing_extra("Figures need matplotlib", "plot", name="matplotlib") from missing
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    panels = figure.subplots(n_rows, n_columns, squeeze=False, **more)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[:].set_color(LIGHT)
        panel.tick_params(color=LIGHT, labelcolor=GREY, labelsize=8)
    return figure, panels


def encoded(figure: Any, kind: str = "png", description: str = "") -> bytes:
    """Return a figure as a PNG or SVG file, with neither date nor version: the same data give the same bytes."""
    from matplotlib import rc_context

    metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "bartizan"}):
        about = {"Description": description} if description else {}
        figure.savefig(out, format=kind, dpi=160 if kind == "png" else None, metadata={**metadata, **about})
    return out.getvalue()


def save(figure: Any, path: Path, description: str = "") -> None:
    """Write a figure to a .png or .svg file, whole or not at all."""
    write_whole(path, encoded(figure, path.suffix[1:], description))
