"""The parts of `bartizan theory`: measure their cases, record them, and write the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol, TypedDict

from bartizan import __version__
from bartizan._util import jsonl, schema
from bartizan._util.atomic import write_whole
from bartizan._util.console import ProgressLine
from bartizan._util.jsonl import CorruptFileError
from bartizan._util.locks import try_lock
from bartizan._util.regular_files import open_regular
from bartizan._util.text import short
from studies import plotting
from studies.tables import csv_text
from studies.theory import aggregation_error, breakdown, convergence, projection_attacks, subspace_embedding
from studies.theory.simulated_round import Result

Results = Sequence[tuple[Any, Result]]
"""Cases, frozen dataclasses of plain values, and what was measured of each."""
ADVICE = "Delete that line, and it is measured again."


class Refused(TypedDict):
    """A result where the rule refused."""

    refused: str


class Part(Protocol):
    """A module with one experiment: its cases, how one is measured, and the results as CSV, Markdown and a figure."""

    @property
    def TITLE(self) -> str: ...
    @property
    def Measured(self) -> type[Any]:
        """The fields of a result, unless the rule refused."""

    def cases(self, quick: bool) -> Sequence[Any]: ...
    def measure(self, case: Any) -> Result: ...
    def rows(self, results: Any) -> list[dict[str, Any]]: ...
    def section(self, results: Any) -> str: ...
    def draw(self, results: Any) -> Any: ...


PARTS: dict[str, Part] = {
    "embedding": subspace_embedding,
    "aggregation": aggregation_error,
    "convergence": convergence,
    "breakdown": breakdown,
    "adaptive": projection_attacks,
}


def read(path: Path) -> tuple[dict[str, Result], int]:
    """Return the results in a file by case, and the size of its complete lines; the file is not changed."""

    def parsed(row: dict[str, Any]) -> tuple[str, Result]:
        case, result = row["cell"], row["result"]
        if not (isinstance(case, dict) and isinstance(result, dict)):
            raise TypeError("cell and result must be JSON objects")
        return _key(case), result

    if not path.exists():
        return {}, 0
    found = jsonl.read(path, parsed, advice=ADVICE, checksum_required=False)
    return dict(found.rows), found.size


@contextmanager
def opened(path: Path) -> Iterator[tuple[dict[str, Result], jsonl.Appender]]:
    """Lock a file of measured cases; yield the results in it by case, and the object that appends lines.

    A case is identified by its settings: with other settings it is another case, never an outdated result. The version
    of the code is not recorded.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"Results need a folder, and {path.parent} is a file. Name another with --out.") from None
    with open_regular(path, "ab") as lock:
        if not try_lock(lock):
            raise ValueError(f"Another run is writing {path}. Wait for it, or name another folder with --out.")
        done, size = read(path)
        with jsonl.Appender(path, size) as file:
            yield done, file


def run(name: str, out: Path, quick: bool) -> None:
    """Measure the cases of a part that are not in its file yet; each is written before the next begins."""
    part = PARTS[name]
    cases = part.cases(quick)
    with opened(out / f"{name}.jsonl") as (done, file), ProgressLine(name, len(cases)) as progress:
        for case in cases:
            row = schema.as_row(case)
            known = _key(row) in done
            if not known:
                progress.show(", ".join(map(str, astuple(case)[:5])))
                done[_key(row)] = result = part.measure(case)
                file.append({"cell": row, "result": result}, allow_nan=True)
            progress.advance(skipped=known)


def finished(name: str, out: Path, quick: bool) -> Results:
    """Return the measured cases of a part."""
    part, path = PARTS[name], out / f"{name}.jsonl"
    done = read(path)[0]
    pairs = ((case, done.get(_key(schema.as_row(case)))) for case in part.cases(quick))
    found = [(case, result) for case, result in pairs if result is not None]
    for case, result in found:
        try:
            schema.check(Refused if "refused" in result else part.Measured, result)
        except TypeError as wrong:
            raise CorruptFileError(f"{path} has a result of which {wrong}, of {case}. {ADVICE}") from None
    return found


def write(out: Path, quick: bool) -> tuple[list[Path], str]:
    """Write a CSV file and a figure for each part with results, and one Markdown page.

    Return the files, and why there are no figures if so.
    """
    found = {name: results for name in PARTS if (results := finished(name, out, quick))}
    if not found:
        raise ValueError(f"{out} holds no results of {'a quick' if quick else 'a whole'} run of bartizan theory.")
    try:
        files, missing = _files(found, quick)
    except (LookupError, ArithmeticError, TypeError, ValueError) as wrong:  # numbers that no case can give
        why = f"{type(wrong).__name__}: {short(wrong, 100)}"
        raise CorruptFileError(f"{out} holds results that can't be shown ({why}). Delete their lines.") from wrong
    for name, content in files.items():
        write_whole(out / name, content)
    return [out / name for name in files], missing


def _files(found: dict[str, Results], quick: bool) -> tuple[dict[str, str | bytes], str]:
    files: dict[str, str | bytes] = {f"{name}.csv": csv_text(PARTS[name].rows(of)) for name, of in found.items()}
    missing = ""
    try:
        files |= {f"{name}.png": plotting.encoded(PARTS[name].draw(of)) for name, of in found.items()}
    except ModuleNotFoundError as absent:
        if absent.name != "matplotlib":
            raise
        missing = "no PNG files: they need matplotlib, pip install 'bartizan[plot]'"
    return files | {"report.md": page(found, quick, figures=not missing)}, missing


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


def _key(case: dict[str, Any]) -> str:
    return json.dumps(case, sort_keys=True)
