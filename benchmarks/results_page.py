"""docs/results.md, its figure, and the README's headline, from what is kept in benchmarks/results.

    bartizan paper keep runs/paper benchmarks/results/paper.jsonl --commit HASH   # runs, after `bartizan paper run`
    python benchmarks/results_page.py                                            # write what is made of them
    python benchmarks/results_page.py --check                                    # 1 if the pages say something else

What stands between `<!-- made: NAME -->` and `<!-- end -->` is made; the text around is written by hand. The speed
tables come from `speedups-*.json` (benchmarks/speedups.py).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import textwrap
from pathlib import Path

import speed_tables
from speed_tables import figure_panel, read_earlier, read_rows, sentence, tables

from bartizan._util.atomic import write_whole
from bartizan.studies.paper import kept
from bartizan.studies.paper import results_page as page
from bartizan.studies.paper import scatter as picture
from bartizan.studies.paper import table_text as show
from bartizan.studies.paper.compare import compare

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIGURE = ROOT / "docs" / "images" / "results.png"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 125


def parts() -> dict[str, str]:
    """What is made, by the names of the places that it stands in."""
    found = compare(RESULTS / "paper.jsonl")
    rows, times = page.main_rows(found.rows), read_rows(RESULTS)
    return {
        "headline": wrapped(f"{page.headline(rows)} {sentence(times)}"),
        "summary": wrapped(page.bullets(rows)),
        "groups": page.groups(rows),
        "breakdown": page.breakdowns(rows),
        "weights": page.weights(rows),
        # The server's times of one run are mostly noise: they are told by rule.
        "cells": wrapped(show.markdown(found, without=("ours speed",))),
        "speed": wrapped(tables(times, read_earlier(RESULTS))),
        "origins": wrapped(page.origins(kept.read(RESULTS / "paper.jsonl"))),
    }


def made(text: str, parts: dict[str, str]) -> str:
    """A page with its places filled."""
    return MADE.sub(lambda place: f"{place[1]}{parts[place[2]]}\n{place[3]}", text)


def wrapped(text: str) -> str:
    """Prose in lines that fit; tables as they are."""
    return "\n".join(
        line
        if line.startswith("|")
        else textwrap.fill(line, WIDTH, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False)
        for line in text.splitlines()
    )


def digest() -> str:
    """Of all that the figure is drawn from and by; it stands in the file: pixels depend on matplotlib's version."""
    files = [RESULTS / "paper.jsonl", *sorted(RESULTS.glob("speedups-*.json"))]
    files += [Path(module.__file__ or "") for module in (picture, speed_tables)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def draw(path: Path) -> None:
    rows, times = page.main_rows(compare(RESULTS / "paper.jsonl").rows), read_rows(RESULTS)
    drawn, panels = picture.figure(2, (10.4, 4.8), width_ratios=[1, 1.1])
    picture.scatter(panels[0], rows)
    figure_panel(panels[1], times)
    picture.save(drawn, path, about=digest())


def stale() -> list[Path]:
    """What is not as the results would make it."""
    new = parts()
    pages = [path for path in PAGES if made(path.read_text(encoding="utf-8"), new) != path.read_text(encoding="utf-8")]
    drawn = FIGURE.exists() and digest().encode() in FIGURE.read_bytes()
    return pages if drawn else [*pages, FIGURE]


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
    draw(FIGURE)
    print("changed: " + (", ".join(path.name for path in old) or "nothing"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
