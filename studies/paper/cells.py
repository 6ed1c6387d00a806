"""The cells of the paper's tables: their settings, and the values that the paper prints."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bartizan._util.text import did_you_mean

DATA = {"cifar10": "cifar10", "cifar100": "cifar100", "tinyimagenet": "tiny-imagenet"}
ABLATION = "cifar10-ks"
STRESS = "cifar10-stress"
"""Our own table, of attacks that hide among the honest updates: there a projection could lose what the rule needs."""
RULES = ("krum", "geometric-median", "mca", "bulyan")
ATTACKS = ("sign-flip", "lie", "foe", "gaussian")
STRESS_ATTACKS, STRESS_SIZES = ("lie", "alie", "ipm", "min-max"), (4096, 1024, 256)
BAD_SIZE = 16
"""The k of that table's cells with `bad-unsigned-sum`, which keeps no distances: there PDR must differ from base."""
KEYS = ("data", "beta", "b", "attack", "rule", "pdr", "k", "s")
"""The keys of `--cells`."""


@dataclass(frozen=True)
class PaperValue:
    """One printed value of a cell. The accuracy is None where the paper prints "-": the run did not converge."""

    label: str
    accuracy_percent: float | None  # the best on the test set
    seconds: float  # of the server

    @property
    def shown(self) -> str:
        return "-" if self.accuracy_percent is None else f"{self.accuracy_percent:g}"


@dataclass(frozen=True)
class PaperCell:
    """One setting of the paper and all values printed for it; a few cells are printed twice, and differ."""

    table: str
    data: str
    beta: float
    b: float
    attack: str
    rule: str
    pdr: bool
    k: int | None
    s: int | None
    values: tuple[PaperValue, ...] = ()

    @property
    def base(self) -> tuple[Any, ...]:
        """The settings that a projected cell shares with its base, the same rule on the unprojected updates."""
        return self.data, self.beta, self.b, self.attack, self.rule

    @property
    def key(self) -> tuple[Any, ...]:
        return self.table, *self.base, self.pdr, self.k, self.s


