"""Write experiments as TOML, and read values of the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any


def value(thing: str | float | bool) -> str:
    """Return a number, a text, true or false as TOML writes it.

    >>> value(True), value(1e-3), value("a\\n")
    ('true', '0.001', '"a\\\\n"')
    """
    return json.dumps(thing)


def document(content: Mapping[str, Any]) -> str:
    """Return a TOML document: keys first, then a table per section."""
    try:
        import tomli_w
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("The laboratory needs tomli-w: pip install 'bartizan[lab]'") from missing
    return tomli_w.dumps(content)


def parsed(text: str) -> Any:
    """Return the value of a text from the command line: TOML, or a word without quotes.

    >>> parsed("0.3"), parsed("krum"), parsed("nnm >> krum"), parsed("[1, 2]")
    (0.3, 'krum', 'nnm >> krum', [1, 2])
    """
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a whole number of too many digits
        return text
    return read["value"] if len(read) == 1 else text
