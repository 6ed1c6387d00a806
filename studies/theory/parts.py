"""The parts of `theory`: measure their cases, record them, and write the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from bartizan import __version__
from bartizan._util import jsonl, schema
from bartizan._util.atomic import write_whole
from bartizan._util.console import ProgressLine
from bartizan.records import require_writable
from studies import plotting, rows
from studies.options import add_command
from studies.theory import aggregation_error, breakdown, convergence, projection_attacks, subspace_embedding
from studies.theory.simulated_round import Result

Results = Sequence[tuple[Any, Result]]
"""Cases, frozen dataclasses of plain values, and what was measured of each."""
OUT, QUICK_OUT = Path("runs/theory"), Path("runs/theory-quick")
QUICK_STRIDE = 8  # of the cases that a quick run measures


class Part(Protocol):
    """A module with one experiment: its cases, how one is measured, the results as rows, their table and a figure."""

    @property
    def TITLE(self) -> str: ...
    def cases(self) -> Sequence[Any]: ...
    def measure(self, case: Any) -> Result: ...
    def rows(self, results: Any) -> list[dict[str, Any]]: ...
    def table(self, rows: Any) -> str: ...
    def draw(self, results: Any) -> Any: ...


PARTS: dict[str, Part] = {
    "embedding": subspace_embedding,
    "aggregation": aggregation_error,
    "convergence": convergence,
    "breakdown": breakdown,
    "adaptive": projection_attacks,
}


def add_to(commands: Any) -> None:
    add_command(commands, theory)


def theory(
    part: Literal["all", "embedding", "aggregation", "convergence", "breakdown", "adaptive"] = "all",
    *,
    out: Annotated[Path | None, f"for the results (default {OUT}, or {QUICK_OUT})"] = None,
    quick: Annotated[bool, "a minute instead of fifteen: one case in eight"] = False,
    keep: Annotated[Path | None, "a folder for the rows of docs/theory.md: studies/results"] = None,
) -> None:
    """Measure what the paper's theorems promise, and write a report.

    A stopped run continues where it was; no case is measured twice.
    """
    out = out or (QUICK_OUT if quick else OUT)
    require_writable(out)
    for name in PARTS if part == "all" else (part,):
        run(name, out, quick)
    print("writing the report ...", file=sys.stderr, flush=True)
    print(write(out, quick))
    for name in PARTS if keep else ():
        if results := finished(name, out, quick):
            rows.keep(Path(keep or "", f"theory-{name}.jsonl"), PARTS[name].rows(results))


def cases_of(name: str, quick: bool) -> Sequence[Any]:
    """Return the cases of a part; one in so many for a quick run."""
    return PARTS[name].cases()[:: QUICK_STRIDE if quick else 1]


def read(path: Path) -> tuple[dict[str, Result], int]:
    """Return the results in a file by case, and the size of its complete lines.

    A case is identified by its settings: with other settings it is another case, never an outdated result. The version
    of the code is not recorded.
    """
    if not path.exists():
        return {}, 0
    advice = "Delete that line, and it is measured again."
    found = jsonl.read(path, lambda row: (_key(row["cell"]), row["result"]), advice=advice, checksum_required=False)
    return dict(found.rows), found.size


def run(name: str, out: Path, quick: bool) -> None:
    """Measure the cases of a part that are not in its file yet; each is written before the next begins."""
    part, path = PARTS[name], out / f"{name}.jsonl"
    cases, (done, size) = cases_of(name, quick), read(path)
    with jsonl.Appender(path, size) as file, ProgressLine(name, len(cases)) as progress:
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
    done = read(out / f"{name}.jsonl")[0]
    pairs = ((case, done.get(_key(schema.as_row(case)))) for case in cases_of(name, quick))
    return [(case, result) for case, result in pairs if result is not None]


def write(out: Path, quick: bool) -> Path:
    """Write a figure for each part with results, and one Markdown page, which is returned."""
    found = {name: results for name in PARTS if (results := finished(name, out, quick))}
    if not found:
        raise ValueError(f"{out} holds no results of {'a quick' if quick else 'a whole'} run of theory.")
    for name, results in found.items():
        plotting.save(PARTS[name].draw(results), out / f"{name}.png")
    write_whole(out / "report.md", page(found, quick))
    return out / "report.md"


def page(found: dict[str, Results], quick: bool) -> str:
    """Return the Markdown page."""
    parts = [
        f"# The paper's theorems, measured\n\nbartizan {__version__}, `theory{' --quick' if quick else ''}`. "
        "What the numbers mean: docs/theory.md."
    ]
    for name, results in found.items():
        total = len(cases_of(name, quick))
        parts.append(f"## {PARTS[name].TITLE}")
        if len(results) < total:
            parts.append(f"Not complete: {len(results)} of {total} cases. The same command continues.")
        parts += [f"![{name}]({name}.png)", PARTS[name].table(PARTS[name].rows(results))]
    return "\n\n".join(parts) + "\n"


def _key(case: dict[str, Any]) -> str:
    return json.dumps(case, sort_keys=True)
