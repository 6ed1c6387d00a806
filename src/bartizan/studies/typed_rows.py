"""Turn JSON objects into dataclasses and back, checking the type of every field."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from bartizan._util.text import quoted

T = TypeVar("T")
KEY = "key"
"""Field metadata: the key in the file, where it is not the field's name."""
LARGEST = 1e300  # JSON has integers that no float can hold


def parse(cls: type[T], row: Mapping[str, Any]) -> T:
    """Build a dataclass from a JSON object; a missing, unknown or ill-typed field is a TypeError that names it."""
    hints = get_type_hints(cls)
    known = {one.metadata.get(KEY, one.name): one.name for one in fields(cls)}  # type: ignore[arg-type]
    missing, unknown = [key for key in known if key not in row], [key for key in row if key not in known]
    if missing or unknown:
        raise TypeError(f"{missing[0]} is missing" if missing else f"{unknown[0]} is no field of it")
    return cls(**{name: _converted(row[key], hints[name], key) for key, name in known.items()})


def as_row(one: Any) -> dict[str, Any]:
    """Return a dataclass as the JSON object that `parse` reads."""
    values = asdict(one)
    return {field.metadata.get(KEY, field.name): values[field.name] for field in fields(one)}


def _converted(value: Any, hint: Any, name: str) -> Any:
    """The value, checked against the hint, with tuples for lists where the hint is a tuple."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or (hint in (None, types.NoneType) and value is None):
        return value
    if origin in (Union, types.UnionType):
        for one in inner:
            try:
                return _converted(value, one, name)
            except TypeError:
                continue
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST:
            return value
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif origin is dict:
        if isinstance(value, dict):
            return {key: _converted(one, inner[1], name) for key, one in value.items()}
    elif origin is tuple:
        kinds = inner[:1] * len(value) if isinstance(value, (list, tuple)) and inner[-1] is Ellipsis else inner
        if isinstance(value, (list, tuple)) and len(value) == len(kinds):
            return tuple(_converted(one, kind, name) for one, kind in zip(value, kinds, strict=True))
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    raise TypeError(f"{name} can't be {quoted(value)}")
