"""Flower's strategy with robust aggregation in it: replies are judged as they arrive, and none can end the run."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from bartizan._util.text import short
from bartizan.aggregate import Aggregator
from bartizan.defense.reputation import Reputation, Suspect
from bartizan.errors import TooFewClientsError
from bartizan.flower import run_record as record
from bartizan.flower.client_metrics import Together, kept, medians, together
from bartizan.flower.decode import Model, as_record, of_kind, only_arrays, reported
from bartizan.flower.judged import Judged, ReplyMetadata
from bartizan.flower.limits import Limits
from bartizan.flower.reply_stream import Arriving, Unusable
from bartizan.flower.resumed import continued, counted_on
from bartizan.round import Round
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch import Sketch
from bartizan.updates.files import Unreadable

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
            train_metrics_aggr_fn=train_metrics_aggr_fn or medians,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or medians,
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
        self.folder = None if folder is None else Path(folder).expanduser()
        self.reputation = Reputation()
        self.quarantined: dict[int, str] = {}
        """Whose reply of the last round could not be used, and why."""
        self.failed: dict[int, str] = {}
        """Who answered the last round with an error, such as an app that crashed."""
        self._history: tuple[float, ...] = ()
        self._model: Model | None = None
        self._sent: ArrayRecord | None = None
        self._asked: list[int] = []
        self._asked_at = 0.0
        self._unheard: set[int] = set()
        self._line: dict[str, Any] | None = None

    def suspects(self, odds: float = 0.05) -> list[Suspect]:
        """Who misbehaves: quarantined, or left out more often than chance explains, the worst first."""
        return self.reputation.suspects(odds)

    def summary(self) -> None:
        """Log the rule, the sketch and what FedAvg logs."""
        log.info("\t├──> Robust aggregation:")
        log.info("\t│\t├── Rule: %r", self.aggregator.rule)
        log.info("\t│\t├── Sketch: %r", self.aggregator.sketch)
        log.info("\t│\t└── Data sizes: %s", self._settings["sizes"])
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
        began = time.monotonic()
        model = Model.of(initial_arrays)  # what is wrong with it should not wait for the first reply
        saved = None if self.folder is None else record.unfinished(self.folder, model, self._settings)
        self.quarantined, self.failed, self._unheard, self._line = {}, {}, set(), None
        if saved is None:
            saved = record.Saved(0, 0.0)
        else:
            log.info("Going on with the run in %s after round %d.", self.folder, saved.round)
            initial_arrays = as_record(saved.arrays)
        self.reputation, self._history = Reputation.from_dict(saved.reputation), saved.history
        self._measure_from(initial_arrays)
        done, spent = saved.round, saved.seconds
        lines = None
        if done and done >= num_rounds:
            log.warning("The run in %s is done: nothing is trained. For another, take another folder.", self.folder)
        elif self.folder is not None and num_rounds:
            if not self.folder.is_absolute():
                log.warning("The run is recorded in %s: say folder= as a whole path.", self.folder.absolute())
            lines = record.Lines(self.folder, record.opening(self.name, self.aggregator, model.dim), done)

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = None if evaluate_fn is None else evaluate_fn(done + server_round, arrays)
            if server_round and lines is not None and self._line is not None:
                line, self._line = self._line, None
                for ours, theirs in (("accuracy", "accuracy"), ("test_loss", "loss")):
                    if found is not None and isinstance(found.get(theirs), (int, float)):
                        line[ours] = found[theirs]
                self._record(lines, line, spent + time.monotonic() - began, arrays)
            return found

        try:
            result = continued(self, done).start(
                grid=Arriving(grid, Limits.of(initial_arrays), self._remember),
                initial_arrays=initial_arrays,
                num_rounds=max(0, num_rounds - done),
                timeout=timeout,
                train_config=train_config,
                evaluate_config=evaluate_config,
                evaluate_fn=after,
            )
            if lines is not None:
                with record.as_far_as_there_is_room():
                    lines.end(spent + time.monotonic() - began)
        finally:
            if lines is not None:
                lines.close()
        if not result.arrays:
            result.arrays = initial_arrays
        counted_on(result, done)
        for suspect in self.suspects():
            log.warning("Suspect: %s", suspect)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg does."""
        self._measure_from(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Judge each reply as it comes, then combine; where no robust answer exists, the old model."""
        if self.fraction_train == 0.0:
            return None, None
        sent, model = self._sent, self._model
        if sent is None or model is None:
            raise RuntimeError("aggregate_train was called before configure_train: there is no model to measure from.")
        trusted = None if self.trusted_fn is None else model.decode(self.trusted_fn(server_round, sent))
        come = ReplyMetadata()
        try:
            judging = self.aggregator.round(
                reference=model.arrays, trusted=trusted, history=self._history, spill=self.spill
            )
        except OSError as full:
            if full.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            judged = Judged.none(server_round, f"there is no room to keep replies in {self.spill}.")
        else:
            with judging:
                judged = self._judged(server_round, replies, judging, model, come)
        judged.log()
        judged.add_to(self.reputation)
        self.quarantined, self.failed = judged.quarantined, judged.failed
        self._unheard = set(judged.nodes) - set(judged.heard)
        if self.folder is not None:
            self._line = judged.line(model)
        told = together([come.metrics[n] for n in judged.heard], self.weighted_by_key, self.train_metrics_aggr_fn)
        told.update(judged.metrics(self.reputation.shares()))
        if judged.result is None:
            return sent, told
        self._history = judged.result.history
        updated = as_record(judged.result.update)
        self._measure_from(updated)
        return updated, told

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Medians of what the nodes report, or the app's own function, without those whose training was not trusted."""
        found: dict[int, RecordDict] = {}
        failed: dict[int, str] = {}
        unheard: set[int] = set()
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                failed.setdefault(node, short(reply.error.reason))
            elif node in self._unheard:
                unheard.add(node)
            elif node not in found:
                found[node] = kept(reply.content, self.evaluate_metrics_aggr_fn)
        if found or unheard or failed:
            told = (len(found), len(failed), len(unheard))
            log.info("aggregate_evaluate: heard %d nodes, %d failed; %d trained without being trusted", *told)
        for node, reason in failed.items():
            log.warning("\t> Node %d failed: %s", node, reason)
        if not found:
            return None
        return together([found[n] for n in sorted(found)], self.weighted_by_key, self.evaluate_metrics_aggr_fn)

    def _judged(
        self, server_round: int, replies: Iterable[Message], judging: Round[Any], model: Model, come: ReplyMetadata
    ) -> Judged:
        seen: set[int] = set()
        looking = 0.0
        for reply in replies:
            begin = time.monotonic()
            node = reply.metadata.src_node_id
            if node in seen:
                log.warning("Node %d replied again; its first reply counts.", node)
            else:
                self._take(node, reply, judging, model, come)
            seen.add(node)
            looking += time.monotonic() - begin
            del reply  # with it the bytes of what was refused or spilled
        last = time.monotonic()
        result, refused = None, None
        try:
            result = judging.close()
        except TooFewClientsError as too_few:
            refused = too_few
        return Judged(
            server_round,
            sorted(judging.clients),
            come.failed,
            result,
            refused,
            None if self.sizes is None else come.sizes,
            waiting=last - self._asked_at - looking,
            looking=looking,
            after=time.monotonic() - last,
        )

    def _take(self, node: int, reply: Message, judging: Round[Any], model: Model, come: ReplyMetadata) -> None:
        if reply.has_error() and not isinstance(reply.error, Unusable):
            come.failed[node] = short(reply.error.reason)
            return
        update: Any
        size = 1.0
        try:
            if reply.has_error():
                raise ValueError(reply.error.reason)
            size = self._size(node, reply.content)
            update = model.decode(only_arrays(reply.content))
        except ValueError as wrong:
            update = Unreadable(short(wrong))
        try:
            wrong_with_it = judging.add(update, node, size)
        except OSError as full:  # there is no room in `spill`: a node is absent, and the round goes on
            come.failed[node] = short(full)
            return
        come.sizes[node] = size
        # Of what is quarantined already nothing is kept.
        come.metrics[node] = RecordDict() if wrong_with_it else kept(reply.content, self.train_metrics_aggr_fn)

    def _size(self, node: int, content: RecordDict) -> float:
        if self.sizes is None:
            return 1.0
        if isinstance(self.sizes, Mapping):
            if node not in self.sizes:
                raise ValueError("sizes gives no number for this node")
            return float(self.sizes[node])
        assert self.size_cap is not None
        return min(reported(content, self.weighted_by_key), self.size_cap)

    def _measure_from(self, arrays: ArrayRecord) -> None:
        self._sent, self._model = arrays, Model.of(arrays)

    def _remember(self, messages: list[Message]) -> None:
        """Whom a round asks and with which model: as it is sent, whoever configured it."""
        asked = [message for message in messages if message.metadata.message_type.partition(".")[0] == "train"]
        if asked:
            self._asked = [message.metadata.dst_node_id for message in asked]
            self._asked_at = time.monotonic()
            records = of_kind(asked[0].content, ArrayRecord)
            if len(records) == 1:
                self._measure_from(records[0])

    def _record(self, lines: record.Lines, line: dict[str, Any], seconds: float, arrays: ArrayRecord) -> None:
        assert self.folder is not None
        state = (tuple(map(float, self._history)), self.reputation.as_dict(), Model.of(arrays).arrays)
        with record.as_far_as_there_is_room():
            lines.add(line, map(str, sorted(self._asked)))
            record.save(self.folder, record.Saved(line["round"], seconds, *state, self._settings))

    @property
    def _settings(self) -> dict[str, str]:
        return record.settings(self.aggregator, self.sizes, self.size_cap)


def fewest(rule: Rule | CoordinateWise) -> int:
    """How many clients a rule needs."""
    for n in count(1):
        try:
            rule.check(n)
        except TooFewClientsError:
            continue
        return n
    raise AssertionError
