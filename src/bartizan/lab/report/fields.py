"""Fields of a results file as what they should be, or an error that names them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bartizan._util.text import text
from bartizan._util.types import Floats
from bartizan.records import CorruptFileError


def number(value: Any, what: str) -> float:
    """A number; NaN where there is none, or none that is finite."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CorruptFileError(f"{what} must be a number or null, got {shown(value)}.")
    try:
        found = float(value)
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def numbers(value: Any, length: int, what: str) -> Floats:
    if not isinstance(value, list) or len(value) != length:
        raise CorruptFileError(f"{what} must be a list of {length} numbers, got {shown(value)}.")
    if {type(one) for one in value} == {float}:
        found = np.array(value, dtype=np.float64)
        found[~np.isfinite(found)] = math.nan
        return found
    return np.array([number(one, what) for one in value], dtype=np.float64)


def table(value: Any, rows: int, what: str) -> Floats:
    """As many lists of numbers, all of one length."""
    if not isinstance(value, list) or len(value) != rows or not all(isinstance(row, list) for row in value):
        raise CorruptFileError(f"{what} must be {rows} lists of numbers, got {shown(value)}.")
    width = len(value[0]) if value else 0
    return np.array([numbers(row, width, what) for row in value], dtype=np.float64).reshape(rows, width)


def mapping(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CorruptFileError(f"{what} must be an object, got {shown(value)}.")
    return value


def places(ids: Any, index: Mapping[Any, int], what: str) -> list[int]:
    """Where these clients stand in the run's list."""
    if not isinstance(ids, list):
        raise CorruptFileError(f"{what} must be a list of client ids, got {shown(ids)}.")
    for one in ids:
        if not isinstance(one, (str, int, float)) or one not in index:
            raise CorruptFileError(f"{what} names {shown(one)}, which is no client of the run.")
    found = [index[one] for one in ids]
    if len(set(found)) != len(found):
        raise CorruptFileError(f"{what} names a client twice.")
    return found


def texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(text(value) for value in values)


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names.

    >>> flat({"seed": 1, "rule": {"name": "krum"}})
    {'seed': 1, 'rule.name': 'krum'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{above}{text(key)}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = text(value) if isinstance(value, str) else value
    return found


def shown(value: Any) -> str:
    """A value short enough for a message."""
    whole = repr(value)
    return text(whole if len(whole) <= 60 else f"{whole[:57]}...")
