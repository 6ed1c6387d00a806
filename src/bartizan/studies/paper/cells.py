"""The cells of the paper's tables: what was asked, and what the paper printed."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

DATA = {"cifar10": "cifar10", "cifar100": "cifar100", "tinyimagenet": "tiny-imagenet"}
ABLATION = "cifar10-ks"


@dataclass(frozen=True)
class Value:
    """What one of the paper's tables prints for a cell; no accuracy: it did not converge, printed as "-"."""

    label: str
    accuracy: float | None  # the best on the test set, in percent
    seconds: float  # of the server

    @property
    def shown(self) -> str:
        return "-" if self.accuracy is None else f"{self.accuracy:g}"


@dataclass(frozen=True)
class Cell:
    """One setting of the paper, with all that it prints for it: a few cells are printed twice, and differ."""

    table: str
    data: str
    beta: float
    b: float
    attack: str
    rule: str
    pdr: bool
    k: int | None
    s: int | None
    values: tuple[Value, ...] = ()

    @property
    def base(self) -> tuple[Any, ...]:
        """What a cell shares with the one that it is compared with: the same rule on the unprojected updates."""
        return self.data, self.beta, self.b, self.attack, self.rule

    @property
    def key(self) -> tuple[Any, ...]:
        return self.table, *self.base, self.pdr, self.k, self.s

    def __str__(self) -> str:
        projected = f"k={self.k} s={self.s}" if self.pdr else "exact"
        return f"{self.data} beta={self.beta:g} b={self.b:g} {self.attack} {self.rule} {projected}"


