"""Typed access to the fields of one line of `results.jsonl`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from bartizan._util.text import text
from bartizan._util.types import Floats
from bartizan.records import CorruptFileError

T = TypeVar("T")
LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Fields:
    """The fields of a JSON object; a field of the wrong type is a `CorruptFileError` that names it.

    A field that is absent or null is NaN for a number and None otherwise.
    """

    values: Mapping[str, Any]
    where: str
    """The file, and the round if there is one: the beginning of error messages."""

    def number(self, name: str) -> float:
        found = self._as(name, _number, "a number or null")
        return math.nan if found is None else found

    def numbers(self, name: str, length: int) -> Floats | None:
        return self._as(name, lambda value: _vector(value, length), f"a list of {length} numbers")

    def table(self, name: str, n_rows: int) -> Floats | None:
        """Return `n_rows` lists of numbers, all of the same length, as one array."""

        def convert(value: Any) -> Floats:
            rows = _list(value, n_rows)
            width = len(_list(rows[0]))
            return np.array([_vector(row, width) for row in rows], dtype=np.float64).reshape(n_rows, width)

        return self._as(name, convert, f"{n_rows} lists of numbers of the same length")

    def texts(self, name: str) -> tuple[str, ...] | None:
        return self._as(name, lambda value: tuple(map(text, _list(value))), "a list of names")

    def nested(self, name: str) -> Fields:
        """Return the fields of a nested object, none if it is absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._error(name, "an object")
        return Fields(value or {}, f"{self.where}: {name!r}")

    def clients(self, name: str, index: Mapping[Any, int]) -> list[int]:
        """Return the positions of the listed clients; `index` has the positions of all clients of the run."""
        if not isinstance(self.values.get(name), list):
            raise self._error(name, "a list of client ids")
        return positions(self.values[name], index, f"{self.where}: {name!r}")

    def _as(self, name: str, convert: Callable[[Any], T], wanted: str) -> T | None:
        value = self.values.get(name)
        try:
            return None if value is None else convert(value)
        except TypeError:
            raise self._error(name, wanted) from None

    def _error(self, name: str, wanted: str) -> CorruptFileError:
        return CorruptFileError(f"{self.where}: {name!r} must be {wanted}, got {shown(self.values.get(name))}.")


def positions(clients: Iterable[Any], index: Mapping[Any, int], where: str) -> list[int]:
    """Return the position of each client; one that is unknown or named twice is an error."""
    found: list[int] = []
    for client in clients:
        if not isinstance(client, (str, int, float)) or client not in index:
            raise CorruptFileError(f"{where} names {shown(client)}, which is no client of the run.")
        found.append(index[client])
    if len(set(found)) != len(found):
        raise CorruptFileError(f"{where} names a client twice.")
    return found


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted names.

    >>> flat({"seed": 1, "rule": {"name": "krum"}})
    {'seed': 1, 'rule.name': 'krum'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{text(key)}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = text(value) if isinstance(value, str) else value
    return found


def shown(value: Any) -> str:
    """Return a value as Python writes it, shortened for a message."""
    written = repr(value)
    return text(written if len(written) <= 60 else f"{written[:57]}...")


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    # Comparing first, since JSON has integers that no float can hold.
    return float(value) if -LARGEST <= value <= LARGEST else math.nan


def _list(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise TypeError
    return value


def _vector(value: Any, length: int) -> Floats:
    return np.array([_number(one) for one in _list(value, length)], dtype=np.float64)
