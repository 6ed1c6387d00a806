"""Write the results of `bartizan theory`: a CSV file and a figure for each part, and one Markdown page."""

from __future__ import annotations

from pathlib import Path

from bartizan import __version__
from bartizan._util.atomic import write_whole
from bartizan.studies import plotting
from bartizan.studies.formatting import csv_text
from bartizan.studies.theory.parts import PARTS, Results, finished


def write(out: Path, quick: bool) -> tuple[list[Path], str]:
    """Write all parts that have results; return the files, and why there are no figures if so."""
    found = {name: results for name in PARTS if (results := finished(name, out, quick))}
    if not found:
        raise ValueError(f"{out} holds no results of {'a quick' if quick else 'a whole'} run of bartizan theory.")
    files: dict[str, str | bytes] = {f"{name}.csv": csv_text(PARTS[name].rows(of)) for name, of in found.items()}
    missing = ""
    try:
        files |= {f"{name}.png": plotting.encoded(PARTS[name].draw(of)) for name, of in found.items()}
    except ModuleNotFoundError as absent:
        if absent.name != "matplotlib":
            raise
        missing = "no PNG files: they need matplotlib, pip install 'bartizan[plot]'"
    files["report.md"] = page(found, quick, figures=not missing)
    for name, content in files.items():
        write_whole(out / name, content)
    return [out / name for name in files], missing


def page(found: dict[str, Results], quick: bool, *, figures: bool) -> str:
    """Return the Markdown page."""
    parts = [
        f"# The paper's theorems, measured\n\nbartizan {__version__}, `bartizan theory{' --quick' if quick else ''}`. "
        "What the numbers mean: docs/theory.md."
    ]
    for name, results in found.items():
        total = len(PARTS[name].cases(quick))
        parts.append(f"## {PARTS[name].TITLE}")
        if len(results) < total:
            parts.append(f"Not complete: {len(results)} of {total} cases. The same command continues.")
        if figures:
            parts.append(f"![{name}]({name}.png)")
        parts.append(PARTS[name].section(results))
    return "\n\n".join(parts) + "\n"
