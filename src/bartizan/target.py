"""Where a result is written, if the caller has a place for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan.columns import Row
from bartizan.layout import Layout, as_numpy, leaves_of
from bartizan.types import Array


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
        row = Row.of(arrays, layout)
        theirs = [(array, own) for other in updates for array, own in zip(other.arrays(), row.arrays(), strict=True)]
        if any(np.may_share_memory(array, own) for array, own in theirs):
            raise ValueError("out must not be a client's update: updates are never changed. Pass an array of its own.")
        return cls(out, row)

    def filled(self, counters: Iterable[Array]) -> Any:
        """The container, once its numbers are there, with its integers."""
        for own, counts in zip(self.row.integers, counters, strict=True):
            own[...] = counts.reshape(own.shape)
        return self.container
