"""One rank's columns of all updates, at their place among all coordinates."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bartizan.sources.sharded.dtensors import ColumnRange, axis_of, dtensors_of, is_dtensor, local_part, local_parts
from bartizan.sources.sharded.states import Placements, local_state, local_states, placements_of, states_of
from bartizan.updates import Updates, parse_updates
from bartizan.updates.columns import Row, stack
from bartizan.updates.files import open_paths
from bartizan.updates.layout import FLOATS, Entry, Layout, Path, dtype_name, is_array, is_tensor, leaves_of
from bartizan.updates.parse import as_list

ZERO, OWN = "zero", "update"  # keys of the added column and of the client's update in an empty shard


@dataclass(frozen=True)
class EmptyShard:
    """The updates of a rank without columns, each beside one column of zeros, which changes no sum.

    A client that sent columns where most sent none is quarantined for its layout.
    """

    sent: list[Any]
    points: dict[str, Any]

    @cached_property
    def _usual(self) -> tuple[Layout, list[Any]]:
        """The layout of most clients without columns, and the arrays of one of them."""
        parsed = [(Layout.of(leaves), leaves) for leaves in map(_leaves, self.sent) if leaves is not None]
        usual = Layout.most_common([layout for layout, _ in parsed if not layout.dim])
        return usual, list(next(leaves for layout, leaves in parsed if layout == usual).values())

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the clients' floating-point arrays; none where they sent only integers, or nothing."""
        return tuple(sorted({entry.dtype for entry in self._usual[0].entries if entry.is_float}))

    def clients(self, dtype: str = "float32") -> Updates:
        """The updates with the added column, in the clients' dtype, or in this one where they have none."""
        zero = self._zero(dtype)
        points: dict[str, Any] = {
            name: None if point is None else {ZERO: zero, OWN: point} for name, point in self.points.items()
        }
        return parse_updates([{ZERO: zero, OWN: update} for update in self.sent], **points)

    def _zero(self, dtype: str) -> Any:
        leaves = self._usual[1]
        for leaf in leaves:
            if dtype_name(leaf) in FLOATS:
                return zeros_like(leaf, 1)
        if leaves and is_tensor(leaves[0]):
            return leaves[0].new_zeros(1, dtype=getattr(sys.modules["torch"], dtype))
        return np.zeros(1, np.float64 if dtype == "float64" else np.float32)


@dataclass(frozen=True)
class Shard:
    """The columns of this rank, as updates of their own."""

    clients: Updates
    first: int | None
    width: int
    columns: ColumnRange | None = None  # of a DTensor
    placements: Placements | None = None  # of state dicts of DTensors
    empty: EmptyShard | None = None

    @classmethod
    def of(cls, shard: Any, offset: int | None, reference: Any, trusted: Any, counts_replicated: bool = True) -> Shard:
        """The columns of this rank; of state dicts of DTensors only one rank counts what is replicated."""
        columns = placements = None
        given = {"reference": reference, "trusted": trusted}
        if not is_array(shard):
            shard = as_list(open_paths(shard))
        if dtensors_of(shard):
            if offset is not None:
                raise ValueError("A DTensor knows where its columns are: leave offset out.")
            shard, columns = local_parts(shard)
            offset = columns.first
        elif not is_array(shard) and states_of(shard):
            if offset is not None:
                raise ValueError("A state dict of DTensors has no offset: leave offset out.")
            shard, placements = local_states(shard, counts_replicated)
        if offset is not None and (isinstance(offset, bool) or int(offset) != offset or offset < 0):
            raise ValueError(f"offset must be the coordinate of the shard's first column, 0 or more; got {offset!r}.")
        offset = None if offset is None else int(offset)
        if placements is None:
            points = {name: local_part(name, point, columns) for name, point in given.items()}
        else:
            points = {n: local_state(n, point, placements, counts_replicated) for n, point in given.items()}
        if has_no_columns(shard):
            empty = EmptyShard(list(shard), points)
            return cls(empty.clients(), offset, 0, columns, placements, empty)
        clients = parse_updates(shard, **points)
        return cls(clients, offset, clients.layout.dim, columns, placements)

    @property
    def dtypes(self) -> tuple[str, ...]:
        if self.empty is not None:
            return self.empty.dtypes
        return tuple(sorted({entry.dtype for entry in self.clients.layout.float_entries}))

    @property
    def device(self) -> str:
        return self.clients.layout.entries[0].device

    def with_dtypes(self, dtypes: tuple[str, ...]) -> Shard:
        """The same shard; an empty one without floats takes the widest of these dtypes of the other ranks."""
        if self.empty is None or self.empty.dtypes:
            return self
        return replace(self, clients=self.empty.clients(max(dtypes, key=lambda name: name == "float64")))

    def result(self, update: Any) -> Any:
        """This rank's part of the result, in the container of a client's update."""
        update = update if self.empty is None else update[OWN]
        return update if self.columns is None else self.columns.to_dtensor(update)


def groups_of(shard: Any) -> list[Any]:
    """The groups that hold DTensors, one per axis of their mesh, the sharded axis first; all ranks of anything else."""
    meshes = [(each.device_mesh, axis_of(each)) for each in dtensors_of(shard)]
    if not meshes:
        states = states_of(shard)
        known = [placements_of(state)[1] for state in states]
        meshes = [(own.mesh, own.axis) for own in known if isinstance(own, Placements)]
        if states and not meshes:  # what is wrong with them is to be raised on all ranks of their mesh
            meshes = [(leaf.device_mesh, None) for leaf in leaves_of(states[0]).values() if is_dtensor(leaf)]
    if not meshes:
        return [None]
    (mesh, first), _ = Counter([each for each in meshes if each[1] is not None] or meshes).most_common(1)[0]
    axes = sorted(range(mesh.ndim), key=lambda axis: axis != first)
    return [mesh.get_group(axis) for axis in axes]


def has_no_columns(shard: Any) -> bool:
    """Whether most of the readable updates have no floating-point columns."""
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
    """Columns that begin at coordinate `first`, after zeros from the multiple below on.

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
