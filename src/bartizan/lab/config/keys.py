"""The keys of an experiment file: the default, the meaning and the permitted values of each, declared once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

from bartizan._util.schema import LARGEST_INT
from bartizan._util.text import did_you_mean, quoted, short
from bartizan.registry import Registry


class ConfigError(ValueError):
    """A wrong value in an experiment: the message names the key, the value and what is wanted."""


def key(
    default: Any,
    about: str,
    *,
    one_of: Iterable[str] = (),
    least: float | None = None,
    most: float | None = None,
    any_type: bool = False,
    registry: Registry | None = None,
) -> Any:
    """Return a field of a section; a value has the type of the default, unless the section itself checks it."""
    limits = {"one_of": tuple(one_of), "least": least, "most": most, "any_type": any_type, "registry": registry}
    return field(default=default, metadata={"about": about, **limits})


def checked(section: str, kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for a section, each of the right type and within its limits."""
    known = {one.name: one for one in fields(kind) if one.metadata}
    for name in given:
        refuse_unknown(name, known, section)
    return {name: _checked(full(section, name), known[name], value) for name, value in given.items()}


def refuse_unknown(
    name: str, known: Iterable[str], section: str, of: str = "", also: Mapping[str, str] | None = None
) -> None:
    """Raise unless the key is known; `also` has other keys that could have been meant, by the name to compare with."""
    known = list(known)
    if name in known:
        return
    keys = {**(also or {}), **{one: full(section, one) for one in known}}
    meant = did_you_mean(name, keys, keys.__getitem__)
    takes = ", ".join(known) if known else "no settings"
    raise ConfigError(
        f"Unknown key {short(full(section, name), 200)}.{meant} {of or section or 'An experiment'} takes {takes}."
    )


def name_in(registry: Registry, key: str, value: Any) -> str:
    """Return the name of a part as the registry spells it, from its name or from the function or class itself."""
    if not isinstance(value, str) and not callable(value):
        raise ConfigError(f"{key} must be a text; got {shown(value)}.")
    try:
        return registry.spelling(value) if isinstance(value, str) else registry.name_of(value)
    except ValueError as wrong:
        raise ConfigError(f"{key}: {wrong}") from None


def full(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def number_like(name: str, default: Any, value: Any) -> Any:
    """Return the value if its type is that of the default; a whole number stands for a float."""
    if isinstance(value, int) and not isinstance(default, float) and abs(value) > LARGEST_INT:
        raise ConfigError(f"{name} must be of at most 63 bits; got {shown(value)}.")
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
    """Return a value for a message; true and false as TOML writes them.

    >>> shown(True), shown("krum"), shown(3)
    ('true', "'krum'", '3')
    """
    return str(value).lower() if isinstance(value, bool) else quoted(value)


def _checked(name: str, one: Field[Any], value: Any) -> Any:
    default = None if one.default is MISSING else one.default
    if one.metadata["registry"] is not None:
        return name_in(one.metadata["registry"], name, value)
    if not one.metadata["any_type"]:
        value = number_like(name, default, value)
    choices, least, most = (one.metadata[limit] for limit in ("one_of", "least", "most"))
    if choices and value not in choices:
        meant = did_you_mean(str(value), choices)
        raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {shown(value)}.{meant}")
    too_small, too_large = least is not None and value < least, most is not None and value > most
    if too_small or too_large:
        limits = f"from {least} up" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} must be {limits}; got {shown(value)}.")
    return value
