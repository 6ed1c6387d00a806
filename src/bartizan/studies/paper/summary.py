"""Summarise compared cells: accuracy lost by projecting, runs that did not converge, agreement of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import correlation, mean, variance

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
    def of(cls, rows: Sequence[CellComparison]) -> Summary:
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
        return [mean(row.raw_differences) for row in self._with_difference]

    @property
    def paper_differences(self) -> list[float]:
        """The paper's differences, of all cells where both its runs and ours converge."""
        return [mean(row.paper_differences) for row in self.cells if row.differences and row.paper_differences]

    @property
    def worst(self) -> CellComparison | None:
        """The cell where PDR loses most, converged or not."""
        return min(self._with_difference, key=lambda row: mean(row.raw_differences), default=None)

    @property
    def best(self) -> CellComparison | None:
        return max(self._with_difference, key=lambda row: mean(row.raw_differences), default=None)

    @property
    def _with_difference(self) -> list[CellComparison]:
        return [row for row in self.rows if row.raw_differences]

    @property
    def unchanged(self) -> int:
        """How many distinct pairs have the same accuracies in every round, base and PDR."""
        return sum(all(base.accuracy == pdr.accuracy for base, pdr in row.pairs) for row in self.rows)

    @property
    def spread_over_seeds(self) -> float | None:
        """Standard deviation of the difference between seeds of one cell, over all cells that have several."""
        return pooled([row.raw_differences for row in self.rows])

    @property
    def base_spread_over_seeds(self) -> float | None:
        """The same of the base's accuracy."""
        return pooled([[100 * run.best for run, _ in row.pairs if run.best is not None] for row in self.rows])

    @property
    def same_end(self) -> int:
        """How many distinct pairs have a base and a PDR that both converge, or both do not."""
        return sum(failed(row.base) == failed(row.pdr) for row in self.rows)

    @property
    def paper_same_end(self) -> int:
        return sum(failed(row.paper_base) == failed(row.cell.values) for row in self.cells)

    @property
    def end_as_in_the_paper(self) -> int:
        """How many sides, base or PDR, converge where the paper's do, and fail where these fail."""
        return sum(
            (failed(row.base) == failed(row.paper_base)) + (failed(row.pdr) == failed(row.cell.values))
            for row in self.cells
        )

    @property
    def ranks_of_base_and_pdr(self) -> float | None:
        return spearman([_accuracy(row.base) for row in self.rows], [_accuracy(row.pdr) for row in self.rows])

    @property
    def ranks_of_ours_and_paper(self) -> float | None:
        ours = [_accuracy(runs) for row in self.cells for runs in (row.base, row.pdr)]
        paper = [_accuracy(values) for row in self.cells for values in (row.paper_base, row.cell.values)]
        return spearman(ours, paper)

    @property
    def speedups(self) -> list[float]:
        """Of all cells: runs with equal accuracies still have times of their own."""
        return [row.speedup for row in self.cells if row.speedup is not None]

    def by(self, key: Callable[[CellComparison], str]) -> dict[str, Summary]:
        names = dict.fromkeys(key(row) for row in self.cells)
        return {name: Summary([row for row in self.cells if key(row) == name]) for name in names}

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


def pooled(groups: Sequence[Sequence[float]]) -> float | None:
    """Return one standard deviation of several small groups, each about its own mean.

    >>> pooled([[1.0, 3.0], [10.0, 12.0], [5.0]])
    1.4142135623730951
    """
    several = [group for group in groups if len(group) > 1]
    if not several:
        return None
    return sqrt(sum((len(g) - 1) * variance(g) for g in several) / sum(len(g) - 1 for g in several))


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, equal values sharing their mean rank; None where one side is all equal.

    >>> round(spearman([1, 2, 3, 4], [10, 30, 20, 40]), 9), round(spearman([0, 0, 5], [1, 1, 9]), 9)
    (0.8, 1.0)
    >>> spearman([1, 1], [1, 2])
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return correlation(_ranks(x), _ranks(y))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def accuracies(runs: Sequence[RunSummary] | Sequence[PaperValue]) -> list[float]:
    """Return the accuracies of the runs that converged, in percent."""
    return [run.accuracy_percent for run in runs if run.accuracy_percent is not None]


def _accuracy(runs: Sequence[RunSummary] | Sequence[PaperValue]) -> float:
    """A cell's mean accuracy; "-" is 0, below all others."""
    reached = accuracies(runs)
    return mean(reached) if reached else 0.0


def _settings(rows: Sequence[CellComparison]) -> str:
    """The data, b and beta of the cells."""
    kinds = {
        "": dict.fromkeys(row.cell.data for row in rows),
        "b=": dict.fromkeys(f"{row.cell.b:g}" for row in rows),
        "beta=": dict.fromkeys(f"{row.cell.beta:g}" for row in rows),
    }
    return ", ".join(front + " and ".join(of) for front, of in kinds.items())
