"""Our cells beside the paper's, from what the runs in a folder have written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bartizan import results
from bartizan.federated.choices import CHOICES
from bartizan.federated.paper.cells import ABLATION, Cell, Value, cells
from bartizan.federated.paper.protocol import asked, sketches_of

# A cell says what these are; the rest of a configuration is the protocol, which is the same for all cells of a table.
ASKED = ("attack", "rule", "sketch", "split")
# Where and under which name something ran changes nothing in it; a seed is one sample of its cell.
ASIDE = ("name", "seed", "device", "grid")


@dataclass(frozen=True)
class Ours:
    """One run of a cell."""

    seed: int
    accuracy: float | None  # in percent; None: it did not converge
    seconds: float | None  # of the server, in the median round
    done: int
    planned: int
    diverged: bool = False
    machine: str = ""

    @classmethod
    def of(cls, recorded: results.Recorded) -> Ours:
        config, end = recorded.run["config"], recorded.end
        seen = [line["accuracy"] for line in recorded.rounds if line.get("accuracy") is not None]
        failed = not seen or (end is not None and not end["converged"])
        served = [time for line in recorded.rounds if (time := _served(line["seconds"]))]
        return cls(
            seed=config["seed"],
            accuracy=None if failed else 100 * max(seen),
            seconds=median(served) if served else None,
            done=len(recorded.rounds),
            planned=config["rounds"],
            diverged=end is not None and end["status"] == "diverged",
            machine=recorded.run.get("machine") or "",
        )


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
    def paper_differences(self) -> list[float]:
        """PDR minus base, for each distinct value that the paper prints."""
        pairs = [(pdr.accuracy, base.accuracy) for pdr in self.cell.values for base in self.paper_base]
        return _distinct(pdr - base for pdr, base in pairs if pdr is not None and base is not None)

    @property
    def paper_speedups(self) -> list[float]:
        return _distinct(base.seconds / pdr.seconds for pdr in self.cell.values for base in self.paper_base)

    @property
    def differences(self) -> list[float]:
        """PDR minus base, seed by seed, of runs that got equally far."""
        base = {(run.seed, run.done): run.accuracy for run in self.base}
        pairs = [(run.accuracy, base.get((run.seed, run.done))) for run in self.pdr]
        return [pdr - other for pdr, other in pairs if pdr is not None and other is not None]

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
        """How far the shortest of ours got, of how many, and where the first diverged."""
        runs = [*self.base, *self.pdr]
        planned, told = runs[0].planned, []
        if going := [run.done for run in runs if not run.diverged]:
            told.append(f"{planned}" if min(going) == planned else f"{min(going)} of {planned}")
        if ended := [run.done for run in runs if run.diverged]:
            told.append(f"diverged at {min(ended)}")
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


def compare(folder: Path) -> Comparison:
    """Read the runs in a folder; one that can't be read is named, not fatal."""
    found: dict[tuple[str, str], dict[int, Ours]] = {}
    protocols: dict[str, str] = {}
    unread: list[str] = []
    known = {_setting(cell, kind) for cell in cells() for kind in sketches_of(cell)}
    strangers = 0
    for path in results.find(folder):
        try:
            recorded = results.read(path)
            config = recorded.run["config"]
            setting, rest = parted(config)
            if setting not in known:
                strangers += 1
                continue
            ours = Ours.of(recorded)
        except (results.CorruptFileError, KeyError, TypeError) as wrong:
            unread.append(str(wrong) if isinstance(wrong, results.CorruptFileError) else f"{path}: no {wrong} in it")
            continue
        letter = protocols.setdefault(rest, letters(len(protocols)))
        seeds = found.setdefault((setting, letter), {})
        if ours.seed not in seeds or seeds[ours.seed].done < ours.done:  # a copy of a folder is no other sample
            seeds[ours.seed] = ours
    if not found and not unread:
        raise ValueError(
            f"{folder} holds no run of the paper's cells; `bartizan paper run TABLE --out {folder}` adds some."
        )
    legend = {letter: json.loads(rest) for rest, letter in protocols.items()}
    return Comparison(list(_rows(found, legend)), legend, strangers, unread)


def parted(config: Mapping[str, Any]) -> tuple[str, str]:
    """A configuration cut into what a cell asks for and the protocol, both in a form that can be compared."""
    rest = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    setting: dict[str, Any] = {name: rest.pop(name, None) for name in ASKED}
    setting |= {"data": rest["data"].pop("name"), "byzantine": rest["clients"].pop("byzantine")}
    rest["data"].pop("folder", None)
    for key in ASIDE:
        rest.pop(key, None)
    return json.dumps(setting, sort_keys=True), json.dumps(rest, sort_keys=True)


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


def _rows(found: Mapping[tuple[str, str], Mapping[int, Ours]], protocols: Iterable[str]) -> Iterator[Row]:
    bases = {cell.base: cell for cell in cells() if not cell.pdr}
    for cell, letter in product((cell for cell in cells() if cell.pdr), protocols):
        base = bases[cell.base]
        without = _seeds(found.get((_setting(base, "exact"), letter), {}))
        runs = {kind: _seeds(found.get((_setting(cell, kind), letter), {})) for kind in sketches_of(cell)}
        projected = {kind: of for kind, of in runs.items() if of}
        if without and not projected and cell.table != ABLATION:
            projected = {"": ()}  # the base is there, and waits for its projected twin
        for kind, of in projected.items():
            yield Row(cell, base.values, kind, letter, without, of)


def _seeds(runs: Mapping[int, Ours]) -> tuple[Ours, ...]:
    return tuple(runs[seed] for seed in sorted(runs))


@cache
def _setting(cell: Cell, sketch: str) -> str:
    filled = {name: CHOICES[name].as_dict(CHOICES[name].of(content)) for name, content in asked(cell, sketch).items()}
    return json.dumps({**filled, "data": cell.data, "byzantine": cell.b}, sort_keys=True)


def _served(seconds: Mapping[str, float | None]) -> float:
    """The server's time in a round; 0 where the round was refused, and has none."""
    return sum(seconds.get(part) or 0.0 for part in ("sketch", "weigh", "combine"))


def _distinct(numbers: Iterable[float]) -> list[float]:
    return list(dict.fromkeys(numbers))
