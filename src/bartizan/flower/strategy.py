"""Flower's FedAvg with robust aggregation: replies are checked as they arrive, and none can end the run."""

from __future__ import annotations

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

from bartizan import records
from bartizan._util.text import short
from bartizan.aggregate import Aggregator
from bartizan.errors import server_problem
from bartizan.flower.committed_nodes import CommittedNodes, check_committed
from bartizan.flower.grids import MissingNodesError, StreamingGrid, UnusableReply, wait_for_nodes
from bartizan.flower.kept_replies import KeptReplies
from bartizan.flower.nodes_outcome import NodesOutcome
from bartizan.flower.replies import (
    MetricsFunction,
    Model,
    aggregate_metrics,
    arrays_of,
    as_record,
    evaluation_metrics,
    keep,
    medians,
    records_of,
    reported_size,
    without_arrays,
)
from bartizan.flower.reply_limits import Limits
from bartizan.flower.run_record import RunRecord
from bartizan.flower.saved_state import Saved
from bartizan.judge.client_reports import SizePolicy
from bartizan.judge.reputation import Reputation, Suspect
from bartizan.measure import Sketch
from bartizan.round import Round
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sources.adapters.adapter_round import AdapterRound, check_adapters
from bartizan.sources.adapters.adapters import LoRA, server_adapter
from bartizan.updates.layout import Unreadable
from bartizan.watch.base import Guarded, Watch

AnyRound = Round[Any] | AdapterRound
log = logging.getLogger("flwr")


