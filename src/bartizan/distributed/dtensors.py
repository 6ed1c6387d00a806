"""DTensors: which columns this rank holds, and a result that is sharded likewise."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeGuard


def is_dtensor(value: Any) -> TypeGuard[Any]:
    """Imports nothing: whoever has a DTensor has imported its module already."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def sample_of(shard: Any) -> Any:
    """What tells whether these are DTensors: all of them, or the first client's."""
    return shard[0] if isinstance(shard, (list, tuple)) and shard else shard


def groups_of(shard: Any) -> list[Any]:
    """The groups that hold a DTensor, one an axis of its mesh, that of the shards first; all ranks of anything else."""
    sample = sample_of(shard)
    if not is_dtensor(sample):
        return [None]
    axes = list(range(sample.device_mesh.ndim))
    first = _axis_of(sample)
    axes.sort(key=lambda axis: axis != first)
    return [sample.device_mesh.get_group(axis) for axis in axes]


def _axis_of(tensor: Any) -> int | None:
    """The axis of the mesh over which the coordinates are sharded, if all others hold copies."""
    from torch.distributed.tensor import Shard

    coordinates = tensor.ndim - 1
    sharded = [type(how) is Shard and how.dim == coordinates for how in tensor.placements]
    copied = [how.is_replicate() for how in tensor.placements]
    return sharded.index(True) if sum(sharded) == 1 and sum(copied) == len(copied) - 1 else None


@dataclass(frozen=True)
class Place:
    """The columns of one rank: where they begin, of how many, and over which axis of the mesh they are shared out."""

    first: int
    dim: int
    mesh: Any
    axis: int

    @classmethod
    def of(cls, tensor: Any) -> Place:
        """Of a DTensor whose last dimension is sharded over one axis of the mesh, and copied over the others."""
        mesh, last, axis = tensor.device_mesh, tensor.ndim - 1, _axis_of(tensor)
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

    def built(self, update: Any) -> Any:
        """The whole update, of which this rank holds these columns."""
        import torch
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placements = [Shard(0) if axis == self.axis else Replicate() for axis in range(self.mesh.ndim)]
        shape = torch.Size([self.dim])
        return DTensor.from_local(update, self.mesh, placements, run_check=False, shape=shape, stride=(1,))


def local(point: Any) -> Any:
    """A reference or a trusted update as this rank has it."""
    if not is_dtensor(point):
        return point
    Place.of(point)
    return point.to_local()
