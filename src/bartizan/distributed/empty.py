"""A rank that holds no columns: its clients' containers with one column of zeros beside them, which changes no sum."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan.updates import Updates, parse_updates
from bartizan.updates.layout import FLOATS, Layout, Path, dtype_name, is_array, is_tensor, leaves_of

ZERO, OWN = "zero", "update"  # what takes part of a client, and what it sent


@dataclass(frozen=True)
class Empty:
    """What was sent, and the points; who sent columns where most sent none is quarantined as of another layout."""

    sent: list[Any]
    points: dict[str, Any]

    @cached_property
    def _usual(self) -> tuple[Layout, list[Any]]:
        """What most clients without columns sent, and the arrays of one: no odd one's device or dtype counts."""
        seen = [(Layout.of(leaves), leaves) for leaves in map(_leaves, self.sent) if leaves is not None]
        usual = Layout.most_common([layout for layout, _ in seen if not layout.dim])
        return usual, list(next(leaves for layout, leaves in seen if layout == usual).values())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the clients' floating-point arrays; none where they sent integers only, or nothing."""
        return tuple(sorted({entry.dtype for entry in self._usual[0].entries if entry.is_float}))

    def clients(self, dtype: str = "float32") -> Updates:
        """As updates of one column; its dtype is the clients', or this one where they have none."""
        zero = self._zero(dtype)

        def beside_zero(update: Any) -> Any:
            return {ZERO: zero, OWN: update}

        points: dict[str, Any] = {n: None if each is None else beside_zero(each) for n, each in self.points.items()}
        return parse_updates(list(map(beside_zero, self.sent)), **points)

    def _zero(self, dtype: str) -> Any:
        leaves = self._usual[1]
        for leaf in leaves:
            if dtype_name(leaf) in FLOATS:
                return zeros_like(leaf, 1)
        if leaves and is_tensor(leaves[0]):
            return leaves[0].new_zeros(1, dtype=getattr(sys.modules["torch"], dtype))
        return np.zeros(1, np.float64 if dtype == "float64" else np.float32)

    def built(self, update: Any) -> Any:
        return update[OWN]


def has_no_columns(shard: Any) -> bool:
    """As most of the clients have it whose updates can be read."""
    if is_array(shard):
        return shard.ndim > 1 and len(shard) > 0 and 0 in shard.shape[1:]
    n_with = n_without = 0
    for update in shard:
        leaves = _leaves(update)
        if leaves is not None:
            some = any(0 not in leaf.shape and dtype_name(leaf) in FLOATS for leaf in leaves.values())
            n_with, n_without = n_with + some, n_without + (not some)
        if 2 * max(n_with, n_without) > len(shard):
            break
    return n_without > n_with


def zeros_like(like: Any, count: int) -> Any:
    return like.new_zeros(count) if is_tensor(like) else np.zeros(count, like.dtype.newbyteorder("="))


def _leaves(update: Any) -> dict[Path, Any] | None:
    """The arrays of an update; None if it can't be read."""
    try:
        leaves = leaves_of(update)
        Layout.of(leaves)
    except Exception:  # a container may do anything when it is looked at: Updates says what
        return None
    return leaves
