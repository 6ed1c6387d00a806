"""Check the content of a file against declared types: JSON objects as typed dicts, and as dataclasses.

>>> from typing import TypedDict
>>> class Line(TypedDict):
...     round: Annotated[int, Between(1, 100)]
...     loss: NotRequired[float | None]
>>> check(Line, {"round": 10**9})
Traceback (most recent call last):
TypeError: round must be a whole number from 1 to 100, got 1000000000
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from bartizan._util.text import quoted, short

T = TypeVar("T")
KEY = "key"  # field metadata of a dataclass: the key in the file, where it is not the field's name
LARGEST, LARGEST_INT = 1e300, 2**63 - 1  # JSON has integers that no float and no NumPy array can hold
WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", types.NoneType: "null"}


@dataclass(frozen=True)
class Between:
    """Limits of a number, both included; NaN is outside of all."""

    least: float
    most: float


def check(kind: Any, row: Mapping[str, Any], name: str = "") -> None:
    """Check a JSON object against a TypedDict; a missing or ill-typed field is a TypeError that names it.

    Fields that the TypedDict does not have are accepted.
    """
    for key, (hint, required) in _typed(kind).items():
        if key in row:
            _converted(row[key], hint, name + key)
        elif required:
            raise TypeError(f"{name}{key} is missing")


def parse(cls: type[T], row: Mapping[str, Any]) -> T:
    """Build a dataclass from a JSON object; a missing, unknown or ill-typed field is a TypeError that names it."""
    hints = get_type_hints(cls, include_extras=True)
    known = {one.metadata.get(KEY, one.name): one for one in fields(cls)}  # type: ignore[arg-type]
    for key, one in known.items():
        if key not in row and one.default is MISSING and one.default_factory is MISSING:
            raise TypeError(f"{key} is missing")
    for key in row:
        if key not in known:
            raise TypeError(f"{short(key, 60)} is no field of it")
    given = {key: one.name for key, one in known.items() if key in row}
    return cls(**{name: _converted(row[key], hints[name], key) for key, name in given.items()})


def as_row(one: Any) -> dict[str, Any]:
    """Return a dataclass as the JSON object that `parse` reads."""
    values = asdict(one)
    return {field.metadata.get(KEY, field.name): values[field.name] for field in fields(one)}


@cache
def _typed(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the hint of each field of a TypedDict, and whether the field is required."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {key: (get_args(one)[0], False) if get_origin(one) is NotRequired else (one, True) for key, one in hints}


def _converted(value: Any, hint: Any, name: str) -> Any:
    """Check a value against the hint and return it, with tuples for lists where the hint is a tuple."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or (hint in (None, types.NoneType) and value is None):
        return value
    if origin in (Union, types.UnionType):
        others = [one for one in inner if one is not types.NoneType]
        if value is None and len(others) < len(inner):
            return value
        if len(others) == 1:
            return _converted(value, others[0], name)
        for one in others:
            with suppress(TypeError):
                return _converted(value, one, name)
    elif hint is float:
        if type(value) in (int, float) and abs(value) <= LARGEST:
            return value
    elif hint is int:
        if type(value) is int and abs(value) <= LARGEST_INT:
            return value
    elif origin is Annotated:
        if inner[1].least <= _converted(value, inner[0], name) <= inner[1].most:
            return value
    elif origin is Literal:
        if type(value) in map(type, inner) and value in inner:
            return value
    elif is_typeddict(hint):
        if isinstance(value, dict):
            check(hint, value, f"{name}.")
            return value
    elif origin is dict:
        if isinstance(value, dict):
            return {key: _converted(one, inner[1], f"{name}.{short(key, 60)}") for key, one in value.items()}
    elif origin is list:
        if isinstance(value, list):
            if not _are_plain(value, inner[0]):
                for i, one in enumerate(value):
                    _converted(one, inner[0], f"{name}[{i}]")
            return value
    elif origin is tuple:
        kinds = inner[:1] * len(value) if isinstance(value, (list, tuple)) and inner[-1] is Ellipsis else inner
        if isinstance(value, (list, tuple)) and len(value) == len(kinds):
            return tuple(_converted(one, kind, name) for one, kind in zip(value, kinds, strict=True))
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    raise TypeError(f"{name} must be {_wanted(hint)}, got {quoted(value, 60)}")


def _are_plain(values: list[Any], hint: Any) -> bool:
    """Return whether all are of the hint's plain types: a quick check for the lists by client."""
    kinds = set(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else {hint}
    if float not in kinds or not kinds <= WORDS.keys():
        return False
    numbers = [one for one in values if one is not None and type(one) is not str]
    return kinds | {int} >= set(map(type, values)) and all(-LARGEST <= one <= LARGEST for one in numbers)


def _wanted(hint: Any) -> str:
    """Return a hint as text for messages."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{_wanted(inner[0])} from {inner[1].least:,} to {inner[1].most:,}"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_wanted, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (list, tuple):
        return "a list"
    return "an object" if origin is dict or is_typeddict(hint) else WORDS.get(hint, getattr(hint, "__name__", "other"))
