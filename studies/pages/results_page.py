"""The tables and figures of the pages, from what is kept in studies/results.

What stands between `<!-- made: NAME -->` and `<!-- end -->` is made; the text around is written by hand. The speed
tables come from `speed-*.json` (`make speed`), those of the campaign from `hostile.json` (`make fuzz`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from bartizan._util.atomic import write_whole
from fuzz import page
from studies import plotting
from studies.guide import decision_guide as guide
from studies.guide.experiments import CONTROL, FEWER, N_ATTACKERS
from studies.guide.kept_rows import stage_file
from studies.guide.projection_tables import findings, projection_tables
from studies.options import add_command
from studies.pages import cost_figure, growth_figure, measured_tables, shop_window, speed_tables, training_figure
from studies.paper import comparison_tables as tables
from studies.paper import interval_plot, scatter_plot
from studies.paper.cells import ABLATION
from studies.paper.compare import CellComparison, compare
from studies.rows import RESULTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIGURE = DOCS / "images" / "results.png"
INTERVALS = DOCS / "images" / "projection-intervals.png"
TRAINING = DOCS / "images" / "training.png"
COST = DOCS / "images" / "cost.png"
GROWTH = DOCS / "images" / "growth.png"
PAGES = (
    DOCS / "results.md",
    ROOT / "studies" / "paper" / "notebook.md",
    ROOT / "studies" / "theory" / "notebook.md",
    ROOT / "studies" / "measurements" / "notebook.md",
    DOCS / "explanation" / "speed.md",
    DOCS / "guides" / "choosing.md",
    DOCS / "reference" / "models.md",
    DOCS / "explanation" / "campaign.md",
    DOCS / "theory.md",
    DOCS / "explanation" / "measured-bounds.md",
    DOCS / "explanation" / "sketches.md",
    DOCS / "explanation" / "adaptive.md",
    DOCS / "explanation" / "scaling.md",
    DOCS / "explanation" / "committed.md",
    DOCS / "guides" / "adapters.md",
    DOCS / "guides" / "distributed.md",
    DOCS / "guides" / "buffered.md",
    DOCS / "guides" / "few-sites.md",
    DOCS / "flower.md",
    DOCS / "nvflare.md",
    ROOT / "README.md",
)
CPU, GPU = "speed-cpu.json", "speed-h200.json"
LARGE = ("mean", "krum", "bulyan", "geometric-median", "mca", "median")  # rules that were timed at the largest size
MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# The server's times of one run are mostly noise: they are told by rule.
WITHOUT = ("ours speed",)


def add_to(commands: Any) -> None:
    add_command(commands, write_pages, "pages")


def write_pages(*, check: Annotated[bool, "write nothing; say which page is not what it should be"] = False) -> int:
    """Write the tables and figures of the pages."""
    old = stale()
    if check:
        for path in old:
            print(f"{path.name} is not what the results make of it: run python -m studies pages")
        return bool(old)
    new = parts()
    for path in PAGES:
        write_whole(path, made(path.read_text(encoding="utf-8"), new))
    for path, made_of in figures().items():
        if path in old:
            plotting.save(draw(path), path, made_of)
    print("changed: " + (", ".join(path.name for path in old) or "nothing"))
    return 0


def parts() -> dict[str, str]:
    """Return the generated tables by the names of their markers."""
    found, literal = compare(RESULTS / "paper.jsonl"), compare(RESULTS / "paper-literal.jsonl")
    rows, cost = main_rows(found.rows), partial(speed_tables.cost_table, RESULTS)
    return {
        "pooled": tables.pooled_table(literal),
        "far": tables.far_cells(literal),
        "literal_cells": tables.markdown(literal, WITHOUT),
        "groups": tables.groups(rows),
        "breakdown": tables.breakdowns(rows),
        "weights": tables.weights(rows),
        "cells": tables.markdown(found, WITHOUT),
        "speed": speed_tables.tables(speed_tables.read_rows(RESULTS)),
        "cost": cost(CPU, 50, speed_tables.RESNET18, LARGE),
        "cost_middle": cost(CPU, 50, 1_000_000),
        "cost_gpu": cost(GPU, 50, speed_tables.RESNET18, LARGE),
        **guide.parts(),
        "projection": projection_tables(RESULTS / "projection.jsonl"),
        "projection_findings": findings(stage_file("projection"), f"{CONTROL['name']} {CONTROL['k']}"),
        "projection_mlp": projection_tables(stage_file("projection")),
        "projection_large": projection_tables(stage_file("projection-large")),
        "achlioptas": projection_tables(stage_file("achlioptas"), N_ATTACKERS),
        "achlioptas_ks": projection_tables(stage_file("achlioptas"), FEWER["clients.byzantine"]),
        "campaign": page.section(json.loads((RESULTS / "hostile.json").read_text(encoding="utf-8"))),
        "does_it_help": shop_window.does_it_help(),
        **measured_tables.parts(),
    }


def main_rows(rows: Sequence[CellComparison]) -> list[CellComparison]:
    """Return the cells of the summary: CIFAR-10's large tables, projected by the default sketch."""
    return [row for row in rows if (row.cell.data, row.sketch) == ("cifar10", "rotated") and row.cell.table != ABLATION]


def made(text: str, parts: dict[str, str]) -> str:
    """Return a page with the generated tables between their markers."""
    return MADE.sub(lambda place: f"{place[1]}{parts[place[2]]}\n{place[3]}", text)


def digest(*parts: Path | ModuleType) -> str:
    """Return a hash of a figure's data and code, which its file contains: pixels depend on matplotlib's version."""
    files = [part if isinstance(part, Path) else Path(part.__file__ or "") for part in parts]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def figures() -> dict[Path, str]:
    """Return the digest of each figure."""
    speed = sorted(RESULTS.glob("speed-*.json"))
    return {
        FIGURE: digest(RESULTS / "paper.jsonl", *speed, scatter_plot, speed_tables),
        INTERVALS: digest(RESULTS / "paper-literal.jsonl", interval_plot),
        TRAINING: digest(RESULTS / "training.jsonl", training_figure),
        COST: digest(RESULTS / CPU, cost_figure),
        GROWTH: digest(RESULTS / "many-clients.jsonl", RESULTS / "crossover.jsonl", growth_figure),
    }


def draw(path: Path) -> Any:
    """Return one of the figures."""
    if path == INTERVALS:
        return interval_plot.draw(compare(RESULTS / "paper-literal.jsonl").rows)
    if path == TRAINING:
        return training_figure.draw()
    if path == COST:
        return cost_figure.draw()
    if path == GROWTH:
        return growth_figure.draw()
    figure, panels = plotting.new_figure(1, 2, (10.4, 4.8), width_ratios=[1, 1.1])
    scatter_plot.scatter(panels[0][0], main_rows(compare(RESULTS / "paper.jsonl").rows))
    speed_tables.figure_panel(panels[0][1], speed_tables.read_rows(RESULTS))
    return figure


def stale() -> list[Path]:
    """Return the pages and figures that differ from what the results give."""
    new = parts()
    pages = [path for path in PAGES if made(path.read_text(encoding="utf-8"), new) != path.read_text(encoding="utf-8")]
    old = [path for path, made in figures().items() if not (path.exists() and made.encode() in path.read_bytes())]
    return [*pages, *old]
