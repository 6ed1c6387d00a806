"""Collective operations among the ranks of a group, and among groups that hold copies of the same shards."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError("bartizan.distributed needs torch: pip install 'bartizan[torch]'") from missing


class RankError(RuntimeError):
    """A rank is dead, silent or out of step: this group can't go on."""


class RankGroup:
    """The ranks of one `torch.distributed` group; the first of them is the leader.

    Small objects are sent as pickles, as in torch's own object collectives: ranks trust each other, as parts of one
    program must. Whatever fails on the way is a RankError, within the timeout of the group.
    """

    def __init__(self, group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "ShardedAggregator needs a group of processes: start them with torchrun and call "
                "torch.distributed.init_process_group(...) first."
            )
        if group is None:
            group = dist.group.WORLD
        self.group = group
        self.rank: int = dist.get_rank(self.group)
        if self.rank < 0:
            raise ValueError("This process is no rank of the group that it passed.")
        self.global_rank: int = dist.get_rank()
        self.size: int = dist.get_world_size(self.group)
        self._leader: int = dist.get_global_rank(self.group, 0)
        config = dist.get_backend_config(self.group)
        self._backends = dict(pair.split(":") for pair in config.split(","))
        self._device = torch.device("cpu" if "cpu" in self._backends else "cuda")
        self._sum_device = self._device

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def choose_sum_device(self, devices: Sequence[str]) -> None:
        """Sum on the GPUs if all shards are on GPUs and the group has a backend for them."""
        if self._backends.get("cuda") == "nccl" and all(device.startswith("cuda") for device in devices):
            self._sum_device = torch.device("cuda")

    def gather(self, own: Any) -> list[Any]:
        """The objects of all ranks in the order of ranks, on every rank."""
        packed = self._packed(own)
        with self._as_rank_error():
            sizes = [torch.empty(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(packed)], device=self._device), group=self.group)
            counts = [int(size) for size in sizes]
            padded = torch.zeros(max(counts), dtype=torch.uint8, device=self._device)
            padded[: len(packed)] = packed
            parts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(parts, padded, group=self.group)
            return [_unpacked(part[:count]) for part, count in zip(parts, counts, strict=True)]

    def broadcast(self, message: Any = None) -> Any:
        """The leader's object, on every rank; what other ranks pass is ignored."""
        packed = self._packed(message) if self.is_leader else torch.empty(0, dtype=torch.uint8, device=self._device)
        with self._as_rank_error():
            size = torch.tensor([len(packed)], device=self._device)
            dist.broadcast(size, self._leader, group=self.group)
            if not self.is_leader:
                packed = torch.empty(int(size), dtype=torch.uint8, device=self._device)
            dist.broadcast(packed, self._leader, group=self.group)
            return message if self.is_leader else _unpacked(packed)

    def sum_to_leader(self, arrays: Sequence[Any]) -> list[Any]:
        """The sums of all ranks' arrays, on the leader; what was passed may be overwritten."""
        tensors = [torch.as_tensor(each).to(self._sum_device) for each in arrays]
        with self._as_rank_error():
            for tensor in tensors:
                if tensor.numel():
                    dist.reduce(tensor, self._leader, group=self.group)
            if self._sum_device.type == "cuda":
                torch.cuda.current_stream().synchronize()
        return [tensor if tensor.is_cuda else tensor.numpy() for tensor in tensors]

    def _packed(self, message: Any) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(pickle.dumps(message), dtype=np.uint8).copy()).to(self._device)

    @contextmanager
    def _as_rank_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as failed:  # including pickle's errors on the bytes of another call
            raise RankError(
                f"rank {self.global_rank}, in a group of {self.size}: another rank is dead, did not answer within the "
                f"group's timeout, or made another call: {type(failed).__name__}: {failed}. Start the group anew; this "
                f"round has no result."
            ) from failed


def _unpacked(tensor: torch.Tensor) -> Any:
    return pickle.loads(tensor.cpu().numpy().tobytes())


class RankGrid:
    """The group that holds the shards, and further groups of ranks that hold the same shard (hybrid sharding).

    Each rank is in one group an axis; an object is gathered or broadcast along one axis after the other. Only the first
    copy sketches its columns, and its first rank decides for all, so no two copies can get different weights.
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        self._axes = [RankGroup(group) for group in groups]
        self._shards = self._axes[0]
        self.n_shards = self._shards.size
        self.global_rank = self._shards.global_rank
        self.rank = sum(axis.rank * prod(a.size for a in self._axes[:n]) for n, axis in enumerate(self._axes))
        self.choose_sum_device = self._shards.choose_sum_device
        self.sum_to_leader = self._shards.sum_to_leader

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def in_first_copy(self) -> bool:
        return self.rank < self.n_shards

    def gather(self, own: Any, *kinds: type) -> list[Any]:
        """The objects of all ranks, copy by copy, on every rank; they must be of these types."""
        gathered = [own]
        for axis in self._axes:
            parts = axis.gather(gathered)
            self._check(parts, list)
            gathered = [each for part in parts for each in part]
        self._check(gathered, *kinds)
        return gathered

    def broadcast(self, message: Any = None, *kinds: type) -> Any:
        """The leader's object, on every rank; it must be of one of these types."""
        for n, axis in enumerate(self._axes):
            if all(later.rank == 0 for later in self._axes[n + 1 :]):
                message = axis.broadcast(message)
        self._check([message], *kinds)
        return message

    def _check(self, messages: Sequence[Any], *kinds: type) -> None:
        for each in messages:
            if not isinstance(each, kinds):
                raise RankError(
                    f"rank {self.global_rank} received a {type(each).__name__} where it expected "
                    f"{' or '.join(kind.__name__ for kind in kinds)}: another rank made another call. Start the group "
                    f"anew; this round has no result."
                )
