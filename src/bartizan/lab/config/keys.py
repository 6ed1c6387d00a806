"""The keys of a config file: each says its default, what it is about and which values it takes, once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

from bartizan._util.text import quoted

LONGEST = 200
"""Letters of a name that are looked at and shown, where it is none that is known."""


class ConfigError(ValueError):
    """Something in an experiment that can't be: the message names the key, what came and what would do."""


def key(
    default: Any,
    about: str,
    *,
    one_of: Iterable[str] = (),
    least: float | None = None,
    most: float | None = None,
    any_type: bool = False,
) -> Any:
    """A field of a section; its type is that of the default, unless the section itself looks at it."""
    limits = {"one_of": tuple(one_of), "least": least, "most": most, "any_type": any_type}
    return field(default=default, metadata={"about": about, **limits})


def checked(section: str, kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values for a section, each of the right type and within its limits."""
    known = {one.name: one for one in fields(kind) if one.metadata}
    for name in given:
        refuse_unknown(name, known, section)
    return {name: _checked(full(section, name), known[name], value) for name, value in given.items()}


def refuse_unknown(name: str, known: Iterable[str], section: str, of: str = "", also: str = "") -> None:
    """Raise unless the key is known; `also` is one that could have been meant."""
    known = list(known)
    if name in known:
        return
    close = difflib.get_close_matches(name[:LONGEST], [*known, also] if also else known, n=1)
    meant = f" Did you mean {full(section, close[0])}?" if close else ""
    takes = ", ".join(known) if known else "no settings"
    raise ConfigError(
        f"Unknown key {full(section, name)[:LONGEST]}.{meant} {of or section or 'An experiment'} takes {takes}."
    )


def full(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def number_like(name: str, default: Any, value: Any) -> Any:
    """The value, as a float where the default is one; a number, a word or a switch as the default is."""
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}.get(type(default))
    if wanted is None:
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1e300 else math.inf
    if type(value) is not type(default):
        raise ConfigError(f"{name} must be {wanted}, such as {shown(default)}; got {shown(value)}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, such as {shown(default)}; got {shown(value)}.")
    return value


def shown(value: Any) -> str:
    """As TOML has it.

    >>> shown(True), shown("krum"), shown(3)
    ('true', "'krum'", '3')
    """
    return str(value).lower() if isinstance(value, bool) else quoted(value)


def _checked(name: str, one: Field[Any], value: Any) -> Any:
    default = None if one.default is MISSING else one.default
    if not one.metadata["any_type"]:
        value = number_like(name, default, value)
    choices, least, most = (one.metadata[limit] for limit in ("one_of", "least", "most"))
    if choices and value not in choices:
        close = difflib.get_close_matches(str(value)[:LONGEST], choices, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {shown(value)}.{meant}")
    too_small, too_large = least is not None and value < least, most is not None and value > most
    if too_small or too_large:
        limits = f"from {least} up" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} must be {limits}; got {shown(value)}.")
    return value
