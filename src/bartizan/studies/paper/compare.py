"""Our cells beside the paper's, from what runs have written: a folder of them, or a file of kept ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bartizan import records as results
from bartizan.studies.paper import kept
from bartizan.studies.paper.cell_settings import parted, places, setting_of
from bartizan.studies.paper.cells import ABLATION, Cell, Value, cells
from bartizan.studies.paper.outcome import Ours
from bartizan.studies.paper.protocol import sketches_of


@dataclass(frozen=True)
class Row:
    """The paper's cell and ours, with and without projection."""

    cell: Cell
    paper_base: tuple[Value, ...]
    sketch: str
    protocol: str
    base: tuple[Ours, ...] = ()
    pdr: tuple[Ours, ...] = ()

    @property
    def paper_pairs(self) -> list[tuple[Value, Value]]:
        """The paper's base and PDR of one table; the k/s table has no bases of its own, so there of any."""
        both = [(base, pdr) for pdr in self.cell.values for base in self.paper_base]
        return [(base, pdr) for base, pdr in both if base.label == pdr.label] or both

    @property
    def paper_differences(self) -> list[float]:
        """PDR minus base, for each distinct value that the paper prints."""
        pairs = [(base.accuracy, pdr.accuracy) for base, pdr in self.paper_pairs]
        return _distinct(pdr - base for base, pdr in pairs if pdr is not None and base is not None)

    @property
    def paper_speedups(self) -> list[float]:
        return _distinct(base.seconds / pdr.seconds for base, pdr in self.paper_pairs)

    @property
    def differences(self) -> list[float]:
        """PDR minus base, seed by seed, of runs that got equally far."""
        pairs = [(pdr.accuracy, base.accuracy) for base, pdr in self.pairs]
        return [pdr - base for pdr, base in pairs if pdr is not None and base is not None]

    @property
    def raw_differences(self) -> list[float]:
        """The same of best accuracies, whether the runs converged or not; two that both diverged have none."""
        both = [(base, pdr) for base, pdr in self.pairs if not (base.diverged and pdr.diverged)]
        return [pdr.best - base.best for base, pdr in both if pdr.best is not None and base.best is not None]

    @property
    def compared(self) -> bool:
        """Whether there is a base and its projected twin, both with an accuracy."""
        return any(base.best is not None and pdr.best is not None for base, pdr in self.pairs)

    @property
    def curves(self) -> tuple[Any, ...]:
        """What tells a pair from a copy of it: a rule that gives far attackers nothing trains one model against all."""
        return tuple((base.seed, base.curve, pdr.curve) for base, pdr in self.pairs)

    @property
    def pairs(self) -> list[tuple[Ours, Ours]]:
        """Base and PDR of one seed that got equally far, or both to their end."""
        base = {run.seed: run for run in self.base}
        both = [(base[run.seed], run) for run in self.pdr if run.seed in base]
        return [(a, b) for a, b in both if a.done == b.done or (a.ended and b.ended)]

    @property
    def machines(self) -> set[str]:
        """Where the server's times were taken."""
        return {run.machine for run in (*self.base, *self.pdr) if run.seconds}

    @property
    def speedup(self) -> float | None:
        """The base's time over that of PDR; none where they are of different machines."""
        base = [run.seconds for run in self.base if run.seconds]
        pdr = [run.seconds for run in self.pdr if run.seconds]
        return median(base) / median(pdr) if base and pdr and len(self.machines) == 1 else None

    @property
    def rounds(self) -> str:
        """How far the shortest of ours got, of how many, and where the first of each side diverged."""
        runs = [*self.base, *self.pdr]
        planned, told = runs[0].planned, []
        if going := [run.done for run in runs if not run.diverged]:
            told.append(f"{planned}" if min(going) == planned else f"{min(going)} of {planned}")
        sides = {"base": self.base, "PDR": self.pdr}
        ends = {side: [run.done for run in of if run.diverged] for side, of in sides.items()}
        if any(ends.values()):
            told.append("diverged at " + ", ".join(f"{min(of)} ({side})" for side, of in ends.items() if of))
        return ", ".join(told)

    @property
    def seeds(self) -> int:
        return max(len(self.base), len(self.pdr))


