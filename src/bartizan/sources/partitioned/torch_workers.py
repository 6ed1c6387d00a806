"""Steps on the ranks of a torch.distributed group: the first rank asks, and every rank works on its own part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bartizan.measure.client_sizes import client_sizes
from bartizan.source import Aggregation
from bartizan.sources.partitioned.opening import clients_of
from bartizan.sources.partitioned.workers import MAX_SUMS, Step, WorkerError, Workers
from bartizan.sources.sharded.collectives import Failure, RankError, RankGrid


@dataclass(frozen=True)
class Shared:
    """A value that every rank has received."""

    number: int


class RankWorkers:
    """One rank and its part; on the first rank, the workers of the group."""

    def __init__(self, ranks: RankGrid, part: Any) -> None:
        self._ranks, self._part, self.n_parts = ranks, part, ranks.n_shards
        self._shared: list[Any] = []

    def serve(self) -> Aggregation[Any]:
        """Answer the first rank until it sends the result."""
        while isinstance(request := self._ranks.broadcast(None, tuple, Aggregation), tuple):
            self._answer(*request)
        return request

    def share(self, value: Any) -> Any:
        self._ask("share", value)
        return Shared(len(self._shared) - 1)

    def map(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        answers = self._ask("map", step, arguments)
        return {part: answers[part] for part in arguments}

    def sum(self, step: Step, arguments: Mapping[int, Sequence[Any]]) -> list[Any]:
        return [each for each in self._ask("sum", step, arguments) if each is not None]

    def _ask(self, *request: Any) -> Any:
        """Have all ranks keep a value, or run a step on their part, this one included."""
        return self._answer(*self._ranks.broadcast(request, tuple))

    def _answer(self, wanted: str, step: Any, arguments: Mapping[int, Sequence[Any]] | None = None) -> Any:
        if arguments is None:
            return self._shared.append(step)
        given, own = arguments.get(self._ranks.rank), None
        if given is not None:
            own = self._ranks.attempt(lambda: step(self._part, *self._resolved(given)))
        if wanted == "sum" and self.n_parts > MAX_SUMS:
            return [self._ranks.sum_by_tree(own)]
        return self._ranks.gather_to_leader(own)

    def _resolved(self, arguments: Sequence[Any]) -> list[Any]:
        return [self._shared[given.number] if isinstance(given, Shared) else given for given in arguments]


def on_ranks(group: Any, part: Any, sizes: Any, caller: Callable[[Workers, Any], Aggregation[Any]]) -> Aggregation[Any]:
    """Return the result of `caller`, which runs on the first rank; the others get it without the update.

    An error of one rank is raised on all; a rank that dies or is silent is a WorkerError within the group's timeout.
    """
    try:
        ranks = RankGrid([group])
        workers = RankWorkers(ranks, part)
        own = ranks.attempt(lambda: None if sizes is None else client_sizes(sizes, len(clients_of(part))))
        if not ranks.is_leader:
            ranks.gather_to_leader(own)
            return workers.serve()
        try:
            out = ranks.attempt(lambda: caller(workers, _joined(ranks.gather_to_leader(own))), of_all_ranks=True)
        except Failure as failure:  # of another rank
            out = failure
        ranks.broadcast(out if isinstance(out, Failure) else replace(out, update=None), Aggregation)
        assert not isinstance(out, Failure)
        return out
    except RankError as lost:
        raise WorkerError(str(lost)) from lost
    except Failure as failure:
        kind, *arguments = failure.args
        raise (WorkerError if kind is RuntimeError else kind)(*arguments) from failure.__cause__


def _joined(sizes: Sequence[Any]) -> Any:
    given = [each for each in sizes if each is not None]
    if given and len(given) < len(sizes):
        raise ValueError("Some ranks passed sizes and others did not: pass those of its own clients on every rank.")
    return np.concatenate(given) if given else None
