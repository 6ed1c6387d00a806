"""DTensors in updates: the numbers that this rank counts, and results that are placed alike."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from bartizan.updates.layout import (
    FLOATS,
    Path,
    Unreadable,
    dtype_name,
    leaves_of,
    plain_and_leaves,
    rebuild,
    shown_path,
)
from bartizan.updates.parse import reason_of

OTHERWISE = "its DTensors are placed otherwise than those of most clients, or have other names or shapes"


@dataclass(frozen=True)
class Placements:
    """The mesh of the DTensors of one update, its axis that shards them, and the placements and shape of each.

    Each is sharded over that axis or replicated over it, and replicated over all other axes. A replicated DTensor is
    counted once, by the first rank of the axis: its numbers must not have more weight in distances than the others'.
    """

    mesh: Any
    axis: int
    entries: frozenset[tuple[Path, tuple[Any, ...], tuple[int, ...]]]
    replicated: frozenset[Path] = field(default=frozenset(), compare=False)
    """The replicated entries of floating-point numbers."""

    @classmethod
    def of(cls, leaves: Mapping[Path, Any]) -> Placements:
        from torch.distributed.tensor import Shard

        placed = {path: leaf for path, leaf in leaves.items() if is_dtensor(leaf)}
        if not placed:
            raise TypeError("wanted DTensors, as others sent")
        meshes, axes, replicated = {leaf.device_mesh for leaf in placed.values()}, set(), set()
        if len(meshes) > 1:
            raise ValueError("its DTensors are on several meshes; redistribute them to one")
        for path, leaf in leaves.items():
            is_float = dtype_name(leaf, path) in FLOATS
            if path not in placed:
                if is_float:
                    raise TypeError(
                        f"entry {shown_path(path)!r} is no DTensor, as others of the state dict are: make it one, "
                        "DTensor.from_local(entry, mesh, [Replicate()]) where every rank has all of it"
                    )
                continue
            own = {axis for axis, how in enumerate(leaf.placements) if type(how) is Shard}
            if len(own) > 1 or sum(how.is_replicate() for how in leaf.placements) + len(own) < len(leaf.placements):
                where = f"entry {shown_path(path)!r}" if path else "the update"
                raise ValueError(
                    f"{where} has placements {list(leaf.placements)}: wanted at most one Shard, and Replicate() over "
                    "the other axes; call .redistribute(placements=[...])"
                )
            axes |= own
            if is_float and not own:
                replicated.add(path)
        if len(axes) > 1:
            raise ValueError("its DTensors are sharded over several axes of the mesh; redistribute them to one axis")
        entries = frozenset((path, tuple(leaf.placements), tuple(leaf.shape)) for path, leaf in placed.items())
        return cls(meshes.pop(), min(axes, default=0), entries, frozenset(replicated))

    @classmethod
    def of_rows(cls, matrix: Any) -> Placements:
        """Return the placements of the rows of an (M, p) DTensor."""
        from torch.distributed.tensor import Replicate, Shard

        if matrix.ndim != 2:
            raise ValueError(
                f"Wanted a DTensor with one row per client, (M, p); got one of shape {tuple(matrix.shape)}. For other "
                "shapes pass a list with one DTensor per client."
            )
        sharded = [type(how) is Shard and how.dim == 1 for how in matrix.placements]
        if sum(sharded) != 1 or sum(how.is_replicate() for how in matrix.placements) != len(sharded) - 1:
            wanted = ", ".join(["Replicate()"] * (len(sharded) - 1) + ["Shard(1)"])
            raise ValueError(
                f"Wanted a DTensor whose coordinates are sharded over one axis of its mesh and copied over the others, "
                f"[{wanted}]; got {list(matrix.placements)}. Call .redistribute(placements=[{wanted}]), or pass the "
                f"local part and its offset."
            )
        placements = tuple(Shard(0) if one else Replicate() for one in sharded)
        return cls(matrix.device_mesh, sharded.index(True), frozenset({((), placements, (matrix.shape[1],))}))

    def local(self, update: Any, counts_replicated: bool) -> Any:
        """Return this rank's part of an update; replicated floats are empty unless this rank counts them."""

        def part(path: Path, leaf: Any) -> Any:
            own = leaf.to_local() if is_dtensor(leaf) else leaf
            return own.reshape(-1)[:0] if path in self.replicated and not counts_replicated else own

        return rebuild(update, part)

    def counted(self, update: Any) -> dict[Path, Any]:
        """Return the replicated floats of a result, in host memory, on the rank that counts them."""
        leaves = leaves_of(update)
        return {path: leaves[path].cpu() for path in self.replicated}

    def completed(self, update: Any, counted: Mapping[Path, Any]) -> Any:
        """Return the result in DTensors, with the replicated floats that another rank counted."""
        import torch
        from torch.distributed.tensor import DTensor

        about = {path: (placements, shape) for path, placements, shape in self.entries}

        def placed(path: Path, leaf: Any) -> Any:
            if path not in about:
                return leaf
            placements, shape = about[path]
            own, whole = counted[path].to(leaf.device) if path in counted else leaf, torch.empty(shape, device="meta")
            return DTensor.from_local(
                own, self.mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
            )

        return rebuild(update, placed)


