"""The comparison of our runs, from a folder or a file of kept ones, with the paper's cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Self

from scipy.stats import spearmanr

from bartizan.lab.report.intervals import interval
from studies.paper import kept_runs
from studies.paper.cells import ABLATION, STRESS, PaperCell, PaperValue, bases, cells, stress_cells
from studies.paper.kept_runs import RunSummary
from studies.paper.paper_protocol import positions, rule_text, setting_of, sketches_of, split_config

USUAL = 4096  # the k of the large tables
MARGIN = 1.0
"""Points: where the pooled interval lies inside this on both sides, projecting changes nothing that matters."""
MIN_DISTINCT = 3  # different numbers, below which a standard deviation or a correlation means little
Found = Mapping[tuple[str, str], Mapping[int, RunSummary]]
"""Our runs by setting and protocol, then by seed."""


@dataclass(frozen=True)
class CellComparison:
    """A cell of the paper and our runs of it, unprojected (base) and projected (PDR)."""

    cell: PaperCell
    paper_base: tuple[PaperValue, ...]
    sketch: str
    protocol: str
    base: tuple[RunSummary, ...] = ()
    pdr: tuple[RunSummary, ...] = ()

    @property
    def paper_pairs(self) -> list[tuple[PaperValue, PaperValue]]:
        """The paper's base and PDR of the same table; the k/s table has no bases, so there of any table."""
        both = [(base, pdr) for pdr in self.cell.values for base in self.paper_base]
        return [(base, pdr) for base, pdr in both if base.label == pdr.label] or both

    @property
    def paper_differences(self) -> list[float]:
        """PDR minus base, for each distinct value that the paper prints."""
        return list(dict.fromkeys(_differences(self.paper_pairs)))

    @property
    def paper_speedups(self) -> list[float]:
        return list(dict.fromkeys(base.seconds / pdr.seconds for base, pdr in self.paper_pairs))

    @property
    def pairs(self) -> list[tuple[RunSummary, RunSummary]]:
        """Base and PDR of the same seed, if they have the same number of rounds or have both ended."""
        base = {run.seed: run for run in self.base}
        both = [(base[run.seed], run) for run in self.pdr if run.seed in base]
        return [(a, b) for a, b in both if a.rounds == b.rounds or (a.ended and b.ended)]

    @property
    def differences(self) -> list[float]:
        """PDR minus base by seed, of pairs that both converged."""
        return _differences(self.pairs)

    @property
    def raw_differences(self) -> list[float]:
        """PDR minus base of best accuracies, converged or not, without pairs that both diverged."""
        return self._of_all(lambda run: run.best_percent)

    @property
    def last_differences(self) -> list[float]:
        """The same of the accuracies in the last round, where the best may hide a collapse."""
        return self._of_all(lambda run: run.last_percent)

    def _of_all(self, accuracy: Callable[[RunSummary], float | None]) -> list[float]:
        both = [(base, pdr) for base, pdr in self.pairs if not (base.diverged and pdr.diverged)]
        values = [(accuracy(base), accuracy(pdr)) for base, pdr in both]
        return [pdr - base for base, pdr in values if pdr is not None and base is not None]

    @property
    def compared(self) -> bool:
        """True if a base and a projected run of the same seed both have an accuracy."""
        return any(base.best is not None and pdr.best is not None for base, pdr in self.pairs)

    @property
    def curves(self) -> tuple[Any, ...]:
        """The accuracies of all rounds; equal where a rule gives no weight to either of two attacks."""
        return tuple((base.seed, base.accuracy, pdr.accuracy) for base, pdr in self.pairs)

    @property
    def machines(self) -> set[str]:
        """The machines on which the server's times were measured."""
        return {run.machine for run in (*self.base, *self.pdr) if run.server_seconds}

    @property
    def speedup(self) -> float | None:
        """The base's time over PDR's; None if they are of different machines."""
        base, pdr = ([run.server_seconds for run in runs if run.server_seconds] for runs in (self.base, self.pdr))
        return median(base) / median(pdr) if base and pdr and len(self.machines) == 1 else None

    @property
    def rounds(self) -> str:
        """The number of rounds of the shortest run, of how many, and where the first run of each side diverged."""
        runs = [*self.base, *self.pdr]
        planned, parts = runs[0].planned, []
        if going := [run.rounds for run in runs if not run.diverged]:
            parts.append(f"{planned}" if min(going) == planned else f"{min(going)} of {planned}")
        sides = {"base": self.base, "PDR": self.pdr}
        ends = {side: [run.rounds for run in of if run.diverged] for side, of in sides.items()}
        if any(ends.values()):
            parts.append("diverged at " + ", ".join(f"{min(of)} ({side})" for side, of in ends.items() if of))
        return ", ".join(parts)

    @property
    def rule(self) -> str:
        """The paper's name of the rule, and what was run under it where that is another."""
        return rule_text(self.cell, (*self.base, *self.pdr)[0].config["rule"])

    @property
    def seeds(self) -> int:
        return max(len(self.base), len(self.pdr))


