"""What the experiments leave: a CSV file and a picture each, and one page of Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bartizan import __version__
from bartizan._util.atomic import write_whole
from bartizan.studies.theory.parts import PARTS, Results, finished


def write(out: Path, quick: bool) -> tuple[list[Path], str]:
    """Write all that there are results for, each file whole or not at all; and why there are no pictures, if so."""
    found = {name: results for name, part in PARTS.items() if (results := finished(part, out, quick))}
    if not found:
        raise ValueError(f"{out} holds no results of {'a quick' if quick else 'a whole'} run of bartizan theory.")
    files: dict[str, str | bytes] = {f"{name}.csv": lines(PARTS[name].rows(results)) for name, results in found.items()}
    missing = ""
    try:
        from bartizan.studies.theory import theory_figures as figures

        files |= {f"{name}.png": figures.picture(name, results) for name, results in found.items()}
    except ModuleNotFoundError as absent:
        if absent.name is None or absent.name.split(".")[0] != "matplotlib":
            raise
        missing = "no PNG files: they need matplotlib, pip install 'bartizan[plot]'"
    files["report.md"] = page(found, quick, pictures=not missing)
    for name, whole in files.items():
        write_whole(out / name, whole)
    return [out / name for name in files], missing


def page(found: dict[str, Results], quick: bool, *, pictures: bool) -> str:
    parts = [
        f"# The paper's theorems, measured\n\nbartizan {__version__}, `bartizan theory{' --quick' if quick else ''}`. "
        "What the numbers mean: docs/theory.md."
    ]
    for name, results in found.items():
        total = len(PARTS[name].cells(quick))
        parts.append(f"## {PARTS[name].title}")
        if len(results) < total:
            parts.append(f"Not complete: {len(results)} of {total} cells. The same command goes on.")
        if pictures:
            parts.append(f"![{name}]({name}.png)")
        parts.append(PARTS[name].tell(results))
    return "\n\n".join(parts) + "\n"


def lines(rows: Sequence[dict[str, Any]]) -> str:
    """As CSV, with a column for whatever any row has.

    >>> lines([{"a": 1}, {"a": 2, "b": 3}])
    'a,b\\n1,\\n2,3\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
