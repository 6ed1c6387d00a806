"""Just as much of a TOML writer as experiments need; the standard library has a reader only."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any


def value(thing: Any) -> str:
    """A value as TOML.

    >>> value(True), value(1e-3), value("a\\n"), value([1, 2]), value({"name": "krum", "a.b": 1})
    ('true', '0.001', '"a\\\\n"', '[1, 2]', '{name = "krum", "a.b" = 1}')
    """
    if isinstance(thing, float):
        return repr(thing)
    if isinstance(thing, (bool, int, str)):
        return json.dumps(thing, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(thing, Mapping):
        return "{" + ", ".join(f"{name(key)} = {value(one)}" for key, one in thing.items()) + "}"
    if isinstance(thing, (list, tuple)):
        return "[" + ", ".join(value(one) for one in thing) + "]"
    raise TypeError(f"TOML has no {type(thing).__name__}: {thing!r}.")


def name(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else value(key)


def document(content: Mapping[str, Any]) -> str:
    """Keys first, then a table a section."""
    lines = [f"{name(key)} = {value(one)}" for key, one in content.items() if not isinstance(one, Mapping)]
    for key, one in content.items():
        if isinstance(one, Mapping):
            lines += ["", f"[{name(key)}]", *(f"{name(inner)} = {value(each)}" for inner, each in one.items())]
    return "\n".join(lines) + "\n"


def parsed(text: str) -> Any:
    """A value as somebody types it: TOML, or a word without quotes.

    >>> parsed("0.3"), parsed("krum"), parsed("nnm >> krum"), parsed("[1, 2]")
    (0.3, 'krum', 'nnm >> krum', [1, 2])
    """
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a whole number of too many digits
        return text
    return read["value"] if len(read) == 1 else text
