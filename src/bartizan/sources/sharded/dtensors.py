"""DTensors: the columns that this rank holds, and results that are sharded alike."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from bartizan.updates.layout import Unreadable


def is_dtensor(value: Any) -> TypeGuard[Any]:
    """Whether `value` is a DTensor; imports nothing, since its owner has imported its module already."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def dtensors_of(shard: Any) -> list[Any]:
    """The shard itself if it is one DTensor, or those among its updates, if at least half of these are DTensors."""
    updates = shard if isinstance(shard, (list, tuple)) else [shard]
    return at_least_half([each for each in updates if is_dtensor(each)], updates)


def at_least_half(found: list[Any], updates: Sequence[Any]) -> list[Any]:
    """What was found among the updates, unless it is less than half: one client must not decide how all are read."""
    return found if 2 * len(found) >= len(updates) else []


def axis_of(tensor: Any) -> int | None:
    """The axis of the mesh over which the coordinates are sharded, if all others hold copies."""
    from torch.distributed.tensor import Shard

    coordinates = tensor.ndim - 1
    sharded = [type(how) is Shard and how.dim == coordinates for how in tensor.placements]
    copied = [how.is_replicate() for how in tensor.placements]
    return sharded.index(True) if sum(sharded) == 1 and sum(copied) == len(copied) - 1 else None


@dataclass(frozen=True)
class ColumnRange:
    """The columns of one rank: the first one, the number of all, and the axis of the mesh that shards them."""

    first: int
    dim: int
    mesh: Any
    axis: int

    @classmethod
    def of(cls, tensor: Any, ndim: int = 1) -> ColumnRange:
        """This rank's columns of a DTensor, whose last dimension must be sharded over one axis of the mesh only."""
        if not is_dtensor(tensor):
            raise TypeError(f"wanted a DTensor, as others sent; got {type(tensor).__name__}")
        if tensor.ndim != ndim:
            wanted = "a flat DTensor, (p,)" if ndim == 1 else "a DTensor with a row a client, (M, p)"
            raise ValueError(
                f"Wanted {wanted}; got one of shape {tuple(tensor.shape)}. Flatten updates before they are sharded, or "
                f"pass a state dict a client, {{'update': tensor}}."
            )
        mesh, last, axis = tensor.device_mesh, tensor.ndim - 1, axis_of(tensor)
        if axis is None:
            wanted = ", ".join(["Replicate()"] * (mesh.ndim - 1) + [f"Shard({last})"])
            raise ValueError(
                f"Wanted a DTensor whose coordinates are sharded over one axis of its mesh and copied over the others, "
                f"[{wanted}]; got {list(tensor.placements)}. Call .redistribute(placements=[{wanted}]), or pass the "
                f"local part and its offset."
            )
        p, each = tensor.shape[last], -(-tensor.shape[last] // mesh.size(axis))
        first = min(p, mesh.get_local_rank(axis) * each)
        width = min(p, first + each) - first
        came = tensor.to_local().shape[last]
        if came != width:
            raise ValueError(f"Wanted {width} of the DTensor's {p} columns on this rank, its even share; got {came}.")
        return cls(first, p, mesh, axis)

    def to_dtensor(self, update: Any) -> Any:
        """The whole update as a DTensor of which this rank holds these columns."""
        import torch
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placements = [Shard(0) if axis == self.axis else Replicate() for axis in range(self.mesh.ndim)]
        shape = torch.Size([self.dim])
        return DTensor.from_local(update, self.mesh, placements, run_check=False, shape=shape, stride=(1,))

    def __str__(self) -> str:
        return f"columns from {self.first} on of {self.dim}, sharded over axis {self.axis} of {self.mesh}"


def local_parts(updates: Any) -> tuple[Any, ColumnRange]:
    """The local part of an (M, p) DTensor, or those of one flat DTensor a client.

    A client whose DTensor is sharded otherwise than most becomes `Unreadable`.
    """
    if is_dtensor(updates):
        return updates.to_local(), ColumnRange.of(updates, ndim=2)
    ranges: list[ColumnRange | str] = []
    for update in updates:
        try:
            ranges.append(ColumnRange.of(update))
        except (TypeError, ValueError) as misfit:
            ranges.append(str(misfit))
    counts = Counter(each for each in ranges if isinstance(each, ColumnRange))
    if not counts:
        raise ValueError(next(reason for update, reason in zip(updates, ranges, strict=True) if is_dtensor(update)))
    usual = counts.most_common(1)[0][0]
    held = []
    for update, own in zip(updates, ranges, strict=True):
        reason = own if isinstance(own, str) else f"wanted {usual}; got {own}"
        held.append(update.to_local() if own == usual else Unreadable(reason))
    return held, usual


def local_part(name: str, point: Any, columns: ColumnRange | None) -> Any:
    """This rank's part of a reference or a trusted update."""
    if not is_dtensor(point):
        return point
    if columns is None:
        raise ValueError(f"{name} is a DTensor, and the shard is none: pass these columns of it, .to_local().")
    own = ColumnRange.of(point)
    if own != columns:
        raise ValueError(f"{name} must be sharded as the clients' updates are: wanted {columns}; got {own}.")
    return point.to_local()
