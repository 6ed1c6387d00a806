"""Collective operations among the ranks of a group, and among groups that hold copies of the same shards."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np

from bartizan._util.extras import missing_extra
from bartizan.errors import BadClientError, TooFewClientsError

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise missing_extra("bartizan.distributed needs torch", "torch") from missing

T = TypeVar("T")
START_ANEW = "Start the group anew; this round has no result."


class RankError(RuntimeError):
    """A rank died, did not answer or made another call, so the group cannot be used any more."""


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


def _sum(a: Any, b: Any) -> Any:
    """The sum of two objects, of which None is skipped and a failure is kept."""
    if a is None or isinstance(b, Failure):
        return b
    return a if b is None or isinstance(a, Failure) else a + b


class RankGrid:
    """The ranks of the `torch.distributed` group that holds the shards, and of further groups that hold copies of them.

    Each rank is in one group an axis; an object is gathered or broadcast along one axis after the other. Objects are
    sent by torch's object collectives, as pickles: ranks trust each other, as parts of one program must. A `Failure`
    among them is raised on every rank; whatever fails on the way is a RankError, within the timeout of the group. Only
    the first copy sketches its columns, and its first rank decides for all, so no two copies can get different weights.
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "This needs a group of processes: start them with torchrun and call "
                "torch.distributed.init_process_group(...) first."
            )
        self._groups: list[Any] = [dist.group.WORLD if group is None else group for group in groups]
        self._places = [dist.get_rank(group) for group in self._groups]
        if min(self._places) < 0:
            raise ValueError("This process is no rank of the group that it passed.")
        sizes = [dist.get_world_size(group) for group in self._groups]
        self.n_shards, self.global_rank = sizes[0], dist.get_rank()
        self.rank = sum(place * prod(sizes[:n]) for n, place in enumerate(self._places))
        self.is_leader, self.in_first_copy = self.rank == 0, self.rank < self.n_shards
        self.counts_replicated = self.rank % self.n_shards == 0  # what all ranks of one copy hold
        self._backends = dict(pair.split(":") for pair in dist.get_backend_config(self._groups[0]).split(","))
        self._sum_device = torch.device("cpu" if "cpu" in self._backends else "cuda")

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
        for group in self._groups:
            parts: list[Any] = [None] * dist.get_world_size(group)
            with self._as_rank_error():
                dist.all_gather_object(parts, gathered, group=group)
            self._check(parts, list)
            gathered = [each for part in parts for each in part]
        self._check(gathered, kind)
        return gathered

    def gather_to_leader(self, own: Any) -> list[Any]:
        """Return the objects of all ranks of a copy on its first rank, [] on others; a `Failure` is raised there."""
        gathered: list[Any] | None = self.sum_by_tree(own if isinstance(own, Failure) else [own])
        return gathered or []

    def sum_by_tree(self, own: Any) -> Any:
        """Return the sum of the objects of all ranks of a copy, without None, on its first; raise a `Failure` there.

        In each round the ranks that are left send their sum to a neighbour, so that no rank receives more than log2 of
        them.
        """
        step = 1
        while step < self.n_shards:
            if self.rank % (2 * step):
                self._send(own, self.rank - step)
                return None
            if self.rank + step < self.n_shards:
                own = self.attempt(partial(_sum, own, self._receive(self.rank + step)))
            step *= 2
        self._check([own], object)
        return own

    def _send(self, message: Any, place: int) -> None:
        """Send an object to the rank at this place of the copy, its arrays from where they are."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(each.raw(), np.uint8) for each in buffers]
        group, to = self._groups[0], dist.get_global_rank(self._groups[0], place)
        with self._as_rank_error(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of arrays that can't be written to
            dist.send_object_list([(head, [array.size for array in arrays])], to, group=group)
            for array in arrays:
                dist.send(torch.from_numpy(array).to(self._sum_device), to, group=group)

    def _receive(self, place: int) -> Any:
        group, sender = self._groups[0], dist.get_global_rank(self._groups[0], place)
        with self._as_rank_error():
            message: list[Any] = [None]
            dist.recv_object_list(message, sender, group=group)
            head, sizes = message[0]
            tensors = [torch.empty(size, dtype=torch.uint8, device=self._sum_device) for size in sizes]
            for tensor in tensors:
                dist.recv(tensor, sender, group=group)
            return pickle.loads(head, buffers=[tensor.cpu().numpy() for tensor in tensors])

    def broadcast(self, message: Any, *kinds: type) -> Any:
        """The first rank's object, on every rank; it must be of one of these types."""
        messages = [message]
        for n, group in enumerate(self._groups):
            if not any(self._places[n + 1 :]):
                with self._as_rank_error():
                    dist.broadcast_object_list(messages, dist.get_global_rank(group, 0), group=group)
        self._check(messages, *kinds)
        return messages[0]

    def choose_sum_device(self, devices: Sequence[str]) -> None:
        """Sum on the GPUs if all shards are on GPUs and the group has a backend for them."""
        if self._backends.get("cuda") == "nccl" and all(device.startswith("cuda") for device in devices):
            self._sum_device = torch.device("cuda")

    def sum_to_leader(self, arrays: Sequence[Any]) -> list[Any]:
        """The sums of the arrays of all ranks of one copy, on its first; the arrays passed may be overwritten."""
        tensors = [torch.as_tensor(each).to(self._sum_device) for each in arrays]
        with self._as_rank_error():
            for tensor in tensors:
                if tensor.numel():
                    dist.reduce(tensor, dist.get_global_rank(self._groups[0], 0), group=self._groups[0])
            if self._sum_device.type == "cuda":
                torch.cuda.current_stream().synchronize()
        return [tensor if tensor.is_cuda else tensor.numpy() for tensor in tensors]

    @contextmanager
    def _as_rank_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as failed:  # including pickle's errors on the bytes of another call
            raise RankError(
                f"rank {self.global_rank}: another rank is dead, did not answer within the group's timeout, or made "
                f"another call: {type(failed).__name__}: {failed}. {START_ANEW}"
            ) from failed

    def _check(self, messages: Sequence[Any], *kinds: type) -> None:
        for each in messages:
            if isinstance(each, Failure):
                raise each
            if not isinstance(each, kinds):
                raise RankError(
                    f"rank {self.global_rank} received a {type(each).__name__} where it expected "
                    f"{' or '.join(kind.__name__ for kind in kinds)}: another rank made another call. {START_ANEW}"
                )
