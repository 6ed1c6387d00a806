"""Mutations of JSON or TOML values and of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fuzz.draw import Draw
from fuzz.surfaces import RefusedError


def _deep() -> Any:
    node: Any = []
    for _ in range(300):
        node = [node]
    return node


JUNK: list[Callable[[], Any]] = [
    *(lambda: None, lambda: True, lambda: 0, lambda: -1, lambda: 1, lambda: 2**31, lambda: 2**63, lambda: 10**400),
    *(lambda: 0.5, lambda: -0.0, lambda: 1e308, lambda: float("nan"), lambda: float("inf"), lambda: "", lambda: "x"),
    *(lambda: "\x00\x7f\u202e", lambda: "y" * 5000, lambda: [], lambda: [[]], lambda: [None], lambda: [1, "1"]),
    *(dict, lambda: {"": {}}, lambda: {"name": None}, lambda: [0.1] * 100, lambda: "nan", lambda: "1e400", _deep),
    *(lambda: "nnm >> krum", lambda: "krum", lambda: "../x", lambda: [1, 2, 3], lambda: 100_001, lambda: "\ud800"),
]


def mutated_value(value: Any, draw: Draw) -> Any:
    """Return the value with one to three of its parts replaced, removed, doubled or renamed."""
    for _ in range(1 + draw.below(3)):
        value = _mutated_once(value, draw)
    return value


def mutated_json(value: Any, draw: Draw) -> bytes:
    """Return a mutated value as JSON; one that JSON can't express is no case."""
    try:
        return json.dumps(mutated_value(value, draw)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        raise RefusedError from None


def _mutated_once(value: Any, draw: Draw) -> Any:
    if isinstance(value, dict) and value and not draw.chance(6):
        key = draw.pick(list(value))
        how = draw.below(8)
        if how == 7:
            return {name: child for name, child in value.items() if name != key}
        if how == 6:
            return {**value, draw.pick(["", "extra", "kind", "name", f"{key}x"]): draw.pick(JUNK)()}
        return {**value, key: _mutated_once(value[key], draw)}
    if isinstance(value, list) and value and not draw.chance(4):
        at, how = draw.below(len(value)), draw.below(8)
        if how == 7:
            return value[:at] + value[at + 1 :]
        if how == 6:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], _mutated_once(value[at], draw), *value[at + 1 :]]
    return draw.pick(JUNK)()


def mutated_bytes(data: bytes, draw: Draw) -> bytes:
    """Return the bytes with a few flipped, removed, doubled or inserted."""
    made = bytearray(data)
    for _ in range(1 + draw.below(4)):
        if not made:
            break
        at, how = (256 * draw.byte() + draw.byte()) % len(made), draw.below(8)
        if how < 3:
            made[at] = draw.byte()
        elif how == 3:
            made[at] ^= 1 << draw.below(8)
        elif how == 4:
            del made[at:]
        elif how == 5:
            del made[at : at + 1 + draw.below(16)]
        elif how == 6:
            made[at:at] = made[max(0, at - 1 - draw.below(32)) : at]
        else:
            made[at : at + 4] = draw.pick(
                [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"9999", b"(", b"nan "]
            )
    return bytes(made)
