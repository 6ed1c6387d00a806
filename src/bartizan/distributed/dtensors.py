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


def group_of(shard: Any) -> Any:
    """The group that holds a DTensor, however it is placed; None of anything else."""
    sample = sample_of(shard)
    return sample.device_mesh.get_group() if is_dtensor(sample) and sample.device_mesh.ndim == 1 else None


@dataclass(frozen=True)
class Place:
    """The columns of one rank: where they begin, of how many, and on which mesh."""

    first: int
    dim: int
    mesh: Any

    @classmethod
    def of(cls, tensor: Any) -> Place:
        """Of a DTensor whose last axis is sharded, over a mesh of one axis."""
        from torch.distributed.tensor import Shard

        mesh, placements, axis = tensor.device_mesh, tensor.placements, tensor.ndim - 1
        sharded = len(placements) == 1 and type(placements[0]) is Shard and placements[0].dim == axis
        if not sharded:
            raise ValueError(
                f"Wanted a DTensor whose coordinates are sharded, [Shard({axis})] on a mesh of one axis; got "
                f"{list(placements)}. Call .redistribute(placements=[Shard({axis})]), or pass the local part and its "
                f"offset."
            )
        p, each = tensor.shape[axis], -(-tensor.shape[axis] // mesh.size())
        first = min(p, mesh.get_local_rank() * each)
        width = min(p, first + each) - first
        came = tensor.to_local().shape[axis]
        if came != width:
            raise ValueError(f"Wanted {width} of the DTensor's {p} columns on this rank, its even share; got {came}.")
        return cls(first, p, mesh)

    def built(self, update: Any) -> Any:
        """The whole update, of which this rank holds these columns."""
        import torch
        from torch.distributed.tensor import DTensor, Shard

        shape = torch.Size([self.dim])
        return DTensor.from_local(update, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=(1,))


def local(point: Any) -> Any:
    """A reference or a trusted update as this rank has it."""
    if not is_dtensor(point):
        return point
    Place.of(point)
    return point.to_local()
