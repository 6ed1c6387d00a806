"""Read all runs of a folder and check their fields; those that can't be read are listed with the reason."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bartizan import records
from bartizan._util.jsonl import flatten
from bartizan._util.text import quoted, text
from bartizan._util.types import Floats
from bartizan.lab.report.run_data import ROUND, SECONDS, Run
from bartizan.records import CorruptFileError, Recorded


@dataclass(frozen=True)
class Loaded:
    """The runs of a folder."""

    folder: Path
    runs: list[Run]
    broken: list[tuple[str, str]]
    """Folders of runs that can't be read, and why."""


def load(folder: Path, notice: Callable[[str], None] = lambda text: None) -> Loaded:
    """Read the runs in a folder; raise FileNotFoundError if it has none. A corrupt run raises nothing."""
    folders = records.find(folder)
    if not folders:
        raise FileNotFoundError(
            f"{folder} holds no run: there is no {records.NAME} in it or below. "
            "Wanted a folder that `bartizan run` or `bartizan sweep` wrote."
        )
    found = Loaded(folder, [], [])
    for n, one in enumerate(folders, start=1):
        notice(f"reading run {n} of {len(folders)}")
        name = text(one.relative_to(folder).as_posix() if one != folder else one.resolve().name)
        try:
            found.runs.append(_run(records.read(one), name))
        except (ValueError, OSError) as wrong:
            found.broken.append((name, text(wrong)))
        except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as wrong:
            # The checksums are right but the fields are not: a mistake of another program that wrote them.
            found.broken.append((name, text(f"{one / records.NAME} does not follow the results format: {wrong!r}")))
    return found


def _run(recorded: Recorded, folder: str) -> Run:
    """Check the lines of a run and turn them into arrays."""
    where = str(recorded.folder / records.NAME)
    run, end = _Fields(recorded.run, where), _Fields(recorded.end or {}, where)
    ids = recorded.run.get("clients")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, (str, int, float)) for one in ids):
        raise CorruptFileError(f"{where}: 'clients' must be a list of numbers or strings.")
    index = {one: i for i, one in enumerate(ids)}
    if len(index) != len(ids):
        raise CorruptFileError(f"{where}: 'clients' names a client twice.")
    byzantine = None
    if run.values.get("byzantine") is not None:
        byzantine = np.isin(np.arange(len(ids)), run.clients("byzantine", index))
    split, classes = run.table("split", len(ids)), run.get("classes", list, "a list of names")
    if classes is not None and split is not None and len(classes) != split.shape[1]:
        raise CorruptFileError(f"{where}: 'classes' must name the {split.shape[1]} columns of 'split'.")
    run.numbers("sizes", len(ids))  # not drawn, only checked
    ratio, dim, config = run.nested("ratio"), run.number("dim"), flatten(run.nested("config").values)
    rounds = _rounds(recorded.rounds, where, index)
    accuracy = rounds["series"]["accuracy"]
    known = accuracy[np.isfinite(accuracy)]
    status = end.values.get("status")
    return Run(
        folder=folder,
        id=text(run.values.get("id")),
        name=text(run.values.get("name")),
        config={text(key): text(one) if isinstance(one, str) else one for key, one in config.items()},
        clients=tuple(map(text, ids)),
        byzantine=byzantine,
        ratio=(ratio.number("count"), ratio.number("data")),
        split=split,
        classes=None if classes is None else tuple(map(text, classes)),
        dim=None if math.isnan(dim) else int(dim),
        versions={key: text(run.values[key]) for key in ("bartizan", "torch", "machine") if run.values.get(key)},
        status="unfinished" if recorded.end is None else text(status) or "finished",
        torn=text(recorded.torn),
        converged=bool(end.values.get("converged", True)) and status != "diverged",
        best=_first(end.number("best"), known.max(initial=-math.inf)),
        last=_first(end.number("last"), *known[-1:]),
        seconds=end.number("seconds"),
        **rounds,
    )


