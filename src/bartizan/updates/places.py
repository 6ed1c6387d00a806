"""A place in a store that was found by listing it, not by its address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StoredPlace:
    """A filesystem of fsspec and a path there.

    Whoever chose the object's name chose the path: it is never parsed as an address, in which ``::`` and ``?`` mean
    something.
    """

    fs: Any
    path: str
    problem: str = ""
    """Why the store itself would take the path for another one; empty if it would not."""
    timeout: float | None = None
    """Seconds that a request may take, if others than those given with `open_update`."""

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(self.path))
