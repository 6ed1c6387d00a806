"""A strategy without rounds: nodes are given new work when they are free, and a buffer of replies is judged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from bartizan._util.types import Array
from bartizan.buffer import Buffer
from bartizan.flower.grids import NonstopGrid, StreamingGrid
from bartizan.flower.nodes_outcome import NodesOutcome
from bartizan.flower.replies import Model
from bartizan.flower.reply_limits import Limits
from bartizan.flower.strategy import RobustStrategy
from bartizan.sources.buffered import BufferedAggregation


class AsyncRobustStrategy(RobustStrategy):
    """A `RobustStrategy` that waits for nobody: each of its rounds is one judgement of a buffer of replies.

    As many nodes work at a time as `fraction_train` of those connected. A node that has replied is asked again with the
    next model; slow nodes go on with theirs, and their replies count when they come, by their age. A round ends when
    replies of `size` nodes are there, when `deadline` is over, or when nobody works and nobody is free.

    The rule's `n_byzantine` counts all attackers of the federation, since all of them may be among `size` nodes. The
    version of the model that a node's reply belongs to is the one that it was sent.

    Args:
        rule: As in `RobustStrategy`.
        size: How many nodes' replies make a judgement; see `bartizan.Buffer` for this and the next five.
        staleness: How age lowers weights.
        max_staleness: The oldest reply that is taken, in versions.
        remember: Let the last replies of absent nodes take part in the judgement.
        sum_remembered: Sum them too.
        max_age: The oldest reply that is remembered, in versions.
        deadline: Seconds after which a judgement is made of what is there.
        folder: Where the run is recorded, and the buffer with its memory; a restarted server continues both.
        settings: Of `RobustStrategy`, but for `trusted_fn`, `adapters`, `committed`, `keep_replies` (`folder` has the
            buffer) and an evaluation on nodes, which would be a barrier: pass `evaluate_fn` to `start`, which runs on
            the server. `timeout` of `start` is the time that a node has for its work.
    """

    def __init__(
        self,
        rule: Any = None,
        *,
        size: int,
        staleness: str | Callable[[int], float] | None = "polynomial",
        max_staleness: int = 10,
        remember: bool | int = False,
        sum_remembered: bool = False,
        max_age: int = 100,
        deadline: float = 600.0,
        folder: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        for name in ("trusted_fn", "adapters", "committed", "keep_replies"):
            if settings.get(name):
                raise ValueError(f"{name} is for rounds: a buffer has no such option. Take RobustStrategy.")
        if settings.setdefault("fraction_evaluate", 0.0):
            raise ValueError("fraction_evaluate must be 0: evaluating on nodes would wait for them. Pass evaluate_fn.")
        if not deadline > 0:
            raise ValueError(f"deadline must be a number of seconds above 0, got {deadline!r}.")
        settings.setdefault("min_train_nodes", size)
        super().__init__(rule, folder=folder, **settings)
        self._buffered: dict[str, Any] = {"staleness": staleness, "max_staleness": max_staleness, "max_age": max_age}
        self._buffered |= {"remember": remember, "sum_remembered": sum_remembered}
        self.size, self.deadline = size, deadline
        self.aggregator.buffer(size, **self._buffered)  # a wrong setting is an error now
        self._buffer: Buffer[dict[str, Array]] | None = None
        self._versions: dict[int, int] = {}  # of the model that a node was sent last
        self._contents: dict[int, RecordDict] = {}  # metrics of each node's last reply

    def start(self, *given: Any, **named: Any) -> Result:
        """Run as `RobustStrategy` does, `num_rounds` being the number of judgements."""
        self._buffer, self._versions, self._contents = None, {}, {}
        try:
            return super().start(*given, **named)
        finally:
            if self._buffer is not None:
                self._buffer.close()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure messages as FedAvg does: as many nodes work at a time, whoever of the connected is free."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if self._buffer is None:
            folder = None if self.folder is None else Path(self.folder) / "buffer"
            model = Model.of(arrays).arrays
            more: dict[str, Any] = {"history": self._history, "spill": self.spill, "folder": folder, "model": model}
            self._buffer = self.aggregator.buffer(self.size, **self._buffered, **more)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add replies to the buffer as they come, judge it when it is full, and return the next model."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if self._buffer is not None and metrics is not None:
            metrics["bartizan-version"] = self._buffer.version
        return arrays, metrics

    def _aggregate(self, server_round: int, replies: Iterable[Message], model: Model, outcome: NodesOutcome) -> None:
        assert self._buffer is not None
        opened, began = _Judgement(self._buffer, self._versions, model), time.monotonic()
        outcome.contents = self._contents
        for reply in replies:
            begin = time.monotonic()
            self._read_reply(reply.metadata.src_node_id, reply, opened, model, outcome)
            outcome.reading += time.monotonic() - begin
            del reply
            if self._buffer.full:
                break
        last = time.monotonic()
        outcome.close(opened)
        outcome.clients = sorted(opened.clients)
        outcome.failed |= opened.failed
        outcome.waiting, outcome.after = last - began - outcome.reading, time.monotonic() - last

    def _on_send(self, messages: list[Message]) -> None:
        """Keep which version each node is sent; a node works on one at a time."""
        assert self._buffer is not None
        nodes = [message.metadata.dst_node_id for message in messages]
        self._versions |= dict.fromkeys(nodes, self._buffer.version)
        self._asked = list(dict.fromkeys([*self._asked, *nodes]))

    def _streaming(self, grid: Grid, limits: Limits) -> StreamingGrid:
        return NonstopGrid(grid, limits, self._on_send, self.deadline)

    @property
    def _settings(self) -> dict[str, str]:
        staleness = self._buffered["staleness"]
        named = {**self._buffered, "staleness": staleness if not callable(staleness) else "a function"}
        return {**super()._settings, "buffer": repr({"size": self.size, **named})}


class _Judgement:
    """One judgement of a buffer in the place of a `Round`."""

    def __init__(self, buffer: Buffer[dict[str, Array]], versions: dict[int, int], model: Model) -> None:
        self.buffer, self.versions, self.model = buffer, versions, model
        self.failed: dict[int, str] = {}
        self.quarantined: dict[int, str] = {}
        self.clients: list[int] = []
        """Nodes that sent something since the last judgement; remembered ones are not judged anew by a reputation."""

    def add(self, update: Any, node: int, size: float) -> str | None:
        self.failed.pop(node, None)
        reason = self.buffer.add(update, node, version=self.versions[node], size=size)
        if reason is not None and self.buffer.rejected.get(node) == reason:
            self.failed[node] = reason
        return reason

    def fail(self, node: int, reason: str) -> None:
        self.failed[node] = reason

    def close(self) -> BufferedAggregation[dict[str, Array]]:
        """Judge the buffer, publish the next model in it, and return the result on the nodes that sent something."""
        self.clients = list(self.buffer.clients)
        result = self.buffer.aggregate()
        update = {name: _moved(array, result.update[name]) for name, array in self.model.arrays.items()}
        self.buffer.publish(update)
        fresh = np.array([client not in result.remembered for client in result.clients])
        self.clients = [client for client in result.clients if client not in result.remembered]
        return replace(
            result,
            update=update,
            clients=tuple(self.clients),
            weights=None if result.weights is None else result.weights[fresh],
            scores=None if result.scores is None else result.scores[fresh],
            failed=dict(result.rejected),
        )


def _moved(array: Array, change: Array) -> Array:
    """Return an array of the model after a change; booleans are what most nodes sent."""
    return change if array.dtype.kind == "b" else np.asarray(array + change, dtype=array.dtype)
