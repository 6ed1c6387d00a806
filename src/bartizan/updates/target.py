"""The caller's own arrays that a result is written into (`out=`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from bartizan._util.types import Array
from bartizan.updates.columns import Row
from bartizan.updates.layout import Layout, as_numpy, leaves_of
from bartizan.updates.pages import span


@dataclass(frozen=True)
class Target:
    """The caller's container, like one client's update, and its arrays in the order of the layout."""

    container: Any
    row: Row

    @classmethod
    def of(cls, out: Any, layout: Layout, updates: Iterable[Row]) -> Target:
        """Check that a result fits into `out`, and that writing it there changes no client's update."""
        try:
            leaves = leaves_of(out)
            misfit = layout.misfit(Layout.of(leaves)) if leaves else "it is empty"
        except TypeError as unfit:
            raise ValueError(f"out must be like a client's update: {unfit}.") from None
        if misfit:
            raise ValueError(f"out must have the names, shapes and dtypes of a client's update: {misfit}.")
        arrays = {path: as_numpy(leaf) for path, leaf in leaves.items()}
        for entry in layout.entries:
            if not arrays[entry.path].flags.writeable:
                raise ValueError(f"out must be writable, but {entry} is not. Map files with mode 'r+', or copy it.")
        floats, integers = ([e for e in layout.entries if e.is_float is kind] for kind in (True, False))
        row = Row(tuple(arrays[e.path] for e in floats), tuple(arrays[e.path] for e in integers))
        if _overlaps(row, updates):
            raise ValueError("out must not be a client's update: those are never changed. Pass other arrays.")
        return cls(out, row)

    def filled(self, floats: Iterable[Array], counters: Iterable[Array]) -> Any:
        """The container, with these numbers and integers written into its arrays."""
        for own, array in zip(self.row.floats, floats, strict=True):
            if own is not array:
                own[...] = array.reshape(own.shape)
        for own, counts in zip(self.row.integers, counters, strict=True):
            own[...] = counts.reshape(own.shape)
        return self.container


def _overlaps(row: Row, updates: Iterable[Row]) -> bool:
    """Whether any array of the updates may share memory with any of the row's, whatever their names."""
    own = sorted(span(array) for array in row.floats + row.integers if array.size)
    starts = [start for start, _ in own]
    ends = list(accumulate((stop for _, stop in own), max))  # of those that begin so far
    for other in updates:
        for array in other.floats + other.integers:
            low, high = span(array)
            before = bisect_left(starts, high)
            if low < high and before and ends[before - 1] > low:
                return True
    return False
