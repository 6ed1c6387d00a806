"""One rank's columns of all updates, at their place among all coordinates."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bartizan.sources.sharded.dtensors import PlacedUpdate, Placements, local_point, local_updates
from bartizan.updates import Updates, parse_updates
from bartizan.updates.columns import Row, stack
from bartizan.updates.files import open_paths
from bartizan.updates.layout import FLOATS, Entry, Layout, Path, dtype_name, is_array, is_tensor, leaves_of
from bartizan.updates.parse import as_list

ZERO, OWN = "zero", "update"  # keys of the added column and of the client's update on a rank without columns


@dataclass(frozen=True)
class Shard:
    """The columns of this rank, as updates of their own."""

    clients: Updates
    first: int | None
    placements: Placements | None = None  # of DTensors
    is_empty: bool = False
    """Whether this rank has no columns: its clients then have one column of zeros, which changes no sum."""

    @classmethod
    def of(
        cls,
        shard: Any,
        placed: Sequence[PlacedUpdate],
        offset: int | None,
        points: dict[str, Any],
        counts_replicated: bool = True,
    ) -> Shard:
        """Return the columns of this rank; of replicated DTensors only one rank counts the numbers."""
        if not is_array(shard):
            shard = as_list(open_paths(shard))
        shard, placements = local_updates(shard, placed, counts_replicated)
        if offset is not None:
            if placements is not None:
                raise ValueError("DTensors have no offset, since their mesh tells it: leave offset out.")
            if isinstance(offset, bool) or int(offset) != offset or offset < 0:
                raise ValueError(
                    f"offset must be the coordinate of the shard's first column, 0 or more; got {offset!r}."
                )
            offset = int(offset)
        points = {name: local_point(name, point, placements, counts_replicated) for name, point in points.items()}
        if is_empty := has_no_columns(shard):
            shard = list(map(with_zero, shard))
            points = {name: point if point is None else with_zero(point) for name, point in points.items()}
        return cls(parse_updates(shard, **points), offset, placements, is_empty)

    @property
    def width(self) -> int:
        return 0 if self.is_empty else self.clients.layout.dim

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the clients' floating-point entries; none if they sent only integers, or nothing."""
        own = [entry for entry in self.clients.layout.float_entries if not (self.is_empty and entry.path[0] == ZERO)]
        return tuple(sorted({entry.dtype for entry in own}))

    @property
    def device(self) -> str:
        return self.clients.layout.entries[0].device


def with_zero(update: Any) -> Any:
    """Return an update without columns beside one column of zeros, of its own dtype and device if it has arrays."""
    leaves = list((_leaves(update) or {}).values())
    for leaf in leaves:
        if dtype_name(leaf) in FLOATS:
            return {ZERO: zeros_like(leaf, 1), OWN: update}
    if leaves and is_tensor(leaves[0]):
        return {ZERO: leaves[0].new_zeros(1, dtype=sys.modules["torch"].float32), OWN: update}
    return {ZERO: np.zeros(1, np.float32), OWN: update}


def has_no_columns(shard: Any) -> bool:
    """Return whether most of the readable updates have no floating-point columns."""
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


def padded_to_block(clients: Updates, first: int, multiple_of: int) -> Updates:
    """Return columns that begin at coordinate `first`, after zeros from the multiple below on.

    The rest of a block that a sketch maps as a whole is another rank's: the sketches of both parts add up to that of
    the block.
    """
    lead = first % multiple_of
    if not lead:
        return replace(clients, first=first)
    arrays, own = clients.rows.arrays, clients.layout.float_entries[0]
    zeros = zeros_like(arrays[0][0], lead)
    layout = Layout((Entry(("lead",), (lead,), own.dtype, own.device), *clients.layout.entries))
    return replace(
        clients,
        layout=layout,
        rows=stack([Row((zeros, *arrays[m]), ()) for m in range(len(clients))], layout),
        reference=_padded(clients.reference, lead),
        trusted=_padded(clients.trusted, lead),
        first=first - lead,
    )


def _padded(row: Row | None, lead: int) -> Row | None:
    return None if row is None else Row((zeros_like(row.floats[0], lead), *row.floats), row.integers)


def zeros_like(like: Any, count: int) -> Any:
    return like.new_zeros(count) if is_tensor(like) else np.zeros(count, like.dtype.newbyteorder("="))


def _leaves(update: Any) -> dict[Path, Any] | None:
    """The arrays of an update; None if it can't be read, for which `parse_updates` gives the reason."""
    try:
        leaves = leaves_of(update)
        Layout.of(leaves)
    except Exception:
        return None
    return leaves