@dataclass(frozen=True)
class Comparison:
    """The cells that were run; `protocols` has the settings of each protocol by its letter."""

    rows: list[CellComparison]
    protocols: dict[str, dict[str, Any]]
    others: int  # runs that are not of the paper's cells
    unread: list[str]


def compare(where: Path) -> Comparison:
    """Compare the runs in a folder or the kept ones in a file; runs that can't be read are named in `unread`."""
    found: dict[tuple[str, str], dict[int, RunSummary]] = {}
    letters: dict[str, str] = {}
    unread: list[str] = []
    others = 0
    for one in kept_runs.read(where) if where.is_file() else kept_runs.summaries(where, unread):
        setting, protocol = split_config(one.config, one.images, one.first_weights)
        if setting not in positions():
            others += 1
            continue
        letter = letters.setdefault(protocol, chr(ord("A") + len(letters) % 26) * (1 + len(letters) // 26))
        seeds = found.setdefault((setting, letter), {})
        if one.seed not in seeds or seeds[one.seed].rounds < one.rounds:  # of copies of a run the longest counts
            seeds[one.seed] = one
    if not found and not unread:
        raise ValueError(
            f"{where} holds no run of the paper's cells; `python -m studies paper run TABLE --out DIR` makes some."
        )
    protocols = {letter: json.loads(protocol) for protocol, letter in letters.items()}
    return Comparison(list(_rows(found, protocols)), protocols, others, unread)


def _rows(found: Found, protocols: Mapping[str, Mapping[str, Any]]) -> Iterator[CellComparison]:
    for cell, letter in product((cell for cell in (*cells(), *stress_cells()) if cell.pdr), protocols):
        base, name = bases()[cell.base], protocols[letter]["protocol"]
        without = _by_seed(found, setting_of(base, "exact", name), letter)
        runs = {kind: _by_seed(found, setting_of(cell, kind, name), letter) for kind in sketches_of(cell)}
        projected = {kind: of for kind, of in runs.items() if of}
        if cell.table == STRESS and not _stressed(found, letter, name):
            continue  # a cell of the paper's that the stress table repeats
        if without and not projected and cell.table != ABLATION and cell.k == USUAL:
            projected = {"": ()}  # a row for the base alone
        for kind, of in projected.items():
            yield CellComparison(cell, base.values, kind, letter, without, of)


def _stressed(found: Found, letter: str, protocol: str) -> bool:
    """Return whether there are runs of the stress table that are none of the paper's cells."""
    own = (cell for cell in stress_cells() if not cell.values)
    return any((setting_of(cell, kind, protocol), letter) in found for cell in own for kind in sketches_of(cell))


def _by_seed(found: Found, setting: str, letter: str) -> tuple[RunSummary, ...]:
    runs = found.get((setting, letter), {})
    return tuple(runs[seed] for seed in sorted(runs))


def accuracy_text(runs: Sequence[RunSummary]) -> str:
    """Format accuracies as mean and standard deviation; "-" where no run converged, "" without runs."""
    reached = accuracies(runs)
    if not reached:
        return "-" if runs else ""
    n_failed = len(runs) - len(reached)
    return spread(reached) + (f" ({n_failed} of {len(runs)} -)" if n_failed else "")


def last_text(runs: Sequence[RunSummary]) -> str:
    """Format the accuracies of the last evaluation, of runs that converged or not."""
    return spread([run.last_percent for run in runs if run.last_percent is not None])


def spread(numbers: Sequence[float], sign: str = "", distinct: int = 1) -> str:
    """Format a mean, with the standard deviation where there are several numbers, at least so many of them distinct."""
    if not numbers:
        return ""
    shown = f"{mean(numbers):{sign}.2f}"
    return shown if len(numbers) == 1 or len(set(numbers)) < distinct else f"{shown} ± {stdev(numbers):.2f}"


def printed(values: Sequence[PaperValue], between: str = " / ") -> str:
    """Format what the paper prints for a cell, each value once."""
    return between.join(dict.fromkeys(value.shown for value in values))


@dataclass(frozen=True)
class Summary:
    """Statistics of cells that have both a base and a projected run, in points of accuracy."""

    cells: list[CellComparison]
    rows: list[CellComparison]
    """The distinct cells: of those with the same accuracies in every round, base and PDR, the first."""
    differences: list[float]
    """PDR minus base of each distinct pair where both converged, mean over its seeds."""
    raw_differences: list[float]
    """The same of every distinct pair, converged or not, except where both diverged."""
    paper_differences: list[float]
    """The paper's, of all cells where both its runs and ours converge."""
    worst: CellComparison | None
    """The cell where PDR loses most, converged or not."""
    same_end: int
    """Number of distinct pairs whose base and PDR both converge, or both do not."""
    speedups: list[float]
    """Speed-ups of all cells: runs with equal accuracies still have times of their own."""

    @classmethod
    def of(cls, rows: Iterable[CellComparison]) -> Self:
        cells = [row for row in rows if row.compared]
        distinct = list({row.curves: row for row in reversed(cells)}.values())[::-1]
        different = [row for row in distinct if row.raw_differences]
        return cls(
            cells,
            distinct,
            [mean(row.differences) for row in distinct if row.differences],
            [mean(row.raw_differences) for row in different],
            [mean(row.paper_differences) for row in cells if row.differences and row.paper_differences],
            min(different, key=lambda row: mean(row.raw_differences), default=None),
            sum(failed(row.base) == failed(row.pdr) for row in distinct),
            [row.speedup for row in cells if row.speedup is not None],
        )

    @property
    def half(self) -> float | None:
        """Half of the 95% interval of the mean of `raw_differences`; None where they are too few."""
        return interval(self.raw_differences)


def verdict(differences: Sequence[float]) -> str:
    """Return where the 95% interval of the mean of these differences lies.

    >>> verdict([0.1, -0.2, 0.3, 0.0, 0.2])
    'inside ±1 point'
    """
    half = interval(differences)
    if half is None:
        return "too few cells for an interval"
    middle = abs(mean(differences))
    if middle + half < MARGIN:
        return f"inside ±{MARGIN:g} point"
    return f"wholly outside ±{MARGIN:g} point" if middle - half > MARGIN else f"not inside ±{MARGIN:g} point"


def rank_correlation(rows: Sequence[CellComparison]) -> float | None:
    """Return Spearman's correlation of our accuracies, base and PDR, with the paper's; None below three cells."""
    pairs: dict[tuple[Any, ...], tuple[float, float]] = {}
    for row in rows:
        if row.base and row.paper_base and row.cell.table != ABLATION:
            pairs[row.cell.base] = mean_accuracy(row.base), mean_accuracy(row.paper_base)
        if row.pdr and row.cell.values:
            pairs[(*row.cell.key, row.sketch)] = mean_accuracy(row.pdr), mean_accuracy(row.cell.values)
    ours, paper = zip(*pairs.values(), strict=True) if pairs else ((), ())
    if len(pairs) < MIN_DISTINCT or len(set(ours)) < 2 or len(set(paper)) < 2:
        return None
    return float(spearmanr(ours, paper).statistic)


def mean_accuracy(runs: Sequence[RunSummary] | Sequence[PaperValue]) -> float:
    """Return a cell's mean accuracy; "-" is 0, below all others."""
    reached = accuracies(runs)
    return mean(reached) if reached else 0.0


def cell_text(row: CellComparison) -> str:
    cell = row.cell
    return f"{row.rule}, {cell.attack}, b={cell.b:g}, beta={cell.beta:g}"


def seeds_text(rows: Sequence[CellComparison]) -> str:
    counts = [len(row.pairs) for row in rows]
    if max(counts) == 1:
        return "one seed each"
    if set(counts) == {1, max(counts)}:
        return f"one seed each but for {counts.count(max(counts))} with {max(counts)}"
    return f"{counts[0]} seeds each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} seeds each"


def failed(runs: Sequence[RunSummary] | Sequence[PaperValue]) -> bool:
    """Return whether none of a cell's runs converged; shown as "-"."""
    return not accuracies(runs)


def accuracies(runs: Sequence[RunSummary] | Sequence[PaperValue]) -> list[float]:
    """Return the accuracies of the runs that converged, in percent."""
    return [run.accuracy_percent for run in runs if run.accuracy_percent is not None]


def _differences(pairs: Iterable[tuple[PaperValue | RunSummary, PaperValue | RunSummary]]) -> list[float]:
    values = [(base.accuracy_percent, pdr.accuracy_percent) for base, pdr in pairs]
    return [pdr - base for base, pdr in values if pdr is not None and base is not None]
