"""What ranks compare of a rule or a sketch: its settings, and not where in memory it lies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True, repr=False)
class Named:
    """A value as people read it, and a digest by which ranks compare it."""

    shown: str = field(compare=False)
    digest: bytes

    @classmethod
    def of(cls, value: Any) -> Named:
        return cls(repr(value), hashlib.sha256(described(value).encode()).digest())

    def __repr__(self) -> str:
        return self.shown


def described(value: Any) -> str:
    """As repr, but the same in every process: classes, functions and their settings by name, arrays by their bytes.

    >>> class Own:
    ...     def __init__(self, limit):
    ...         self.limit = limit
    >>> described(Own(2)) == described(Own(2)) != described(Own(3))
    True
    """
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array({value.dtype}, {value.shape}, {digest})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{described(key)}: {described(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(described, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({', '.join(sorted(map(described, value)))})"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value)
    if is_dataclass(value):
        settings = {each.name: getattr(value, each.name) for each in fields(value)}
    elif kind.__repr__ == object.__repr__:  # type: ignore[comparison-overlap]
        # What a rank has computed once is no setting: only the one that decides may have it.
        own = getattr(value, "__dict__", {})
        settings = {n: each for n, each in own.items() if not isinstance(getattr(kind, n, None), cached_property)}
    else:
        return repr(value)
    return f"{kind.__module__}.{kind.__qualname__}({described(settings)})"
