"""The parts of `theory`: measure their cases, record them, and print and draw what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from bartizan._util import jsonl, schema
from bartizan._util.console import ProgressLine
from bartizan.records import require_writable
from studies import plotting, rows
from studies.options import command
from studies.theory import aggregation_error, breakdown, convergence, projection_attacks, subspace_embedding
from studies.theory.simulated_round import Result

Results = Sequence[tuple[Any, Result]]
"""Cases, frozen dataclasses of plain values, and what was measured of each."""
OUT = Path("runs/theory")


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


def theory(
    part: Literal["all", "embedding", "aggregation", "convergence", "breakdown", "adaptive"] = "all",
    *,
    out: Annotated[Path, "a folder for the results and their figures"] = OUT,
    keep: Annotated[Path | None, "a folder for the rows of the pages on the theory: studies/results"] = None,
) -> None:
    """Measure what the paper's theorems promise, and print a table for each part.

    A stopped run continues where it was; no case is measured twice.
    """
    require_writable(out)
    for name in PARTS if part == "all" else (part,):
        chosen, results = PARTS[name], measured(name, out)
        lines = chosen.rows(results)
        plotting.save(chosen.draw(results), out / f"{name}.png")
        print(f"## {chosen.TITLE}\n\n{chosen.table(lines)}\n", flush=True)
        rows.keep(keep and keep / f"theory-{name}.jsonl", lines)


add_to = command(theory)


def measured(name: str, out: Path) -> Results:
    """Return the cases of a part with their results; those that are not in its file yet are measured and written."""
    part, path = PARTS[name], out / f"{name}.jsonl"
    cases, (done, size) = part.cases(), read(path)
    with jsonl.Appender(path, size) as file, ProgressLine(name, len(cases)) as progress:
        for case in cases:
            row = schema.as_row(case)
            known = _key(row) in done
            if not known:
                progress.show(", ".join(map(str, astuple(case)[:5])))
                done[_key(row)] = result = part.measure(case)
                file.append({"cell": row, "result": result}, allow_nan=True)
            progress.advance(skipped=known)
    return [(case, done[_key(schema.as_row(case))]) for case in cases]


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


def _key(case: dict[str, Any]) -> str:
    return json.dumps(case, sort_keys=True)
