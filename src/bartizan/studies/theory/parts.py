"""The experiments, and how one of them is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from bartizan.studies.theory import aggregation_error as aggregation
from bartizan.studies.theory import breakdown, convergence, curves
from bartizan.studies.theory import projection_attacks as adaptive
from bartizan.studies.theory import subspace_embedding as embedding
from bartizan.studies.theory.ledger import Ledger, Result, among, read
from bartizan.studies.theory.theory_progress import Course

Results = Sequence[tuple[Any, Result]]


@dataclass(frozen=True)
class Part:
    """One experiment: what to measure, how, and what to make of it."""

    name: str
    cells: Callable[[bool], Sequence[Any]]
    """All of them, or those of a quick run."""
    measure: Callable[[Any], Result]
    rows: Callable[[Results], list[dict[str, Any]]]
    """The lines of its CSV file."""
    tell: Callable[[Results], str]
    """Its section of the report, in Markdown."""
    title: str
    """Of that section."""
    has: tuple[str, ...]
    """What a result must hold, unless the rule refused."""


PARTS = {
    part.name: part
    for part in (
        Part(
            "embedding",
            embedding.cells,
            embedding.measure,
            embedding.rows,
            embedding.tell,
            "The embedding: 1 +- eps over the whole span",
            ("failed_rounds", "failed_trials", "median", "worst"),
        ),
        Part(
            "aggregation",
            aggregation.cells,
            aggregation.measure,
            aggregation.rows,
            aggregation.tell,
            "The aggregation's error: an empirical (b, c)",
            ("spread", "exact"),
        ),
        Part(
            "convergence",
            convergence.cells,
            convergence.measure,
            curves.rows,
            curves.tell,
            "Convergence: measured curves under their bounds",
            ("c", "spread", "measured", "losses", "errors"),
        ),
        Part(
            "breakdown",
            breakdown.cells,
            breakdown.measure,
            breakdown.rows,
            breakdown.tell,
            "Breakdown: the share of attackers at which a rule fails",
            ("exact",),
        ),
        Part(
            "adaptive",
            adaptive.cells,
            adaptive.measure,
            adaptive.rows,
            adaptive.tell,
            "Attackers of the projection: a leaked seed beside a fresh one, checks off and on",
            ("spread", "exact"),
        ),
    )
}


def carry_out(part: Part, out: Path, quick: bool) -> Results:
    """Measure what is not measured yet; each cell is written before the next begins."""
    cells = part.cells(quick)
    course = Course(part.name, len(cells))
    with Ledger(out / f"{part.name}.jsonl") as ledger:
        try:
            for cell in cells:
                if ledger.get(cell) is not None:
                    course.found()
                    continue
                course.begin(", ".join(map(str, astuple(cell)[:5])))
                ledger.add(cell, part.measure(cell))
                course.finished()
        finally:
            course.close()
        return ledger.results(cells)


def finished(part: Part, out: Path, quick: bool) -> Results:
    """What is measured of it; reads, and writes nothing."""
    path = out / f"{part.name}.jsonl"
    found = among(read(path)[0], part.cells(quick))
    for cell, result in found:
        if "refused" not in result and (lacking := [key for key in part.has if key not in result]):
            raise ValueError(
                f"{path} has a result without {', '.join(lacking)}, of {cell}. "
                f"Delete that line, and it is measured again."
            )
    return found
