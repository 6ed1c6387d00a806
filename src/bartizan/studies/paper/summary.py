"""What all compared cells say together: accuracy lost to the projection, who breaks down, whether ranks agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import correlation, mean, variance

from bartizan.studies.paper.cells import Value
from bartizan.studies.paper.compare import Row
from bartizan.studies.paper.outcome import Ours


@dataclass(frozen=True)
class Summary:
    """Of some cells that have both a base and its projected twin, in points of accuracy."""

    cells: list[Row]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Summary:
        return cls([row for row in rows if row.compared])

    @property
    def rows(self) -> list[Row]:
        """The distinct ones: of pairs with the same accuracies in every round, base and PDR, the first."""
        first: dict[object, Row] = {}
        for row in self.cells:
            first.setdefault(row.curves, row)
        return list(first.values())

    @property
    def differences(self) -> list[float]:
        """PDR minus base of each distinct pair, mean over its seeds; where both converged, as the paper's are."""
        return [mean(row.differences) for row in self.rows if row.differences]

    @property
    def raw_differences(self) -> list[float]:
        """Of every distinct pair, converged or not, but for those in which both diverged."""
        return [mean(row.raw_differences) for row in self._told]

    @property
    def paper_differences(self) -> list[float]:
        """The paper's, of all cells where both its runs and ours converge."""
        return [mean(row.paper_differences) for row in self.cells if row.differences and row.paper_differences]

    @property
    def worst(self) -> Row | None:
        """Where PDR loses most, converged or not."""
        return min(self._told, key=lambda row: mean(row.raw_differences), default=None)

    @property
    def best(self) -> Row | None:
        return max(self._told, key=lambda row: mean(row.raw_differences), default=None)

    @property
    def unchanged(self) -> int:
        """Distinct pairs in which base and PDR have the same accuracies in every round."""
        return sum(all(base.curve == pdr.curve for base, pdr in row.pairs) for row in self.rows)

    @property
    def _told(self) -> list[Row]:
        return [row for row in self.rows if row.raw_differences]

    @property
    def spread_over_seeds(self) -> float | None:
        """Standard deviation of the difference between seeds of one cell, over all cells that have several."""
        return pooled([row.raw_differences for row in self.rows])

    @property
    def base_spread_over_seeds(self) -> float | None:
        """The same of the base alone: what another seed changes without any projection."""
        return pooled([[run.best for run, _ in row.pairs if run.best is not None] for row in self.rows])

    @property
    def same_end(self) -> int:
        """Distinct pairs in which base and PDR both break down, or neither."""
        return sum(broke(row.base) == broke(row.pdr) for row in self.rows)

    @property
    def paper_same_end(self) -> int:
        return sum(paper_broke(row.paper_base) == paper_broke(row.cell.values) for row in self.cells)

    @property
    def end_as_in_the_paper(self) -> int:
        """Runs, of base and of PDR, that break down where the paper's do, and do not where these do not."""
        return sum(
            (broke(row.base) == paper_broke(row.paper_base)) + (broke(row.pdr) == paper_broke(row.cell.values))
            for row in self.cells
        )

    @property
    def ranks_of_base_and_pdr(self) -> float | None:
        return spearman([_reached(row.base) for row in self.rows], [_reached(row.pdr) for row in self.rows])

    @property
    def ranks_of_ours_and_paper(self) -> float | None:
        ours = [_reached(runs) for row in self.cells for runs in (row.base, row.pdr)]
        paper = [_paper_reached(values) for row in self.cells for values in (row.paper_base, row.cell.values)]
        return spearman(ours, paper)

    @property
    def speedups(self) -> list[float]:
        """Of all cells: a copy's times are its own."""
        return [row.speedup for row in self.cells if row.speedup is not None]

    def by(self, key: Callable[[Row], str]) -> dict[str, Summary]:
        return {
            name: Summary([row for row in self.cells if key(row) == name])
            for name in dict.fromkeys(key(row) for row in self.cells)
        }


def broke(runs: Sequence[Ours]) -> bool:
    """Whether none of a cell's runs converged: shown as "-"."""
    return all(run.accuracy is None for run in runs)


def paper_broke(values: Sequence[Value]) -> bool:
    return all(value.accuracy is None for value in values)


def pooled(groups: Sequence[Sequence[float]]) -> float | None:
    """One standard deviation from several small groups, each about its own mean.

    >>> pooled([[1.0, 3.0], [10.0, 12.0], [5.0]])
    1.4142135623730951
    """
    several = [group for group in groups if len(group) > 1]
    if not several:
        return None
    return sqrt(sum((len(g) - 1) * variance(g) for g in several) / sum(len(g) - 1 for g in several))


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None where one side is all equal.

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


def _reached(runs: Sequence[Ours]) -> float:
    """A cell's accuracy, with "-" below all others."""
    return 0.0 if broke(runs) else mean(run.accuracy for run in runs if run.accuracy is not None)


def _paper_reached(values: Sequence[Value]) -> float:
    return 0.0 if paper_broke(values) else mean(value.accuracy for value in values if value.accuracy is not None)
