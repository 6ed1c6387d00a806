"""The parts of `bartizan theory`, and how each is measured and recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol

from bartizan._util import jsonl
from bartizan._util.console import ProgressLine
from bartizan._util.locks import try_lock
from bartizan.studies import typed_rows
from bartizan.studies.theory import aggregation_error, breakdown, convergence, projection_attacks, subspace_embedding
from bartizan.studies.theory.simulated_round import Result

Results = Sequence[tuple[Any, Result]]
"""Cases, frozen dataclasses of plain values, and what was measured of each."""
ADVICE = "Delete that line, and it is measured again."


class Part(Protocol):
    """One experiment: a module with these functions."""

    @property
    def TITLE(self) -> str:
        """The title of its section in the report."""

    @property
    def REQUIRED(self) -> Sequence[str]:
        """The keys of a result, unless the rule refused."""

    def cases(self, quick: bool) -> Sequence[Any]:
        """Return all cases, or those of a quick run."""

    def measure(self, case: Any) -> Result:
        """Measure one case."""

    def rows(self, results: Any) -> list[dict[str, Any]]:
        """Return the lines of the CSV file."""

    def section(self, results: Any) -> str:
        """Return the section of the report, in Markdown."""

    def draw(self, results: Any) -> Any:
        """Return a matplotlib figure."""


PARTS: dict[str, Part] = {
    "embedding": subspace_embedding,
    "aggregation": aggregation_error,
    "convergence": convergence,
    "breakdown": breakdown,
    "adaptive": projection_attacks,
}


class Ledger:
    """The measured cases of one part in a JSON-lines file, so that a stopped run continues where it was.

    A case is identified by its settings: with other settings it is another case, never an outdated result. The version
    of the code is not recorded.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"Results need a folder, and {path.parent} is a file. Name another with --out.") from None
        self._lock = open(path, "ab")  # noqa: SIM115 - closed by `close`
        try:
            if not try_lock(self._lock):
                raise ValueError(f"Another run is writing {path}. Wait for it, or name another folder with --out.")
            self._done, size = read(path)
            self._file = jsonl.Appender(path, size)
        except BaseException:
            self._lock.close()
            raise

    def get(self, case: Any) -> Result | None:
        return self._done.get(_key(typed_rows.as_row(case)))

    def add(self, case: Any, result: Result) -> None:
        self._file.append({"cell": typed_rows.as_row(case), "result": result}, allow_nan=True)
        self._done[_key(typed_rows.as_row(case))] = result

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._lock.close()


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


def run(name: str, out: Path, quick: bool) -> None:
    """Measure the cases of a part that are not in its file yet; each is written before the next begins."""
    part = PARTS[name]
    cases = part.cases(quick)
    with Ledger(out / f"{name}.jsonl") as ledger, ProgressLine(name, len(cases)) as progress:
        for case in cases:
            known = ledger.get(case) is not None
            if not known:
                progress.show(", ".join(map(str, astuple(case)[:5])))
                ledger.add(case, part.measure(case))
            progress.advance(skipped=known)


def finished(name: str, out: Path, quick: bool) -> Results:
    """Return the measured cases of a part."""
    part, path = PARTS[name], out / f"{name}.jsonl"
    done = read(path)[0]
    pairs = ((case, done.get(_key(typed_rows.as_row(case)))) for case in part.cases(quick))
    found = [(case, result) for case, result in pairs if result is not None]
    for case, result in found:
        if "refused" not in result and (missing := [key for key in part.REQUIRED if key not in result]):
            raise ValueError(f"{path} has a result without {', '.join(missing)}, of {case}. {ADVICE}")
    return found


def _key(case: dict[str, Any]) -> str:
    return json.dumps(case, sort_keys=True)