@dataclass(frozen=True)
class PlacedUpdate:
    """One client's update in plain containers, and how its DTensors are placed, or why it can't take part."""

    plain: Any
    placements: Placements | str
    meshes: tuple[Any, ...] = ()
    """The meshes of its DTensors; empty if it holds none."""

    @classmethod
    def of(cls, update: Any) -> PlacedUpdate:
        meshes: tuple[Any, ...] = ()
        try:
            plain, leaves = plain_and_leaves(update)
            meshes = tuple(leaf.device_mesh for leaf in leaves.values() if is_dtensor(leaf))
            return cls(plain, Placements.of(leaves), meshes)
        except Exception as error:  # a client's container may raise anything
            return cls(None, reason_of(error), meshes)


def is_dtensor(value: Any) -> TypeGuard[Any]:
    """Return whether `value` is a DTensor; import nothing, since its owner has imported its module already."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def placed_updates(shard: Any) -> list[PlacedUpdate]:
    """Return the clients' updates if at least half hold DTensors: one client must not decide how all are read."""
    if not isinstance(shard, (list, tuple)) or "torch.distributed.tensor" not in sys.modules:
        return []
    placed = [PlacedUpdate.of(update) for update in shard]
    return placed if placed and 2 * sum(bool(one.meshes) for one in placed) >= len(placed) else []


def groups_of(shard: Any, placed: Sequence[PlacedUpdate]) -> list[Any]:
    """Return the groups that hold DTensors, one per axis of their mesh, the sharded axis first.

    For anything else it is the group of all ranks. Errors are to be raised on all ranks of a mesh, so that it is found
    for DTensors of wrong placements too.
    """
    found: list[tuple[Any, int]] = []
    if is_dtensor(shard):
        found = [(shard.device_mesh, next((at for at, how in enumerate(shard.placements) if how.is_shard()), 0))]
    elif placed:
        known = [one.placements for one in placed if isinstance(one.placements, Placements)]
        found = [(own.mesh, own.axis) for own in known] or [(mesh, 0) for one in placed for mesh in one.meshes]
    if not found:
        return [None]
    (mesh, first), _ = Counter(found).most_common(1)[0]
    return [mesh.get_group(axis) for axis in sorted(range(mesh.ndim), key=lambda axis: axis != first)]


def local_updates(shard: Any, placed: Sequence[PlacedUpdate], counts_replicated: bool) -> tuple[Any, Placements | None]:
    """Return this rank's parts of all updates, and how the DTensors of most are placed; None if there are none.

    A client whose DTensors are placed otherwise becomes `Unreadable`.
    """
    if is_dtensor(shard):
        return shard.to_local(), Placements.of_rows(shard)
    if not placed:
        return shard, None
    counts = Counter(one.placements for one in placed if isinstance(one.placements, Placements))
    if not counts:
        reason = next(one.placements for one in placed if one.meshes)
        raise ValueError(f"No client's DTensors can be read: {reason}.")
    usual = counts.most_common(1)[0][0]
    parts = [
        usual.local(one.plain, counts_replicated)
        if one.placements == usual
        else Unreadable(one.placements if isinstance(one.placements, str) else OTHERWISE)
        for one in placed
    ]
    return parts, usual


def local_point(name: str, point: Any, placements: Placements | None, counts_replicated: bool) -> Any:
    """Return this rank's part of a reference or a trusted update."""
    if point is None or "torch.distributed.tensor" not in sys.modules:
        return point
    own = PlacedUpdate.of(point)
    if placements is None:
        if own.meshes:
            raise ValueError(f"{name} holds DTensors, and the shard holds none: pass these columns of it, .to_local().")
        return point
    if own.placements == placements:
        return placements.local(own.plain, counts_replicated)
    if not (own.meshes or placements.replicated):
        return point
    more = f": {own.placements}" if isinstance(own.placements, str) else ""
    raise ValueError(f"{name} must hold DTensors that are placed as the clients' are{more}.")
