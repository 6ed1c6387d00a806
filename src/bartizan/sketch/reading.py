"""What a sketch keeps of each update once it was read: rows to be taken one by one, and put together later."""

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
class Reading:
    """One row an update; a trusted update's is the last, and `dots` are the exact inner products with it.

    A row depends on the update, its layout and the seed, never on the other rows: a round that sketches updates as
    they arrive keeps the same numbers, to the bit, as one call that has them all.
    """

    sketches: Floats
    squared_norms: Floats
    dots: Floats | None = None

    @classmethod
    def empty(cls, rows: UpdateRows, k: int, *, trusted: bool) -> Reading:
        """Zeros where these rows are."""
        return cls(*rows.blank_reading(k, trusted))

    @classmethod
    def stacked(cls, readings: Sequence[Reading]) -> Reading:
        """The clients of all readings, in this order, and the last one's trusted update."""
        if len(readings) == 1:
            return readings[0]
        clients = slice(None) if readings[-1].dots is None else slice(-1)
        return cls.of_parts([*(reading.part(clients) for reading in readings[:-1]), readings[-1]])

    @classmethod
    def of_parts(cls, parts: Sequence[Reading]) -> Reading:
        """Rows one below the other, as they are."""
        return cls(
            joined([part.sketches for part in parts]),
            joined([part.squared_norms for part in parts]),
            None if parts[-1].dots is None else joined([part.dots for part in parts]),
        )

    def part(self, rows: slice) -> Reading:
        return Reading(self.sketches[rows], self.squared_norms[rows], None if self.dots is None else self.dots[rows])


def joined(parts: Sequence[Any]) -> Any:
    if is_tensor(parts[0]):
        return sys.modules["torch"].cat(list(parts))
    return np.concatenate(parts)
