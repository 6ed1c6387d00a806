"""The results page, its figure, the tables of costs and of the fuzz campaign, from what is kept in benchmarks/results.

    bartizan paper keep runs/paper benchmarks/results/paper.jsonl --commit HASH   # runs, after `bartizan paper run`
    python benchmarks/results_page.py                                            # write what is made of them
    python benchmarks/results_page.py --check                                    # 1 if the pages say something else

What stands between `<!-- made: NAME -->` and `<!-- end -->` is made; the text around is written by hand. The speed
tables come from `speed-*.json` (`make speed`), those of the campaign from `hostile.json` (`make fuzz`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import decision_guide
import results_text
import speed_tables
from speed_tables import RESNET18, cost_table, figure_panel, read_rows, sentence, tables, where

from bartizan._util.atomic import write_whole
from bartizan.studies import plotting
from bartizan.studies.paper import comparison_tables, interval_plot, kept_runs, scatter_plot
from bartizan.studies.paper.compare import compare, headline

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz import page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIGURE = ROOT / "docs" / "images" / "results.png"
INTERVALS = ROOT / "docs" / "images" / "projection-intervals.png"
DOCS = ROOT / "docs"
PAGES = (
    DOCS / "results.md",
    DOCS / "explanation" / "speed.md",
    DOCS / "guides" / "choosing.md",
    DOCS / "reference" / "models.md",
    DOCS / "reliability.md",
    ROOT / "README.md",
)
CPU, GPU = "speed-cpu.json", "speed-h200.json"
LARGE = ("mean", "krum", "bulyan", "geometric-median", "mca", "median")  # rules that were timed at the largest size
MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 125


def parts() -> dict[str, str]:
    """Return the generated texts by the names of their markers."""
    found = compare(RESULTS / "paper.jsonl")
    literal = compare(RESULTS / "paper-literal.jsonl")
    rows, times = results_text.main_rows(found.rows), read_rows(RESULTS)
    return {
        "headline": wrapped(f"{headline(rows)} {sentence(times)}"),
        "literal": wrapped(results_text.literal_sentences(literal)),
        "pooled": wrapped(results_text.pooled_table(literal)),
        "far": wrapped(results_text.far_cells(literal)),
        "literal_cells": wrapped(comparison_tables.markdown(literal, without=("ours speed",))),
        "summary": wrapped(results_text.bullets(rows)),
        "groups": results_text.groups(rows),
        "breakdown": results_text.breakdowns(rows),
        "weights": results_text.weights(rows),
        # The server's times of one run are mostly noise: they are told by rule.
        "cells": wrapped(comparison_tables.markdown(found, without=("ours speed",))),
        "speed": wrapped(tables(times)),
        "machine": wrapped(f"Measured on {where(RESULTS, CPU)}, float32."),
        "cost": cost_table(RESULTS, CPU, 50, RESNET18, LARGE),
        "cost_middle": cost_table(RESULTS, CPU, 50, 1_000_000),
        "cost_small": cost_table(RESULTS, CPU, 10, 10_000),
        "cost_gpu": cost_table(RESULTS, GPU, 50, RESNET18, LARGE),
        "cost_gpu_middle": cost_table(RESULTS, GPU, 50, 1_000_000),
        "cost_gpu_small": cost_table(RESULTS, GPU, 10, 100_000),
        "guide": wrapped(decision_guide.section()),
        "momentum": decision_guide.momentum_table(),
        "adapters": decision_guide.adapters_table(),
        "projection_sentence": wrapped(decision_guide.projection_sentence()),
        "projection": decision_guide.projection_tables(),
        "campaign": wrapped(page.section(json.loads((RESULTS / "hostile.json").read_text(encoding="utf-8")))),
        "origins": wrapped(results_text.origins(kept_runs.read(RESULTS / "paper.jsonl"))),
    }


def made(text: str, parts: dict[str, str]) -> str:
    """Return a page with the generated texts between their markers."""
    return MADE.sub(lambda place: f"{place[1]}{parts[place[2]]}\n{place[3]}", text)


def wrapped(text: str) -> str:
    """Return text with its lines wrapped, except those of tables."""
    return "\n".join(
        line
        if line.startswith("|")
        else textwrap.fill(line, WIDTH, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False)
        for line in text.splitlines()
    )


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
    }


def draw(path: Path) -> Any:
    if path == INTERVALS:
        return interval_plot.draw(compare(RESULTS / "paper-literal.jsonl").rows)
    rows, times = results_text.main_rows(compare(RESULTS / "paper.jsonl").rows), read_rows(RESULTS)
    figure, panels = plotting.new_figure(1, 2, (10.4, 4.8), width_ratios=[1, 1.1])
    scatter_plot.scatter(panels[0][0], rows)
    figure_panel(panels[0][1], times)
    return figure


def stale() -> list[Path]:
    """Return the pages and figures that differ from what the results give."""
    new = parts()
    pages = [path for path in PAGES if made(path.read_text(encoding="utf-8"), new) != path.read_text(encoding="utf-8")]
    old = [path for path, made in figures().items() if not (path.exists() and made.encode() in path.read_bytes())]
    return [*pages, *old]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say which page is not what it should be")
    options = parser.parse_args()
    old = stale()
    if options.check:
        for path in old:
            print(f"{path.name} is not what the results make of it: run python benchmarks/results_page.py")
        return bool(old)
    new = parts()
    for path in PAGES:
        write_whole(path, made(path.read_text(encoding="utf-8"), new))
    for path, made_of in figures().items():
        if path in old:
            plotting.save(draw(path), path, made_of)
    print("changed: " + (", ".join(path.name for path in old) or "nothing"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