def _rounds(lines: list[dict[str, Any]], where: str, index: dict[Any, int]) -> dict[str, Any]:
    """Return the round lines of a file as arrays, by the names of the fields of `Run`."""
    by_text = {str(one): i for one, i in index.items()}  # keys of JSON objects are strings
    shape = (len(lines), len(index))
    series = {name: np.full(len(lines), math.nan) for name in (*ROUND, *SECONDS)}
    weights, sizes = np.full(shape, math.nan, dtype=np.float32), np.full(shape, math.nan)
    present, quarantined = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    exact_rounds, exact, notes, sketch = [], [], [], ""
    ids: Any = None
    took_part: list[int] = []
    for t, line in enumerate(lines):
        fields = _Fields(line, f"{where}: round {t + 1}")
        if ids is None or line.get("clients") != ids:  # most rounds have the clients of the one before
            took_part, ids = fields.clients("clients", index), line["clients"]
        present[t, took_part] = True
        given = fields.numbers("weights", len(took_part))
        compared = fields.numbers("exact_weights", len(took_part))
        counted = fields.numbers("sizes", len(took_part))
        if given is not None:
            weights[t, took_part] = given
        if counted is not None:
            sizes[t, took_part] = counted
        if given is not None and compared is not None:
            exact_rounds.append(t)
            exact.append(np.full(len(index), math.nan, dtype=np.float32))
            exact[-1][took_part] = compared
        gone = fields.nested("quarantined")
        quarantined[t, _positions(gone.values, by_text, gone.where)] = True
        seconds = fields.nested("seconds")
        for name in ROUND:
            series[name][t] = fields.number(name)
        for name in SECONDS:
            series[name][t] = seconds.number(name)
        sketch = sketch or text(line.get("sketch"))
        if line.get("note"):
            notes.append((t + 1, text(line["note"])))
    return {
        "series": series,
        "weights": weights,
        "present": present,
        "quarantined": quarantined,
        "sizes": sizes if np.isfinite(sizes).any() else None,
        "exact_rounds": np.array(exact_rounds, dtype=np.intp),
        "exact": np.array(exact, dtype=np.float32).reshape(len(exact), len(index)),
        "sketch": sketch,
        "notes": tuple(notes),
    }


def _first(*values: float) -> float:
    return next((float(value) for value in values if math.isfinite(value)), math.nan)


@dataclass(frozen=True)
class _Fields:
    """The fields of a JSON object; a field of the wrong type is a `CorruptFileError` that names it.

    A field that is absent or null is NaN for a number, empty for an object, and None otherwise.
    """

    values: Mapping[str, Any]
    where: str
    """The file, and the round if there is one: the beginning of error messages."""

    def number(self, name: str) -> float:
        value = self.values.get(name)
        if not _is_number(value):
            self._fail(name, "a number or null")
        return _float(value)

    def numbers(self, name: str, length: int) -> Floats | None:
        return self._array(name, self.values.get(name), length, f"a list of {length} numbers")

    def table(self, name: str, n_rows: int) -> Floats | None:
        """Return `n_rows` lists of numbers, all of the same length, as one array."""
        wanted = f"{n_rows} lists of numbers of the same length"
        rows = self.get(name, list, wanted)
        if rows is None:
            return None
        if len(rows) != n_rows or not all(isinstance(row, list) for row in rows):
            self._fail(name, wanted)
        return np.array([self._array(name, row, len(rows[0]), wanted) for row in rows]).reshape(n_rows, len(rows[0]))

    def nested(self, name: str) -> _Fields:
        return _Fields(self.get(name, dict, "an object") or {}, f"{self.where}: {name!r}")

    def get(self, name: str, kind: type[Any], wanted: str) -> Any:
        """Return a value of this type, or None."""
        value = self.values.get(name)
        if not isinstance(value, kind | None):
            self._fail(name, wanted)
        return value

    def clients(self, name: str, index: Mapping[Any, int]) -> list[int]:
        """Return the positions of the listed clients; `index` has the positions of all clients of the run."""
        value = self.values.get(name)
        if not isinstance(value, list):
            self._fail(name, "a list of client ids")
        return _positions(value, index, f"{self.where}: {name!r}")

    def _array(self, name: str, value: Any, length: int, wanted: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(map(_is_number, value)):
            self._fail(name, wanted)
        return np.array([_float(one) for one in value], dtype=np.float64)

    def _fail(self, name: str, wanted: str) -> NoReturn:
        got = text(quoted(self.values.get(name), 60))
        raise CorruptFileError(f"{self.where}: {name!r} must be {wanted}, got {got}.")


def _positions(clients: Iterable[Any], index: Mapping[Any, int], where: str) -> list[int]:
    """Return the position of each client; one that is unknown or named twice is an error."""
    found: list[int] = []
    for client in clients:
        if not isinstance(client, (str, int, float)) or client not in index:
            raise CorruptFileError(f"{where} names {text(quoted(client, 60))}, which is no client of the run.")
        found.append(index[client])
    if len(set(found)) != len(found):
        raise CorruptFileError(f"{where} names a client twice.")
    return found


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _float(value: int | float | None) -> float:
    """Return a finite float or NaN; JSON has integers that no float can hold."""
    largest = sys.float_info.max
    return math.nan if value is None or not -largest <= value <= largest else float(value)
