"""A rank that holds no columns: its clients' containers with one column of zeros beside them, which changes no sum."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan.layout import FLOATS, dtype_name, is_array, is_tensor, leaves_of
from bartizan.updates import Updates

ZERO, OWN = "zero", "update"  # what takes part of a client, and what it sent


@dataclass(frozen=True)
class Empty:
    """What was sent, and the points; who sent columns where most sent none is quarantined as of another layout."""

    sent: list[Any]
    points: dict[str, Any]

    @cached_property
    def _leaf(self) -> Any:
        """Some array of a client without columns, one of floating-point numbers if there is any; None if none is."""
        found = None
        for update in self.sent:
            leaves = _leaves(update)
            if leaves and not any(map(_n_columns, leaves)):
                found = next(filter(_is_float, leaves), leaves[0] if found is None else found)
                if _is_float(found):
                    break
        return found

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the clients' floating-point arrays; none where they sent integers only, or nothing."""
        if self._leaf is None or not _is_float(self._leaf):
            return ()
        entries = [e for e in self.clients().columns.entries if e.path[0] == OWN]
        return tuple(sorted({entry.dtype for entry in entries}))

    def clients(self, dtype: str = "float32") -> Updates:
        """As updates of one column; its dtype is the clients', or this one where they have none."""
        zero = self._zero(dtype)

        def beside_zero(update: Any) -> Any:
            return {ZERO: zero, OWN: update}

        points: dict[str, Any] = {n: None if each is None else beside_zero(each) for n, each in self.points.items()}
        return Updates.of(list(map(beside_zero, self.sent)), **points)

    def _zero(self, dtype: str) -> Any:
        if self._leaf is not None and _is_float(self._leaf):
            return zeros_like(self._leaf, 1)
        if is_tensor(self._leaf):
            return self._leaf.new_zeros(1, dtype=getattr(sys.modules["torch"], dtype))
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
            some = any(map(_n_columns, leaves))
            n_with, n_without = n_with + some, n_without + (not some)
        if 2 * max(n_with, n_without) > len(shard):
            break
    return n_without > n_with


def zeros_like(like: Any, count: int) -> Any:
    return like.new_zeros(count) if is_tensor(like) else np.zeros(count, like.dtype.newbyteorder("="))


def _leaves(update: Any) -> list[Any] | None:
    """The arrays of an update; None if it can't be read."""
    try:
        leaves = list(leaves_of(update).values())
        for leaf in leaves:
            dtype_name(leaf)
    except Exception:  # a container may do anything when it is looked at: Updates says what
        return None
    return leaves


def _is_float(leaf: Any) -> bool:
    return dtype_name(leaf) in FLOATS


def _n_columns(leaf: Any) -> int:
    return int(np.prod(leaf.shape)) if _is_float(leaf) else 0
