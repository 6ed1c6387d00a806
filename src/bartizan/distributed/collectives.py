"""Collective operations among the ranks of a group, and among groups that hold copies of the same shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, TypeVar

from bartizan.errors import BadClientError, TooFewClientsError

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ModuleNotFoundError("bartizan.distributed needs torch: pip install 'bartizan[torch]'") from missing

T = TypeVar("T")


class RankError(RuntimeError):
    """A rank is dead, silent or out of step: this group can't go on."""


class Failure(Exception):
    """An error of one rank, which it sends in place of a result: type and arguments of the error to raise everywhere.

    Errors of this library and ValueError and TypeError keep their type; any other becomes a RuntimeError that names it.
    """

    @classmethod
    def of(cls, raised: Exception, rank: int, of_all_ranks: bool = False) -> Failure:
        """The failure of this global rank, or of the whole round where the error is not about the rank's shard."""
        name, where = type(raised).__name__, "" if of_all_ranks else f"rank {rank}: "
        if isinstance(raised, BadClientError):
            return cls(BadClientError, raised.client, where + raised.reason)
        if isinstance(raised, TooFewClientsError):
            return cls(TooFewClientsError, where + raised.problem, raised.quarantined)
        for kind in (ValueError, TypeError):
            if isinstance(raised, kind):
                return cls(kind, f"{where}{raised}" if type(raised) is kind else f"{where}{name}: {raised}")
        return cls(RuntimeError, f"rank {rank} failed: {name}: {raised}")


@contextmanager
def raising_failures() -> Iterator[None]:
    """Raise the error that a failure stands for."""
    try:
        yield
    except Failure as failure:
        kind, *arguments = failure.args
        raise kind(*arguments) from failure.__cause__


class RankGroup:
    """The ranks of one `torch.distributed` group; the first of them is the leader.

    Small objects are sent by torch's object collectives, as pickles: ranks trust each other, as parts of one program
    must. Whatever fails on the way is a RankError, within the timeout of the group.
    """

    def __init__(self, group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "ShardedAggregator needs a group of processes: start them with torchrun and call "
                "torch.distributed.init_process_group(...) first."
            )
        everyone: Any = dist.group.WORLD
        self.group = everyone if group is None else group
        self.rank: int = dist.get_rank(self.group)
        if self.rank < 0:
            raise ValueError("This process is no rank of the group that it passed.")
        self.global_rank: int = dist.get_rank()
        self.size: int = dist.get_world_size(self.group)
        self._leader: int = dist.get_global_rank(self.group, 0)
        self._backends = dict(pair.split(":") for pair in dist.get_backend_config(self.group).split(","))
        self._sum_device = torch.device("cpu" if "cpu" in self._backends else "cuda")

    def choose_sum_device(self, devices: Sequence[str]) -> None:
        """Sum on the GPUs if all shards are on GPUs and the group has a backend for them."""
        if self._backends.get("cuda") == "nccl" and all(device.startswith("cuda") for device in devices):
            self._sum_device = torch.device("cuda")

    def gather(self, own: Any) -> list[Any]:
        """The objects of all ranks in the order of ranks, on every rank."""
        gathered: list[Any] = [None] * self.size
        with self._as_rank_error():
            dist.all_gather_object(gathered, own, group=self.group)
        return gathered

    def broadcast(self, message: Any = None) -> Any:
        """The leader's object, on every rank; what other ranks pass is ignored."""
        messages = [message]
        with self._as_rank_error():
            dist.broadcast_object_list(messages, self._leader, group=self.group)
        return messages[0]

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


class RankGrid:
    """The group that holds the shards, and further groups of ranks that hold the same shard (hybrid sharding).

    Each rank is in one group an axis; an object is gathered or broadcast along one axis after the other. A `Failure`
    among the objects is raised on every rank. Only the first copy sketches its columns, and its first rank decides for
    all, so no two copies can get different weights.
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        self._axes = [RankGroup(group) for group in groups]
        shards = self._axes[0]
        self.n_shards, self.global_rank = shards.size, shards.global_rank
        self.rank = sum(axis.rank * prod(a.size for a in self._axes[:n]) for n, axis in enumerate(self._axes))
        self.is_leader, self.in_first_copy = self.rank == 0, self.rank < self.n_shards
        self.choose_sum_device, self.sum_to_leader = shards.choose_sum_device, shards.sum_to_leader

    def attempt(self, work: Callable[[], T], *, of_all_ranks: bool = False) -> T | Failure:
        """The result of `work`, or its failure, to be sent to the ranks that wait for this one."""
        try:
            return work()
        except (RankError, Failure):
            raise
        except Exception as wrong:
            failure = Failure.of(wrong, self.global_rank, of_all_ranks)
            failure.__cause__ = wrong
            return failure

    def gather(self, own: Any, kind: type) -> list[Any]:
        """The objects of all ranks, copy by copy, on every rank; they must be of this type."""
        gathered = [own]
        for axis in self._axes:
            parts = axis.gather(gathered)
            self._check(parts, list)
            gathered = [each for part in parts for each in part]
        self._check(gathered, kind)
        return gathered

    def broadcast(self, message: Any, *kinds: type) -> Any:
        """The leader's object, on every rank; it must be of one of these types."""
        for n, axis in enumerate(self._axes):
            if all(later.rank == 0 for later in self._axes[n + 1 :]):
                message = axis.broadcast(message)
        self._check([message], *kinds)
        return message

    def _check(self, messages: Sequence[Any], *kinds: type) -> None:
        for each in messages:
            if isinstance(each, Failure):
                raise each
            if not isinstance(each, kinds):
                raise RankError(
                    f"rank {self.global_rank} received a {type(each).__name__} where it expected "
                    f"{' or '.join(kind.__name__ for kind in kinds)}: another rank made another call. Start the group "
                    f"anew; this round has no result."
                )