@cache
def cells() -> tuple[Cell, ...]:
    """All of them, in the order in which they matter.

    >>> len(cells()), sum(len(cell.values) for cell in cells())
    (420, 676)
    """
    found: dict[tuple[Any, ...], Cell] = {}
    text = (resources.files(__package__) / "tables.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        cell = _cell(line)
        before = found.get(cell.key)
        found[cell.key] = replace(cell, values=before.values + cell.values) if before else cell
    return tuple(sorted(found.values(), key=_importance))


@cache
def tables() -> dict[str, tuple[Cell, ...]]:
    """The cells by table; ours hold one data set and one beta each.

    >>> ", ".join(tables())
    'cifar10-0.6, cifar10-0.2, cifar10-ks, cifar100-0.6, cifar100-0.2, tiny-imagenet-0.6, tiny-imagenet-0.2'
    """
    out: dict[str, tuple[Cell, ...]] = {}
    for cell in cells():
        out[cell.table] = (*out.get(cell.table, ()), cell)
    return out


def labels() -> list[str]:
    """The paper's own names of its tables."""
    return sorted({value.label for cell in cells() for value in cell.values})


def named(table: str) -> list[Cell]:
    """The cells of one of our tables, of one of the paper's, of a data set, or all.

    >>> len(named("cifar10-0.6")), len(named("tab:0.6")), len(named("cifar10")), len(named("all"))
    (64, 128, 164, 420)
    """
    wanted = table.lower()
    chosen = [
        cell
        for cell in cells()
        if wanted in ("all", cell.table, cell.data) or any(wanted == value.label for value in cell.values)
    ]
    if not chosen:
        known = ["all", *DATA.values(), *tables(), *labels()]
        close = difflib.get_close_matches(wanted, known, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"Unknown table {table!r}.{meant} Known: {', '.join(known)}.")
    return chosen


def picked(table: str, filters: str = "") -> list[Cell]:
    """What to run: the cells of a table that a filter leaves, and the bases that the k/s table does not hold.

    A base stands in front of the first cell that needs it. A filter on `pdr` has said which are wanted.

    >>> len(picked("cifar10-ks")), len(picked("cifar10-ks", "rule=krum,k=1024")), len(picked("cifar10-ks", "pdr=1"))
    (40, 4, 36)
    """
    chosen = filtered(named(table), filters)
    if "pdr" in dict(_parts(filters)):
        return chosen
    bases = {cell.base: cell for cell in cells() if not cell.pdr}
    held = {cell.base for cell in chosen if not cell.pdr}
    out: list[Cell] = []
    for cell in chosen:
        if cell.table == ABLATION and cell.base not in held:
            held.add(cell.base)
            out.append(bases[cell.base])
        out.append(cell)
    return out


# How a cell answers to a filter's key; None where the cell has no such thing.
KEYS: Mapping[str, Callable[[Cell], Any]] = {
    "data": lambda cell: cell.data,
    "beta": lambda cell: cell.beta,
    "b": lambda cell: cell.b,
    "attack": lambda cell: cell.attack,
    "rule": lambda cell: cell.rule,
    "pdr": lambda cell: int(cell.pdr),
    "k": lambda cell: cell.k,
    "s": lambda cell: cell.s,
}


def filtered(chosen: Sequence[Cell], filters: str) -> list[Cell]:
    """The cells that a filter such as `rule=krum,attack=lie,b=0.3` leaves; one key given twice means either.

    >>> len(filtered(named("cifar10-0.6"), "rule=krum, rule=mca, b=0.3, pdr=1"))
    8
    """
    wanted: dict[str, set[str]] = {}
    for key, value in _parts(filters):
        allowed = sorted({_written(KEYS[key](cell)) for cell in chosen} - {""})
        if value not in allowed:
            raise ValueError(f"--cells: {key} in these cells is one of {', '.join(allowed)}; got {value!r}.")
        wanted.setdefault(key, set()).add(value)
    left = [cell for cell in chosen if all(_written(KEYS[key](cell)) in of for key, of in wanted.items())]
    if not left:
        raise ValueError(f"--cells {filters} leaves no cell: no one cell has all of that.")
    return left


def twice(chosen: Iterable[Cell]) -> list[Cell]:
    """The cells that the paper prints with more than one value.

    >>> [str(cell) for cell in twice(cells())][0]
    'cifar10 beta=0.6 b=0.1 gaussian krum k=4096 s=8'
    """
    return [cell for cell in chosen if len({(value.accuracy, value.seconds) for value in cell.values}) > 1]


def _parts(filters: str) -> list[tuple[str, str]]:
    """The keys and values of a filter."""
    out = []
    for part in filter(None, (part.strip() for part in filters.split(","))):
        key, equals, value = (word.strip().lower() for word in part.partition("="))
        if not equals or key not in KEYS:
            raise ValueError(f"--cells takes {', '.join(f'{key}=...' for key in KEYS)}; got {part!r}.")
        out.append((key, _plain(value)))
    return out


def _cell(line: Mapping[str, str]) -> Cell:
    data = DATA[line["dataset"]]
    # The ablation's caption names no beta; its cells at k=4096, s=8 are those of beta 0.6, to the digit.
    beta = float(line["beta"] or 0.6)
    accuracy = line["max_test_accuracy_percent"]
    value = Value(line["table"], float(accuracy) if accuracy else None, float(line["wall_time_seconds"]))
    return Cell(
        table=ABLATION if line["table"].endswith("_ks") else f"{data}-{beta:g}",
        data=data,
        beta=beta,
        b=float(line["b"]),
        attack=line["attack"],
        rule=line["rule"],
        pdr=line["pdr"] == "1",
        k=int(line["k"]) if line["k"] else None,
        s=int(line["s"]) if line["s"] else None,
        values=(value,),
    )


def _importance(cell: Cell) -> tuple[Any, ...]:
    """The hard cells first; a cell and its base side by side, so that whoever stops early has pairs."""
    return (
        list(DATA.values()).index(cell.data),
        cell.table == ABLATION,
        -cell.beta,
        -cell.b,
        ("krum", "geometric-median", "mca", "bulyan").index(cell.rule),
        ("sign-flip", "lie", "foe", "gaussian").index(cell.attack),
        cell.pdr,
        cell.k or 0,
        cell.s or 0,
    )


def _written(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _plain(text: str) -> str:
    """A number as `_written` has it, a name with - for _."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text.replace("_", "-")
