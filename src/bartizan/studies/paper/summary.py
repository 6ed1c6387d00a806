"""Summarise compared cells in a sentence: accuracy lost by projecting, runs that did not converge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Self

from bartizan.studies.paper.cells import ABLATION, PaperValue
from bartizan.studies.paper.compare import CellComparison, spread
from bartizan.studies.paper.kept_runs import RunSummary

FEW = 3  # below so many different numbers a standard deviation means little
NOTHING = "No cell has both a base and a projected run yet."


@dataclass(frozen=True)
class Summary:
    """Statistics of cells that have both a base and a projected run, in points of accuracy."""

    cells: list[CellComparison]

    @classmethod
    def of(cls, rows: Sequence[CellComparison]) -> Self:
        return cls([row for row in rows if row.compared])

    @property
    def rows(self) -> list[CellComparison]:
        """The distinct cells: of those with the same accuracies in every round, base and PDR, the first."""
        first: dict[object, CellComparison] = {}
        for row in self.cells:
            first.setdefault(row.curves, row)
        return list(first.values())

    @property
    def differences(self) -> list[float]:
        """PDR minus base of each distinct pair where both converged, mean over its seeds."""
        return [mean(row.differences) for row in self.rows if row.differences]

    @property
    def raw_differences(self) -> list[float]:
        """The same of every distinct pair, converged or not, except where both diverged."""
        return [mean(row.raw_differences) for row in self.with_difference]

    @property
    def worst(self) -> CellComparison | None:
        """The cell where PDR loses most, converged or not."""
        return min(self.with_difference, key=lambda row: mean(row.raw_differences), default=None)

    @property
    def with_difference(self) -> list[CellComparison]:
        return [row for row in self.rows if row.raw_differences]

    @property
    def same_end(self) -> int:
        """How many distinct pairs have a base and a PDR that both converge, or both do not."""
        return sum(failed(row.base) == failed(row.pdr) for row in self.rows)

    @property
    def distinct(self) -> str:
        """How many cells are distinct, as text."""
        n = len(self.rows)
        if n == len(self.cells):
            return "all are distinct"
        return f"{n} are distinct, the others repeat one of them to the digit"


def headline(rows: Sequence[CellComparison]) -> str:
    """Return one sentence about all cells."""
    all_ = Summary.of(rows)
    if not all_.cells:
        return NOTHING
    n, reached = len(all_.rows), all_.differences
    note = f" ({all_.distinct})" if n < len(all_.cells) else ""
    where = f"On {len(all_.cells)} of the paper's cells{note}: {_settings(all_.cells)}, {seeds_text(all_.cells)}. "
    same = f"{all_.same_end} of {n}" if all_.same_end < n else f"all {n}" if n > 1 else "it"
    end = f"In {same} either both runs converge or neither does."
    if not reached or all_.worst is None:
        return f"{where}{end}"
    over = f"the {len(reached)} where both runs converge" if len(reached) < n else "them"
    how = "mean" if len(reached) < FEW else "mean and standard deviation"
    return (
        f"{where}Projecting changes the best test accuracy by {signed_spread(reached)} points ({how} over {over}), "
        f"at worst by {mean(all_.worst.raw_differences):+.2f} ({cell_text(all_.worst)}). {end}"
    )


def headlines(rows: Sequence[CellComparison]) -> list[str]:
    """Return a headline for each protocol and sketch; the k/s table, which varies the sketch, has none."""
    groups: dict[str, list[CellComparison]] = {}
    for row in rows:
        if row.compared and row.cell.table != ABLATION:
            groups.setdefault(f"{row.protocol}, {row.sketch}", []).append(row)
    return [f"{name}: {headline(of)}" for name, of in groups.items()] or [NOTHING]


def cell_text(row: CellComparison) -> str:
    cell = row.cell
    return f"{cell.rule}, {cell.attack}, b={cell.b:g}, beta={cell.beta:g}"


def seeds_text(rows: Sequence[CellComparison]) -> str:
    counts = [len(row.pairs) for row in rows]
    if max(counts) == 1:
        return "one seed each"
    return f"{counts[0]} seeds each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} seeds each"


def signed_spread(numbers: Sequence[float]) -> str:
    """Format a mean, with its standard deviation where there are at least `FEW` different numbers."""
    if len(set(numbers)) < FEW:
        return f"{mean(numbers):+.2f}" if numbers else ""
    return spread(numbers, "+")


def failed(runs: Sequence[RunSummary] | Sequence[PaperValue]) -> bool:
    """Whether none of a cell's runs converged; shown as "-"."""
    return not accuracies(runs)


def accuracies(runs: Sequence[RunSummary] | Sequence[PaperValue]) -> list[float]:
    """Return the accuracies of the runs that converged, in percent."""
    return [run.accuracy_percent for run in runs if run.accuracy_percent is not None]


def _settings(rows: Sequence[CellComparison]) -> str:
    """The data, b and beta of the cells."""
    kinds = {
        "": dict.fromkeys(row.cell.data for row in rows),
        "b=": dict.fromkeys(f"{row.cell.b:g}" for row in rows),
        "beta=": dict.fromkeys(f"{row.cell.beta:g}" for row in rows),
    }
    return ", ".join(front + " and ".join(of) for front, of in kinds.items())