class RobustStrategy(FedAvg):
    """FedAvg with any of bartizan's rules in place of the mean, exact or projected.

    Nodes send whole models, as they do for FedAvg. Each reply is checked against the model that was sent and sketched
    when it arrives; distances are taken from that model. A reply that can't be used is quarantined with a reason; a
    node that answers with an error, too late or not at all has failed. The rule runs with as many `n_byzantine` as it
    admits for the others; if they are too few, the old model is kept and the run goes on.

    Args:
        rule: The rule that weighs the replies, such as ``MultiKrum(n_byzantine=3)``, or a name such as "median".
            If left out, the default rule for `n_byzantine`.
        sketch: The sketch of the replies; ``"auto"`` is `Rotated()`, which reads them on arrival.
        n_byzantine: How many of the nodes asked in one round may be Byzantine, for the default rule or a rule by name.
        sizes: None counts every node alike; ``"reported"`` takes their `weighted_by_key`, up to `size_cap`; a mapping
            gives the size of each node id (others are quarantined).
        size_cap: The most examples that a node can claim; needed with ``sizes="reported"``.
        trusted_fn: For rules that need a trusted update: (round, global model) -> the server's own model.
        adapters: For models that are LoRA adapters (peft's state dict): how they are read and combined. The nodes'
            ranks may differ; the global adapter keeps its own.
        committed: The file of a record: nodes with `committed_mod` then commit to their updates and send sketches, and
            only those with weight send the rest, in several exchanges of one round; `bartizan verify` replays it.
        spill: A folder to keep replies in instead of memory.
        folder: Where the run is recorded, for `bartizan report`, and from where it continues after a restart.
        keep_replies: Keep replies in `folder`, instead of `spill`, until their round is combined: a server that was
            killed goes on with its round, and does not ask these nodes again.
        name: The name of the run there.
        watch: Called with each line of the run as it stands in its results.jsonl, for tracking (`bartizan.watch`); of a
            run that is continued with the earlier ones too. What it raises is logged, and the run goes on.
        min_train_nodes: How many nodes to ask at least; by default the fewest that the rule needs.
        min_available_nodes: How many nodes must be connected; by default as many as `min_train_nodes`.
        connect_timeout: Seconds that a round waits for them to connect; then the round keeps the old model.
        max_missed_rounds: After so many rounds in a row with too few nodes the run ends.
        fedavg: FedAvg's other parameters.
    """

    def __init__(
        self,
        rule: Rule | CoordinateWise | str | None = None,
        sketch: Sketch | Literal["auto"] = "auto",
        *,
        n_byzantine: int | None = None,
        sizes: Literal["reported"] | Mapping[int, float] | None = None,
        size_cap: float | None = None,
        trusted_fn: Callable[[int, ArrayRecord], ArrayRecord] | None = None,
        adapters: LoRA | None = None,
        committed: str | os.PathLike[str] | None = None,
        spill: str | os.PathLike[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        keep_replies: bool = False,
        name: str = "flower",
        watch: Watch | None = None,
        min_train_nodes: int | None = None,
        min_available_nodes: int | None = None,
        connect_timeout: float = 600.0,
        max_missed_rounds: int = 5,
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        **fedavg: Any,
    ) -> None:
        self.aggregator = Aggregator(rule, sketch, n_byzantine=n_byzantine)
        least = next(n for n in count(2) if self.aggregator.rule.admits(n))
        asked = least if min_train_nodes is None else min_train_nodes
        super().__init__(
            min_train_nodes=asked,
            min_available_nodes=asked if min_available_nodes is None else min_available_nodes,
            train_metrics_aggr_fn=train_metrics_aggr_fn or medians,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or medians,
            **fedavg,
        )
        if not connect_timeout >= 0:
            raise ValueError(f"connect_timeout must be a number of seconds, 0 or more, got {connect_timeout!r}.")
        if not max_missed_rounds >= 1:
            raise ValueError(f"max_missed_rounds must be 1 or more, got {max_missed_rounds!r}.")
        self._size_policy = SizePolicy(sizes, size_cap)
        self.aggregator.rule.check_trusted(trusted_fn is not None)
        if adapters is not None:
            check_adapters(self.aggregator, adapters, spill=spill)
        check_committed(committed, self.aggregator, sizes=sizes, trusted_fn=trusted_fn, adapters=adapters)
        self.committed = committed
        self.sizes, self.size_cap, self.trusted_fn, self.adapters = sizes, size_cap, trusted_fn, adapters
        self.spill, self.name, self.watch = spill, name, watch
        self.connect_timeout, self.max_missed_rounds = connect_timeout, max_missed_rounds
        self.folder = None if folder is None else Path(folder).expanduser()
        self._kept: KeptReplies | None = None
        if keep_replies:
            if self.folder is None or not (spill is None and adapters is None and committed is None):
                raise ValueError("keep_replies needs folder=, and has no spill, adapters or committed rounds.")
            self._kept = KeptReplies(self.folder)
        self.reputation = Reputation()
        self.quarantined: dict[int, str] = {}
        """Nodes whose reply of the last round could not be used, with the reason."""
        self.failed: dict[int, str] = {}
        """Nodes that were asked in the last round and sent no reply, or an error, with the reason."""
        self._history: tuple[float, ...] = ()
        self._model: Model | None = None
        self._asked: list[int] = []
        self._asked_at = 0.0
        self._trusted: set[int] = set()  # nodes whose last training was trusted
        self._line: dict[str, Any] | None = None
        self._exchange: tuple[Any, float] = (None, 0.0)  # the grid and the timeout of committed rounds
        self._missing = ""  # why this round asked no nodes; empty where it did

    def suspects(self, odds: float = 0.05) -> list[Suspect]:
        """Return the nodes that were quarantined, or left out or failed more often than chance explains."""
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
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run as Flower does; with a `folder` that holds an unfinished run, continue after its last round."""
        began = time.monotonic()
        model = Model.of(initial_arrays)  # raises now if it can't be aggregated, not at the first reply
        if self.adapters is not None:
            server_adapter("The global model", model.arrays, self.adapters)
        watch = Guarded(self.watch, log.error)
        first = records.deployment_line(self.name, self._settings["rule"], self._settings["sketch"], model.dim)
        with RunRecord(self.folder, first) as record:
            saved = record.load(model, self._settings)
            for earlier in record.lines():
                watch(earlier)
            arrays = initial_arrays
            if saved.round:
                log.info("Going on with the run in %s after round %d.", self.folder, saved.round)
                arrays = ArrayRecord(dict(saved.arrays))
            if saved.round and saved.round >= num_rounds:
                log.warning("The run in %s is done: nothing is trained. For another, take another folder.", self.folder)
            elif self.folder is not None and num_rounds and not self.folder.is_absolute():
                log.warning("The run is recorded in %s: give folder= as an absolute path.", self.folder.absolute())
            self.quarantined, self.failed, self._trusted, self._line = {}, {}, set(), None
            self.reputation, self._history = saved.reputation, saved.history
            self._model = Model.of(arrays)
            log.info("Starting %s strategy:", type(self).__name__)
            self.summary()
            streaming: Any = self._streaming(grid, Limits.of(arrays))
            result, missed = Result(arrays), 0
            train, evaluate = train_config or ConfigRecord(), evaluate_config or ConfigRecord()

            def evaluate_globally(t: int) -> MetricRecord | None:
                metrics = None if evaluate_fn is None else evaluate_fn(t, result.arrays)
                return keep(result.evaluate_metrics_serverapp, t, metrics)

            evaluate_globally(saved.round)
            for t in range(saved.round + 1, num_rounds + 1):
                log.info("[ROUND %d/%d]", t, num_rounds)
                asked = self.configure_train(t, result.arrays, train, streaming)
                if self.committed is None:
                    replies = streaming.send_and_receive(asked, timeout=timeout)
                else:  # the questions, which go out with the round's opening
                    replies = asked = list(asked)
                    self._exchange = (streaming, timeout)
                updated, metrics = self.aggregate_train(t, replies)
                result.arrays = result.arrays if updated is None else updated
                keep(result.train_metrics_clientapp, t, metrics)
                asked = self.configure_evaluate(t, result.arrays, evaluate, streaming)
                replies = streaming.send_and_receive(asked, timeout=timeout)
                keep(result.evaluate_metrics_clientapp, t, self.aggregate_evaluate(t, replies))
                metrics = evaluate_globally(t)
                if self._line is not None:
                    line, self._line = self._line, None
                    for field, key in (("accuracy", "accuracy"), ("test_loss", "loss")):
                        if metrics is not None and isinstance(metrics.get(key), (int, float)):
                            line[field] = metrics[key]
                    seconds = saved.seconds + time.monotonic() - began
                    state = (self._history, self.reputation, self._settings, result.arrays)
                    record.add(line, map(str, sorted(self._asked)), Saved(t, seconds, *state))
                    watch({"kind": "round", **line})
                missed = missed + 1 if self._missing and not self._asked else 0
                if missed >= self.max_missed_rounds:
                    log.error("The run ends: %d rounds in a row had too few nodes. %s", missed, self._missing)
                    break
            status = "stopped" if missed >= self.max_missed_rounds else "finished"
            watch(record.end(saved.seconds + time.monotonic() - began, status))
        log.info("Final results:")
        for line in str(result).splitlines():
            log.info("\t%s", line)
        for suspect in self.suspects():
            log.warning("Suspect: %s", suspect)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the round as FedAvg does; ask nobody if too few nodes connect in time."""
        self._model, self._asked, self._missing = Model.of(arrays), [], ""
        connected = self._connected(grid, self.fraction_train, self.min_train_nodes)
        messages = [] if connected is None else super().configure_train(server_round, arrays, config, connected)
        if self._kept is None or connected is None:
            return messages
        messages = self._kept.unanswered(server_round, self._model, messages)
        self._asked, self._asked_at = list(self._kept.sizes), time.monotonic()
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the evaluation as FedAvg does; ask nobody if too few nodes connect in time."""
        connected = self._connected(grid, self.fraction_evaluate, self.min_evaluate_nodes)
        return [] if connected is None else super().configure_evaluate(server_round, arrays, config, connected)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add each reply to the round when it comes, then combine; if too few are usable, return the old model."""
        if self.fraction_train == 0.0:
            return None, None
        model = self._model
        if model is None:
            raise RuntimeError("aggregate_train was called before configure_train: there is no model to measure from.")
        outcome = NodesOutcome(server_round, refused=self._missing)
        if not self._missing:
            self._aggregate(server_round, replies, model, outcome)
        log.info("%s", outcome)
        for line in outcome.warnings(self.aggregator.rule, "node"):
            log.warning("%s", line)
        outcome.add_to(self.reputation)
        self.quarantined, self.failed = outcome.quarantined, outcome.failed
        self._trusted.difference_update(self._asked, outcome.clients, outcome.failed)
        self._trusted.update(outcome.trusted)
        if self.folder is not None or self.watch is not None:
            self._line = outcome.measured_line(model)
        contents = [outcome.contents[node] for node in outcome.trusted if node in outcome.contents]
        metrics = aggregate_metrics(contents, self.weighted_by_key, self.train_metrics_aggr_fn)
        metrics.update(outcome.metrics(self.reputation.shares()))
        if outcome.result is None:
            return model.record, metrics
        self._history = outcome.result.history
        self._model = Model.of(as_record(outcome.result.update))
        return self._model.record, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregate the metrics of the nodes whose last training was trusted, or of all if nobody trains."""
        trusted = None if self.fraction_train == 0.0 else self._trusted
        return evaluation_metrics(replies, trusted, self.weighted_by_key, self.evaluate_metrics_aggr_fn)

    def _streaming(self, grid: Grid, limits: Limits) -> StreamingGrid:
        return StreamingGrid(grid, limits, self._on_send)

    def _connected(self, grid: Grid, fraction: float, least: int) -> Any:
        """Wait for enough nodes and return a grid with them; None, with `_missing` set, if too few connect."""
        if fraction == 0.0:  # FedAvg asks nobody
            return grid
        # A round that has waited for its training does not wait again for its evaluation.
        patience = 0.0 if self._missing else self.connect_timeout
        try:
            return wait_for_nodes(grid, fraction, max(least, self.min_available_nodes), patience)
        except MissingNodesError as missing:
            self._missing = str(missing)
            log.warning("Nobody is asked: %s", missing)
            return None

    def _aggregate(self, server_round: int, replies: Iterable[Message], model: Model, outcome: NodesOutcome) -> None:
        try:
            opened: Any = None
            if self.committed is None:
                opened = self._opened(server_round, model)
            else:
                opened = self._committed(replies, model, outcome)
        except Exception as wrong:  # of the app's trusted_fn, or of `spill`
            outcome.refused = server_problem(wrong)
            return
        if isinstance(opened, CommittedNodes):
            outcome.close(opened)
            outcome.after = time.monotonic() - self._asked_at
            return
        with opened:
            seen = set(opened.clients)
            if self._kept is not None and self.sizes is not None:
                outcome.sizes |= {node: self._kept.sizes[node] for node in seen}
            for reply in replies:
                begin = time.monotonic()
                node = reply.metadata.src_node_id
                if node in seen:
                    log.warning("Node %d replied again; its first reply counts.", node)
                else:
                    self._read_reply(node, reply, opened, model, outcome)
                seen.add(node)
                outcome.reading += time.monotonic() - begin
                del reply  # frees the bytes of a reply that was refused or spilled
            last = time.monotonic()
            outcome.close(opened)
            outcome.waiting = last - self._asked_at - outcome.reading
            outcome.after = time.monotonic() - last

    def _opened(self, server_round: int, model: Model) -> AnyRound:
        trusted = None if self.trusted_fn is None else model.decode(self.trusted_fn(server_round, model.record))
        start: dict[str, Any] = {"reference": model.arrays, "trusted": trusted, "history": self._history}
        if self.adapters is None:
            folder = None if self._kept is None else self._kept.of(server_round, model)
            return self.aggregator.round(**start, spill=self.spill, folder=folder)
        return AdapterRound(self.aggregator, self.adapters, **start)

    def _committed(self, questions: Iterable[Message], model: Model, outcome: NodesOutcome) -> CommittedNodes:
        """Open a committed round whose clients are the nodes of these questions."""

        def on_opened(node: int, reply: Message) -> None:
            content = RecordDict() if reply.has_error() else reply.content
            outcome.contents[node] = without_arrays(content, self.train_metrics_aggr_fn)

        options = {"record": self.committed, "spill": self.spill, "history": self._history}
        grid, timeout = self._exchange
        return CommittedNodes(self.aggregator, model, list(questions), grid, on_opened, timeout, **options)

    def _read_reply(self, node: int, reply: Message, opened: Any, model: Model, outcome: NodesOutcome) -> None:
        if reply.has_error() and not isinstance(reply.error, UnusableReply):
            opened.fail(node, short(reply.error.reason))
            return
        update: Any
        size = 1.0
        try:
            if reply.has_error():
                raise ValueError(reply.error.reason)
            size = self._size_policy.of(node, lambda: reported_size(reply.content, self.weighted_by_key))
            update = model.decode(arrays_of(reply.content), any_rank=self.adapters is not None)
        except ValueError as wrong:
            update = Unreadable(short(wrong))
        try:
            quarantined = opened.add(update, node, size)
        except Exception as wrong:  # no room in `spill`, no memory: the node counts as failed, and the round goes on
            opened.fail(node, server_problem(wrong))
            return
        if self.sizes is not None:
            outcome.sizes[node] = size
        kept = None if quarantined else without_arrays(reply.content, self.train_metrics_aggr_fn)
        outcome.contents[node] = kept

    def _on_send(self, messages: list[Message]) -> None:
        """Take the nodes and the model of a round from its messages, since a subclass may configure them."""
        asked = [message for message in messages if message.metadata.message_type.partition(".")[0] == "train"]
        if asked and (self.committed is None or records_of(asked[0].content, ArrayRecord)):
            kept = () if self._kept is None else self._kept.sizes
            self._asked = [*kept, *(message.metadata.dst_node_id for message in asked)]
            self._asked_at = time.monotonic()
            arrays = records_of(asked[0].content, ArrayRecord)
            if len(arrays) == 1:
                self._model = Model.of(arrays[0])

    @property
    def _settings(self) -> dict[str, str]:
        """The rule, sketch and sizes as text that is logged, recorded and compared at a restart."""
        rule, sketch = repr(self.aggregator.rule), str(self.aggregator.sketch)
        more = {} if self.adapters is None else {"adapters": repr(self.adapters)}
        return {"rule": rule, "sketch": sketch, "sizes": str(self._size_policy), **more}
