"""The ranks of a group, and the few things that they tell each other."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


class Peers:
    """All ranks of a group; the first of them leads.

    Small things travel as pickles, as torch's own object collectives have it: ranks trust each other, as parts of one
    program must. All that fails on the way is a RankError, within the timeout of the group.
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
        self.process: int = dist.get_rank()  # as whoever started it knows it
        self.size: int = dist.get_world_size(self.group)
        self._leader: int = dist.get_global_rank(self.group, 0)
        config = dist.get_backend_config(self.group)
        self._backends = dict(pair.split(":") for pair in config.split(","))
        self._device = torch.device("cpu" if "cpu" in self._backends else "cuda")
        self._sums_at = self._device

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum_where_the_shards_are(self, devices: Sequence[str]) -> None:
        """Sums of shards that all lie on GPUs stay there, if the group has a backend for that."""
        if self._backends.get("cuda") == "nccl" and all(device.startswith("cuda") for device in devices):
            self._sums_at = torch.device("cuda")

    def everyones(self, mine: Any) -> list[Any]:
        """What each rank says, in the order of ranks, told to all."""
        packed = self._packed(mine)
        with self._answering():
            sizes = [torch.empty(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
            dist.all_gather(sizes, torch.tensor([len(packed)], device=self._device), group=self.group)
            counts = [int(size) for size in sizes]
            padded = torch.zeros(max(counts), dtype=torch.uint8, device=self._device)
            padded[: len(packed)] = packed
            parts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(parts, padded, group=self.group)
            return [_unpacked(part[:count]) for part, count in zip(parts, counts, strict=True)]

    def from_the_leader(self, said: Any = None) -> Any:
        """What the leader says, told to all; on the others the argument is not looked at."""
        packed = self._packed(said) if self.leads else torch.empty(0, dtype=torch.uint8, device=self._device)
        with self._answering():
            size = torch.tensor([len(packed)], device=self._device)
            dist.broadcast(size, self._leader, group=self.group)
            if not self.leads:
                packed = torch.empty(int(size), dtype=torch.uint8, device=self._device)
            dist.broadcast(packed, self._leader, group=self.group)
            return said if self.leads else _unpacked(packed)

    def totals(self, sums: Sequence[Any]) -> list[Any]:
        """The sums of all ranks, on the leader; whatever was passed may be overwritten."""
        tensors = [torch.as_tensor(each).to(self._sums_at) for each in sums]
        with self._answering():
            for tensor in tensors:
                if tensor.numel():
                    dist.reduce(tensor, self._leader, group=self.group)
            if self._sums_at.type == "cuda":
                torch.cuda.current_stream().synchronize()
        return [tensor if tensor.is_cuda else tensor.numpy() for tensor in tensors]

    def _packed(self, said: Any) -> Any:
        return torch.from_numpy(np.frombuffer(pickle.dumps(said), dtype=np.uint8).copy()).to(self._device)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except Exception as failed:  # also whatever pickle makes of bytes that are none of its own
            raise RankError(
                f"rank {self.process}, in a group of {self.size}: another rank is dead, did not answer within the "
                f"group's timeout, or made another call: {type(failed).__name__}: {failed}. Start the group anew; this "
                f"round has no result."
            ) from failed


def _unpacked(tensor: Any) -> Any:
    return pickle.loads(tensor.cpu().numpy().tobytes())
