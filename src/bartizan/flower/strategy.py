"""Flower's strategy with robust aggregation in it: replies are judged as they arrive, and none can end the run."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from bartizan.aggregate import Aggregator
from bartizan.coordinatewise import CoordinateWise
from bartizan.errors import TooFewClientsError
from bartizan.files import Unreadable
from bartizan.flower import record
from bartizan.flower.arriving import UNREADABLE, Arriving
from bartizan.flower.decode import Model, only_arrays, reported
from bartizan.flower.judged import Judged
from bartizan.flower.limits import SLACK
from bartizan.flower.metrics import Together, together, without_arrays
from bartizan.reputation import Reputation, Suspect
from bartizan.round import Round
from bartizan.rules.base import Rule
from bartizan.sketch import Sketch

log = logging.getLogger("flwr")
Evaluation = Callable[[int, ArrayRecord], MetricRecord | None]


class RobustStrategy(FedAvg):
    """In place of `FedAvg(...)`: any of bartizan's rules, exact or projected.

    Nodes send whole models, as they do for FedAvg. Each reply is checked against the model that was sent and sketched
    when it arrives; distances are taken from that model. A reply that can't be used is quarantined with a reason and
    uses up one of the rule's `n_byzantine`; if too few are left, the old model is kept and the run goes on.

    Args:
        rule: Whom to trust, such as ``MultiKrum(n_byzantine=3)``.
        sketch: How to look at replies; ``"auto"`` is `Rotated()`, which reads them on arrival.
        sizes: None counts every node alike; ``"reported"`` believes their `weighted_by_key`, up to `size_cap`; a
            mapping gives what the server knows by node id (others are quarantined).
        size_cap: The most examples that a node can claim; needed with ``sizes="reported"``.
        trusted_fn: For rules that need an update that the server vouches for: (round, global model) -> its own model.
        spill: A folder to keep replies in instead of memory.
        folder: Where the run is recorded, for `bartizan report`, and from where it goes on after a restart.
        name: What the run is called there.
        min_train_nodes: How many nodes to ask at least; the fewest that the rule can judge if not given.
        min_available_nodes: How many must be connected; as many if not given.
        fedavg: FedAvg's other parameters.
    """

    def __init__(
        self,
        rule: Rule | CoordinateWise,
        sketch: Sketch | Literal["auto"] = "auto",
        *,
        sizes: Literal["reported"] | Mapping[int, float] | None = None,
        size_cap: float | None = None,
        trusted_fn: Callable[[int, ArrayRecord], ArrayRecord] | None = None,
        spill: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        name: str = "flower",
        min_train_nodes: int | None = None,
        min_available_nodes: int | None = None,
        train_metrics_aggr_fn: Together | None = None,
        evaluate_metrics_aggr_fn: Together | None = None,
        **fedavg: Any,
    ) -> None:
        self.aggregator = Aggregator(rule, sketch)
        least = max(2, fewest(rule))
        asked = least if min_train_nodes is None else min_train_nodes
        super().__init__(
            min_train_nodes=asked,
            min_available_nodes=asked if min_available_nodes is None else min_available_nodes,
            **fedavg,
        )
        if isinstance(sizes, str) and sizes != "reported":
            raise ValueError(f"sizes must be None, 'reported' or a mapping from node ids, got {sizes!r}.")
        if sizes == "reported" and not (size_cap is not None and size_cap > 0):
            raise ValueError(
                "sizes='reported' needs size_cap, the most examples that a node can have: "
                "without it, one that claims a billion would own every average."
            )
        if isinstance(rule, Rule):
            rule.check_trusted(trusted_fn is not None)
        self.sizes, self.size_cap, self.trusted_fn = sizes, size_cap, trusted_fn
        self.spill, self.name = spill, name
        self.folder = None if folder is None else Path(folder)
        self.reputation = Reputation()
        self.quarantined: dict[int, str] = {}
        """Whose reply of the last round could not be used, and why."""
        self.failed: dict[int, str] = {}
        """Who answered the last round with an error, such as an app that crashed."""
        self._own_metrics = (train_metrics_aggr_fn, evaluate_metrics_aggr_fn)
        self._history: tuple[float, ...] = ()
        self._model: Model | None = None
        self._sent: ArrayRecord | None = None
        self._asked: list[int] = []
        self._asked_at = 0.0
        self._line: dict[str, Any] | None = None
        self._done = 0

    def suspects(self, odds: float = 0.05) -> list[Suspect]:
        """Who misbehaves: quarantined, or left out more often than chance explains, the worst first."""
        return self.reputation.suspects(odds)

    def summary(self) -> None:
        """Log the rule, the sketch and what FedAvg logs."""
        log.info("\t├──> Robust aggregation:")
        log.info("\t│\t├── Rule: %r", self.aggregator.rule)
        log.info("\t│\t├── Sketch: %r", self.aggregator.sketch)
        log.info("\t│\t└── Data sizes: %s", "one a node" if self.sizes is None else "as " + _said(self.sizes))
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluation | None = None,
    ) -> Result:
        """As in Flower; with a `folder` that holds an unfinished run, go on with its model behind its last round."""
        began, spent = time.monotonic(), 0.0
        model = Model.of(initial_arrays)  # what is wrong with it should not wait for the first reply
        saved = None if self.folder is None else record.load(self.folder)
        self._done = 0
        if saved is not None:
            if not model.same_layout(Model(saved.arrays)):
                raise ValueError(
                    f"{self.folder} holds a run of another model. Take another folder, or delete that one."
                )
            log.info("Going on with the run in %s after round %d.", self.folder, saved.round)
            initial_arrays, spent = as_record(saved.arrays), saved.seconds
            self.reputation, self._history = Reputation.from_dict(saved.reputation), saved.history
            self._done = saved.round
        done = self._done
        lines = None
        if self.folder is not None and done < num_rounds:
            lines = record.Lines(self.folder, record.opening(self.name, self.aggregator, model.dim), done)

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = None if evaluate_fn is None else evaluate_fn(done + server_round, arrays)
            if server_round and lines is not None and self._line is not None and self.folder is not None:
                line, self._line = self._line, None
                for ours, theirs in (("accuracy", "accuracy"), ("test_loss", "loss")):
                    if found is not None and isinstance(found.get(theirs), (int, float)):
                        line[ours] = found[theirs]
                lines.add(line, map(str, sorted(self._asked)))
                seconds = spent + time.monotonic() - began
                state = (tuple(map(float, self._history)), self.reputation.as_dict(), Model.of(arrays).arrays)
                record.save(self.folder, record.Saved(done + server_round, seconds, *state))
            return found

        try:
            result = super().start(
                grid=Arriving(grid, 2 * sum(len(array.data) for array in initial_arrays.values()) + SLACK),
                initial_arrays=initial_arrays,
                num_rounds=max(0, num_rounds - done),
                timeout=timeout,
                train_config=train_config,
                evaluate_config=evaluate_config,
                evaluate_fn=after,
            )
            if lines is not None:
                lines.end(spent + time.monotonic() - began)
        finally:
            if lines is not None:
                lines.close()
        if not result.arrays:
            result.arrays = initial_arrays
        if done:
            for rounds in (result.train_metrics_clientapp, result.evaluate_metrics_clientapp):
                _counted_on(rounds, done)
            _counted_on(result.evaluate_metrics_serverapp, done)
        for suspect in self.suspects():
            log.warning("Suspect: %s", suspect)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember what is sent: replies are measured from it."""
        self._sent, self._model = arrays, Model.of(arrays)
        messages = list(super().configure_train(self._done + server_round, arrays, config, grid))
        self._asked = [message.metadata.dst_node_id for message in messages]
        self._asked_at = time.monotonic()
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return super().configure_evaluate(self._done + server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Judge each reply as it comes, then combine; where no robust answer exists, the old model."""
        sent, model = self._sent, self._model
        if sent is None or model is None:
            raise RuntimeError("aggregate_train was called before configure_train: there is no model to measure from.")
        if self.fraction_train == 0.0:
            return None, None
        trusted = None if self.trusted_fn is None else model.decode(self.trusted_fn(self._done + server_round, sent))
        metrics: dict[int, RecordDict] = {}
        seen: set[int] = set()
        looking = 0.0
        with self.aggregator.round(
            reference=model.arrays, trusted=trusted, history=self._history, spill=self.spill
        ) as judging:
            self.failed = {}
            for reply in replies:
                begin = time.monotonic()
                node = reply.metadata.src_node_id
                if node in seen:
                    log.warning("Node %d replied again; its first reply counts.", node)
                else:
                    self._take(node, reply, judging, model, metrics)
                seen.add(node)
                looking += time.monotonic() - begin
                del reply  # with it the bytes of what was refused or spilled
            last = time.monotonic()
            result, refused = None, None
            try:
                result = judging.close()
            except TooFewClientsError as too_few:
                refused = too_few
            after = time.monotonic() - last
            nodes = sorted(judging.clients)
        waiting = last - self._asked_at - looking
        judged = Judged(
            self._done + server_round,
            nodes,
            self.failed,
            result,
            refused,
            waiting=waiting,
            looking=looking,
            after=after,
        )
        judged.log()
        weights, self.quarantined = judged.weights, judged.quarantined
        self.reputation.add(weights, self.quarantined)
        if result is not None:
            self._history = result.history
        if self.folder is not None:
            self._line = judged.line(model)

        heard = [metrics[n] for n in nodes if n not in self.quarantined and (weights is None or weights[n] > 0)]
        told = together(heard, self.weighted_by_key, self._own_metrics[0])
        told.update(judged.metrics(self.reputation.shares()))
        return (sent if result is None else as_record(result.update)), told

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Medians of what the nodes report, or the app's own function."""
        found: dict[int, RecordDict] = {}
        for reply in replies:
            if not reply.has_error():
                found.setdefault(reply.metadata.src_node_id, without_arrays(reply.content))
        if not found:
            return None
        metrics = together([found[n] for n in sorted(found)], self.weighted_by_key, self._own_metrics[1])
        if self._line is not None and isinstance(metrics.get("accuracy"), float):
            self._line["accuracy"] = metrics["accuracy"]
        return metrics

    def _take(self, node: int, reply: Message, judging: Round, model: Model, metrics: dict[int, RecordDict]) -> None:
        if reply.has_error() and reply.error.code != UNREADABLE:
            self.failed[node] = " ".join(str(reply.error.reason).split())[:500]
            return
        update: Any
        size = 1.0
        try:
            if reply.has_error():
                raise ValueError(reply.error.reason)
            size = self._size(node, reply.content)
            update = model.decode(only_arrays(reply.content))
        except ValueError as wrong:
            update = Unreadable(str(wrong))
        try:
            judging.add(update, node, size)
        except OSError as full:  # there is no room in `spill`: a node is absent, and the round goes on
            self.failed[node] = str(full)
        else:
            metrics[node] = without_arrays(reply.content) if reply.has_content() else RecordDict()

    def _size(self, node: int, content: RecordDict) -> float:
        if self.sizes is None:
            return 1.0
        if isinstance(self.sizes, Mapping):
            if node not in self.sizes:
                raise ValueError("sizes gives no number for this node")
            return float(self.sizes[node])
        assert self.size_cap is not None
        return min(reported(content, self.weighted_by_key), self.size_cap)


def fewest(rule: Rule | CoordinateWise) -> int:
    """How many clients a rule needs."""
    for n in count(1):
        try:
            rule.check(n)
        except TooFewClientsError:
            continue
        return n
    raise AssertionError


def as_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def _counted_on(rounds: dict[int, MetricRecord], done: int) -> None:
    """Number the rounds of a resumed run from where it stood."""
    for t in sorted(rounds, reverse=True):
        rounds[t + done] = rounds.pop(t)


def _said(sizes: Any) -> str:
    return "reported, capped" if sizes == "reported" else "given"