@dataclass(frozen=True)
class Comparison:
    """All rows that a folder has something of; `protocols` are the settings that the letters stand for."""

    rows: list[Row]
    protocols: dict[str, dict[str, Any]]
    strangers: int  # runs that are none of the paper's cells
    unread: list[str]


def compare(where: Path) -> Comparison:
    """Read the runs in a folder, or the kept ones in a file; a run that can't be read is named, not fatal."""
    found: dict[tuple[str, str], dict[int, Ours]] = {}
    protocols: dict[str, str] = {}
    unread: list[str] = []
    strangers = 0
    for config, ours in _runs(where, unread):
        setting, rest = parted(config, ours.images)
        if setting not in places():
            strangers += 1
            continue
        letter = protocols.setdefault(rest, letters(len(protocols)))
        seeds = found.setdefault((setting, letter), {})
        if ours.seed not in seeds or seeds[ours.seed].done < ours.done:  # a copy of a folder is no other sample
            seeds[ours.seed] = ours
    if not found and not unread:
        raise ValueError(f"{where} holds no run of the paper's cells; `bartizan paper run TABLE --out DIR` makes some.")
    legend = {letter: json.loads(rest) for rest, letter in protocols.items()}
    return Comparison(list(_rows(found, legend)), legend, strangers, unread)


def _runs(where: Path, unread: list[str]) -> Iterator[tuple[Mapping[str, Any], Ours]]:
    if where.is_file():
        yield from ((one.config, one.ours) for one in kept.read(where))
        return
    for path in results.find(where):
        try:
            recorded = results.read(path)
            ours, config = Ours.of(recorded), recorded.run["config"]
            parted(config)
            yield config, ours
        except results.MALFORMED as wrong:
            unread.append(results.explain(path, wrong))


def letters(number: int) -> str:
    """A, B, ... Z, AA, AB ...

    >>> letters(0), letters(25), letters(26)
    ('A', 'Z', 'AA')
    """
    more, last = divmod(number, 26)
    return (letters(more - 1) if more else "") + chr(ord("A") + last)


def agreed(runs: Sequence[Ours]) -> str:
    """The accuracy of a cell's runs: mean and spread over seeds, "-" where none converged, "" without runs.

    >>> agreed([Ours(0, 61.0, 0.1, 30, 30), Ours(1, 62.0, 0.1, 30, 30), Ours(2, None, 0.1, 30, 30)])
    '61.50 ± 0.71 (1 of 3 -)'
    """
    if not runs:
        return ""
    reached = [run.accuracy for run in runs if run.accuracy is not None]
    if not reached:
        return "-"
    failed = len(runs) - len(reached)
    return spread(reached) + (f" ({failed} of {len(runs)} -)" if failed else "")


def spread(numbers: Sequence[float], sign: str = "") -> str:
    """A mean, with the standard deviation where there are several."""
    if not numbers:
        return ""
    shown = f"{mean(numbers):{sign}.2f}"
    return shown if len(numbers) == 1 else f"{shown} ± {stdev(numbers):.2f}"


def printed(values: Sequence[Value], between: str = " / ") -> str:
    """What the paper prints for a cell, each value once."""
    return between.join(dict.fromkeys(value.shown for value in values))


def _rows(found: Mapping[tuple[str, str], Mapping[int, Ours]], protocols: Iterable[str]) -> Iterator[Row]:
    bases = {cell.base: cell for cell in cells() if not cell.pdr}
    for cell, letter in product((cell for cell in cells() if cell.pdr), protocols):
        base = bases[cell.base]
        without = _seeds(found.get((setting_of(base, "exact"), letter), {}))
        runs = {kind: _seeds(found.get((setting_of(cell, kind), letter), {})) for kind in sketches_of(cell)}
        projected = {kind: of for kind, of in runs.items() if of}
        if without and not projected and cell.table != ABLATION:
            projected = {"": ()}  # the base is there, and waits for its projected twin
        for kind, of in projected.items():
            yield Row(cell, base.values, kind, letter, without, of)


def _seeds(runs: Mapping[int, Ours]) -> tuple[Ours, ...]:
    return tuple(runs[seed] for seed in sorted(runs))


def _distinct(numbers: Iterable[float]) -> list[float]:
    return list(dict.fromkeys(numbers))
