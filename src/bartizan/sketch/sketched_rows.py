"""Sketches and exact squared norms of updates, one row a client, computed together or one by one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.updates import UpdateRows
from bartizan.updates.layout import is_tensor


@dataclass(frozen=True)
class SketchedRows:
    """Sketches of updates, one a row, a trusted update last; `trusted_dots` are the exact inner products with it.

    A row depends on the update, its layout and the seed, never on the other rows: a round that sketches updates as
    they arrive keeps the same numbers, to the bit, as one call that has them all.
    """

    sketches: Floats
    squared_norms: Floats
    trusted_dots: Floats | None = None

    @classmethod
    def empty(cls, rows: UpdateRows, k: int, *, trusted: bool) -> SketchedRows:
        """Zeros on the device of these rows, for kernels to add to, in one allocation."""
        M = len(rows)
        flat = rows.zeros(M * (k + 1 + trusted))
        return cls(flat[: M * k].reshape(M, k), flat[M * k : M * (k + 1)], flat[M * (k + 1) :] if trusted else None)

    @classmethod
    def stacked(cls, parts: Sequence[SketchedRows]) -> SketchedRows:
        """The clients of all parts, in this order, and the last one's trusted update."""
        if len(parts) == 1:
            return parts[0]
        clients = slice(None) if parts[-1].trusted_dots is None else slice(-1)
        return cls.concatenated([*(part.part(clients) for part in parts[:-1]), parts[-1]])

    @classmethod
    def concatenated(cls, parts: Sequence[SketchedRows]) -> SketchedRows:
        """The rows of all parts, in order."""
        return cls(
            joined([part.sketches for part in parts]),
            joined([part.squared_norms for part in parts]),
            None if parts[-1].trusted_dots is None else joined([part.trusted_dots for part in parts]),
        )

    def part(self, rows: slice) -> SketchedRows:
        return SketchedRows(
            self.sketches[rows],
            self.squared_norms[rows],
            None if self.trusted_dots is None else self.trusted_dots[rows],
        )


def joined(parts: Sequence[Any]) -> Any:
    if is_tensor(parts[0]):
        return sys.modules["torch"].cat(list(parts))
    return np.concatenate(parts)