@cache
def cells() -> tuple[PaperCell, ...]:
    """Return all cells, the hard ones first.

    >>> len(cells()), sum(len(cell.values) for cell in cells())
    (420, 676)
    """
    found: dict[tuple[Any, ...], PaperCell] = {}
    text = Path(__file__).with_name("tables.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        cell = _parse(line)
        before = found.get(cell.key)
        found[cell.key] = replace(cell, values=before.values + cell.values) if before else cell
    return tuple(sorted(found.values(), key=_importance))


@cache
def stress_cells() -> tuple[PaperCell, ...]:
    """Return the cells of our own table: b=0.3, beta=0.6, no values but for LIE at k=4096, which the paper has.

    >>> len(stress_cells()), sum(bool(cell.values) for cell in stress_cells())
    (80, 8)
    """
    out = []
    for cell in filtered(tables()["cifar10-0.6"], "attack=lie,b=0.3"):
        for attack in STRESS_ATTACKS:
            for k in (*STRESS_SIZES, BAD_SIZE) if cell.pdr else (None,):
                printed = cell.values if (attack, k) == (cell.attack, cell.k) else ()
                out.append(replace(cell, table=STRESS, attack=attack, k=k, values=printed))
    return tuple(
        sorted(out, key=lambda cell: (RULES.index(cell.rule), STRESS_ATTACKS.index(cell.attack), -(cell.k or 9999)))
    )


@cache
def bases() -> dict[tuple[Any, ...], PaperCell]:
    """Return the unprojected cells by their settings."""
    return {cell.base: cell for cell in (*stress_cells(), *cells()) if not cell.pdr}


@cache
def tables() -> dict[str, tuple[PaperCell, ...]]:
    """Return the cells by table; a table has one data set and one beta.

    >>> ", ".join(tables())
    'cifar10-0.6, cifar10-0.2, cifar10-ks, cifar100-0.6, cifar100-0.2, tiny-imagenet-0.6, tiny-imagenet-0.2'
    """
    names = dict.fromkeys(cell.table for cell in cells())
    return {name: tuple(cell for cell in cells() if cell.table == name) for name in names}


def labels() -> list[str]:
    """Return the paper's own names of its tables."""
    return sorted({value.label for cell in cells() for value in cell.values})


def named(table: str) -> list[PaperCell]:
    """Return the cells of one of our tables, of one of the paper's, of a data set, or all of the paper's.

    >>> len(named("cifar10-0.6")), len(named("tab:0.6")), len(named("cifar10")), len(named("all"))
    (64, 128, 164, 420)
    """
    wanted = table.lower()
    if wanted == STRESS:
        return list(stress_cells())
    chosen = [
        cell
        for cell in cells()
        if wanted in ("all", cell.table, cell.data) or any(wanted == value.label for value in cell.values)
    ]
    if not chosen:
        known = ["all", *DATA.values(), *tables(), STRESS, *labels()]
        raise ValueError(f"Unknown table {table!r}.{did_you_mean(wanted, known)} Known: {', '.join(known)}.")
    return chosen


def picked(table: str, filters: str = "") -> list[PaperCell]:
    """Return the cells to run: those of a table that a filter leaves, and the bases that are not among them.

    A base comes before the first cell that needs it. None are added if the filter has a key `pdr`. The k/s table has
    no bases of its own, and a filter by k or s leaves them out.

    >>> len(picked("cifar10-ks")), len(picked("cifar10-ks", "rule=krum,k=1024")), len(picked("cifar10-ks", "pdr=1"))
    (40, 4, 36)
    """
    chosen = filtered(named(table), filters)
    if "pdr" in dict(_parts(filters)):
        return chosen
    held = {cell.base for cell in chosen if not cell.pdr}
    out: list[PaperCell] = []
    for cell in chosen:
        if cell.base not in held:
            held.add(cell.base)
            out.append(bases()[cell.base])
        out.append(cell)
    return out


def filtered(chosen: Sequence[PaperCell], filters: str) -> list[PaperCell]:
    """Return the cells that match a filter such as `rule=krum,attack=lie,b=0.3`; a key given twice means either.

    >>> len(filtered(named("cifar10-0.6"), "rule=krum, rule=mca, b=0.3, pdr=1"))
    8
    """
    wanted: dict[str, set[str]] = {}
    for key, value in _parts(filters):
        allowed = sorted({_text(getattr(cell, key)) for cell in chosen} - {""})
        if value not in allowed:
            raise ValueError(f"--cells: {key} in these cells is one of {', '.join(allowed)}; got {value!r}.")
        wanted.setdefault(key, set()).add(value)
    left = [cell for cell in chosen if all(_text(getattr(cell, key)) in of for key, of in wanted.items())]
    if not left:
        raise ValueError(f"--cells {filters} leaves no cell: no cell matches all of it.")
    return left


def _parts(filters: str) -> list[tuple[str, str]]:
    """Return the keys and values of a filter, numbers as `_text` writes them and names with - for _."""
    out = []
    for part in filter(None, (part.strip() for part in filters.split(","))):
        key, equals, value = (word.strip().lower() for word in part.partition("="))
        if not equals or key not in KEYS:
            raise ValueError(f"--cells takes {', '.join(f'{key}=...' for key in KEYS)}; got {part!r}.")
        try:
            out.append((key, _text(float(value))))
        except ValueError:
            out.append((key, value.replace("_", "-")))
    return out


def _parse(line: Mapping[str, str]) -> PaperCell:
    data = DATA[line["dataset"]]
    # The ablation's caption names no beta; its cells at k=4096, s=8 are those of beta 0.6, to the digit.
    beta = float(line["beta"] or 0.6)
    accuracy = line["max_test_accuracy_percent"]
    value = PaperValue(line["table"], float(accuracy) if accuracy else None, float(line["wall_time_seconds"]))
    return PaperCell(
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


def _importance(cell: PaperCell) -> tuple[Any, ...]:
    """Sort key: hard cells first, each beside its base, so that a run that is stopped early has pairs."""
    return (
        list(DATA.values()).index(cell.data),
        cell.table == ABLATION,
        -cell.beta,
        -cell.b,
        RULES.index(cell.rule),
        ATTACKS.index(cell.attack),
        cell.pdr,
        cell.k or 0,
        cell.s or 0,
    )


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)
