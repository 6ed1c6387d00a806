"""Typed access to the fields of one line of `results.jsonl`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from bartizan._util.text import quoted, text
from bartizan._util.types import Floats
from bartizan.records import CorruptFileError


@dataclass(frozen=True)
class Fields:
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
        rows, wanted = self.values.get(name), f"{n_rows} lists of numbers of the same length"
        if rows is None:
            return None
        if not isinstance(rows, list) or len(rows) != n_rows or not all(isinstance(row, list) for row in rows):
            self._fail(name, wanted)
        return np.array([self._array(name, row, len(rows[0]), wanted) for row in rows]).reshape(n_rows, len(rows[0]))

    def texts(self, name: str) -> tuple[str, ...] | None:
        value = self.values.get(name)
        if not isinstance(value, list | None):
            self._fail(name, "a list of names")
        return None if value is None else tuple(map(text, value))

    def nested(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict | None):
            self._fail(name, "an object")
        return Fields(value or {}, f"{self.where}: {name!r}")

    def clients(self, name: str, index: Mapping[Any, int]) -> list[int]:
        """Return the positions of the listed clients; `index` has the positions of all clients of the run."""
        value = self.values.get(name)
        if not isinstance(value, list):
            self._fail(name, "a list of client ids")
        return positions(value, index, f"{self.where}: {name!r}")

    def _array(self, name: str, value: Any, length: int, wanted: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(map(_is_number, value)):
            self._fail(name, wanted)
        return np.array([_float(one) for one in value], dtype=np.float64)

    def _fail(self, name: str, wanted: str) -> NoReturn:
        got = text(quoted(self.values.get(name), 60))
        raise CorruptFileError(f"{self.where}: {name!r} must be {wanted}, got {got}.")


def positions(clients: Iterable[Any], index: Mapping[Any, int], where: str) -> list[int]:
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
