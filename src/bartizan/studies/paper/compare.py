"""Compare our runs with the paper's cells, from a folder of runs or a file of kept ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bartizan import records
from bartizan.studies.paper import kept_runs
from bartizan.studies.paper.cells import ABLATION, PaperCell, PaperValue, bases, cells
from bartizan.studies.paper.kept_runs import RunSummary
from bartizan.studies.paper.paper_protocol import positions, setting_of, sketches_of, split_config

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
        both = [(base, pdr) for base, pdr in self.pairs if not (base.diverged and pdr.diverged)]
        values = [(base.best_percent, pdr.best_percent) for base, pdr in both]
        return [pdr - base for base, pdr in values if pdr is not None and base is not None]

    @property
    def compared(self) -> bool:
        """Whether a base and a projected run of the same seed both have an accuracy."""
        return any(base.best is not None and pdr.best is not None for base, pdr in self.pairs)

    @property
    def curves(self) -> tuple[Any, ...]:
        """The accuracies of all rounds; equal where a rule gives no weight to either of two attacks."""
        return tuple((base.seed, base.accuracy, pdr.accuracy) for base, pdr in self.pairs)

    @property
    def machines(self) -> set[str]:
        """Where the server's times were measured."""
        return {run.machine for run in (*self.base, *self.pdr) if run.server_seconds}

    @property
    def speedup(self) -> float | None:
        """The base's time over PDR's; None if they are of different machines."""
        base, pdr = ([run.server_seconds for run in runs if run.server_seconds] for runs in (self.base, self.pdr))
        return median(base) / median(pdr) if base and pdr and len(self.machines) == 1 else None

    @property
    def rounds(self) -> str:
        """How many rounds the shortest run has, of how many, and where the first run of each side diverged."""
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
    def seeds(self) -> int:
        return max(len(self.base), len(self.pdr))


@dataclass(frozen=True)
class Comparison:
    """All cells that were run; `protocols` has the settings of each protocol by its letter."""

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
    for one in _runs(where, unread):
        setting, protocol = split_config(one.config, one.images)
        if setting not in positions():
            others += 1
            continue
        letter = letters.setdefault(protocol, letter_of(len(letters)))
        seeds = found.setdefault((setting, letter), {})
        if one.seed not in seeds or seeds[one.seed].rounds < one.rounds:  # of copies of a run the longest counts
            seeds[one.seed] = one
    if not found and not unread:
        raise ValueError(f"{where} holds no run of the paper's cells; `bartizan paper run TABLE --out DIR` makes some.")
    protocols = {letter: json.loads(protocol) for protocol, letter in letters.items()}
    return Comparison(list(_rows(found, protocols)), protocols, others, unread)


def _runs(where: Path, unread: list[str]) -> Iterator[RunSummary]:
    if where.is_file():
        yield from kept_runs.read(where)
        return
    for path in records.find(where):
        try:
            yield RunSummary.of(records.read(path))
        except records.MALFORMED as wrong:
            unread.append(records.explain(path, wrong))


def _rows(found: Found, protocols: Iterable[str]) -> Iterator[CellComparison]:
    for cell, letter in product((cell for cell in cells() if cell.pdr), protocols):
        base = bases()[cell.base]
        without = _by_seed(found, setting_of(base, "exact"), letter)
        runs = {kind: _by_seed(found, setting_of(cell, kind), letter) for kind in sketches_of(cell)}
        projected = {kind: of for kind, of in runs.items() if of}
        if without and not projected and cell.table != ABLATION:
            projected = {"": ()}  # a row for the base alone
        for kind, of in projected.items():
            yield CellComparison(cell, base.values, kind, letter, without, of)


def _by_seed(found: Found, setting: str, letter: str) -> tuple[RunSummary, ...]:
    runs = found.get((setting, letter), {})
    return tuple(runs[seed] for seed in sorted(runs))


def letter_of(number: int) -> str:
    """Return A, B, ... Z, AA, AB ...

    >>> letter_of(0), letter_of(25), letter_of(26)
    ('A', 'Z', 'AA')
    """
    more, last = divmod(number, 26)
    return (letter_of(more - 1) if more else "") + chr(ord("A") + last)


def accuracy_text(runs: Sequence[RunSummary]) -> str:
    """Format the accuracies of a cell's runs as `spread_over_seeds` does."""
    return spread_over_seeds([run.accuracy_percent for run in runs])


def spread_over_seeds(accuracies: Sequence[float | None]) -> str:
    """Format accuracies as mean and standard deviation; "-" where no run converged, "" without runs.

    >>> spread_over_seeds([61.0, 62.0, None])
    '61.50 ± 0.71 (1 of 3 -)'
    """
    reached = [one for one in accuracies if one is not None]
    if not reached:
        return "-" if accuracies else ""
    failed = len(accuracies) - len(reached)
    return spread(reached) + (f" ({failed} of {len(accuracies)} -)" if failed else "")


def spread(numbers: Sequence[float], sign: str = "") -> str:
    """Format a mean, with the standard deviation where there are several numbers."""
    if not numbers:
        return ""
    shown = f"{mean(numbers):{sign}.2f}"
    return shown if len(numbers) == 1 else f"{shown} ± {stdev(numbers):.2f}"


def printed(values: Sequence[PaperValue], between: str = " / ") -> str:
    """Format what the paper prints for a cell, each value once."""
    return between.join(dict.fromkeys(value.shown for value in values))


def _differences(pairs: Iterable[tuple[PaperValue | RunSummary, PaperValue | RunSummary]]) -> list[float]:
    values = [(base.accuracy_percent, pdr.accuracy_percent) for base, pdr in pairs]
    return [pdr - base for base, pdr in values if pdr is not None and base is not None]
