"""NVFlare's ModelAggregator with a robust rule: results are checked as they arrive, and none can end the job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from bartizan import records, registry
from bartizan._util.text import quoted, short
from bartizan.aggregate import Aggregator, rule_of
from bartizan.errors import server_problem
from bartizan.judge.client_reports import SizePolicy, median_metrics
from bartizan.judge.reputation import Reputation, Suspect
from bartizan.judge.round_outcome import RoundOutcome
from bartizan.measure.sketches import named
from bartizan.nvflare.job_record import write_lines, write_record
from bartizan.nvflare.running_job import RunningJob
from bartizan.nvflare.site_results import check_layout, in_library_of, mapped, n_bytes, zeros_like
from bartizan.round import Round
from bartizan.sources.adapters.adapter_round import AdapterRound, check_adapters
from bartizan.sources.adapters.adapters import LoRA
from bartizan.updates.column_pass import as_bytes
from bartizan.updates.files import is_place
from bartizan.updates.layout import Unreadable
from bartizan.updates.parse import reason_of
from bartizan.watch.base import Guarded, Watch, check_watcher, watcher

AnyRound = Round[Any] | AdapterRound
ON_A_SITE = (
    "RobustAggregator runs on the server only, and this job runs it on a site, as swarm learning does: a Byzantine "
    "site would decide every round that it aggregates, and no rule prevents that. Use a recipe whose server "
    "aggregates, such as FedAvgRecipe."
)
EXTRA_BYTES = 192 * 2**20  # besides the result, that a round may use where NVFlare keeps the tensors on disk


@dataclass
class SiteRound(RoundOutcome):
    """The results of one round: a `Round` for whole models, one for differences; most sites use one of them only."""

    model: Any = None  # the parameters that were sent
    asked: set[str] = field(default_factory=set)
    rounds: dict[ParamsType, AnyRound] = field(default_factory=dict)
    metrics: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """The sites that are clients of one of the rounds."""
    closed: bool = False


class RobustAggregator(ModelAggregator):
    """Aggregate the results of sites by any of bartizan's rules, exact or projected.

    For the `aggregator=` of a recipe. All arguments are names, numbers and dicts of them, since NVFlare exports jobs
    as JSON. Each result is compared with the model that was sent and sketched when it arrives. One that can't be used
    is quarantined with a reason; a site that answers with an error, or not at all, has failed. If too few are left for
    the rule, the old model is kept and the job goes on. It runs on the server: a job that runs it on a site, as swarm
    learning does, is ended at its start.

    Args:
        rule: The name of a rule, ``"pre >> rule"`` included, such as ``"multi-krum"``; see `bartizan.rule`. If left
            out, the default rule for `n_byzantine`.
        n_byzantine: How many of the sites of one round may be Byzantine, for the rules that take it.
        sketch: The name of a sketch; ``"auto"`` is `Rotated`, which reads results on arrival.
        rule_settings: Other settings of the rule, such as ``{"n_selected": 4}``.
        sketch_settings: Settings of the sketch, such as ``{"k": 1024}``.
        sizes: None counts every site alike; ``"reported"`` takes their NUM_STEPS_CURRENT_ROUND, up to `size_cap`; a
            dict gives the size of each site by its name (others are quarantined).
        size_cap: The most steps that a site can claim; needed with ``sizes="reported"``.
        timeout: Seconds from the first request of a round after which it ends without the sites that have not
            answered; NVFlare's FedAvg has no such limit.
        spill: A folder on the server to keep results in instead of memory. Not needed where NVFlare keeps tensors on
            disk (`enable_tensor_disk_offload`): those are mapped.
        memory: The most memory that a round may use, as in `aggregate`; by default no limit, and where NVFlare keeps
            tensors on disk the size of the model and 192 MiB.
        adapters: For models that are LoRA adapters: the arguments of `bartizan.lora.LoRA`, such as ``{"alpha": 16}``.
            Sites send whole adapters, whose ranks may differ; the global adapter keeps its own.
        watch: A ready-made callback of `bartizan.watch` that follows the job: its name, or a dict of its ``"name"`` and
            settings, such as ``{"name": "tensorboard", "folder": "/logs"}``. What it raises is logged, and the job
            goes on.
    """

    def __init__(
        self,
        rule: str | None = None,
        n_byzantine: int | None = None,
        sketch: str = "auto",
        rule_settings: dict[str, Any] | None = None,
        sketch_settings: dict[str, Any] | None = None,
        sizes: str | dict[str, float] | None = None,
        size_cap: float | None = None,
        timeout: float | None = None,
        spill: str | None = None,
        memory: int | str | None = None,
        adapters: dict[str, Any] | None = None,
        watch: str | dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # NVFlare exports an argument only if there is an attribute of its name.
        self.rule, self.n_byzantine, self.sketch = rule, n_byzantine, sketch
        self.rule_settings, self.sketch_settings = rule_settings, sketch_settings
        self.sizes, self.size_cap, self.timeout = sizes, size_cap, timeout
        self.spill, self.memory = None if spill is None else os.fspath(spill), memory
        self.adapters, self.watch = adapters, watch
        if watch is not None:
            check_watcher(**({"name": watch} if isinstance(watch, str) else watch))
        for name, text in (("rule", "" if rule is None else rule), ("sketch", sketch)):
            if not isinstance(text, str):
                raise TypeError(f"{name} must be a name, since NVFlare exports jobs as JSON; got {text!r}.")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")
        if memory is not None:
            as_bytes(memory)
        known = {} if n_byzantine is None else {"n_byzantine": n_byzantine}
        if rule is None and rule_settings:
            raise TypeError(f"rule_settings are those of a rule by name: pass rule, or leave {rule_settings!r} out.")
        chosen = rule_of(rule, n_byzantine) if rule is None else registry.rule(rule, **known, **(rule_settings or {}))
        chosen.check_trusted(False)
        # "auto" takes no settings
        named = sketch if sketch == "auto" and not sketch_settings else registry.sketch(sketch, **sketch_settings or {})
        self._aggregator = Aggregator(chosen, named)
        if not isinstance(adapters, (dict, type(None))):
            raise TypeError(
                f'adapters must be a dict of the settings of LoRA, such as {{"alpha": 16}}, got {adapters!r}.'
            )
        self._lora = None if adapters is None else LoRA(**adapters)
        if self._lora is not None:
            check_adapters(self._aggregator, self._lora, spill=spill, memory=memory)
        self._size_policy = SizePolicy(sizes, size_cap)  # type: ignore[arg-type]
        self._job = RunningJob(timeout)
        self._round = SiteRound()
        self._kind = ParamsType.FULL
        self._history: tuple[float, ...] = ()
        self._rounds: list[dict[str, Any]] = []
        self._lines: list[dict[str, Any]] = []  # the same as those of results.jsonl
        self.reputation = Reputation()

    def suspects(self, odds: float = 0.05) -> list[Suspect]:
        """Return the sites that were quarantined, or left out or failed more often than chance explains."""
        return self.reputation.suspects(odds)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Learn from NVFlare's events which model was sent to which sites, and which of them failed."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN and self._job.on_a_site(fl_ctx):
            self.system_panic(ON_A_SITE, fl_ctx)
        elif event_type == EventType.END_RUN and self._lines:
            self._add_line({"kind": "end", "status": "finished"}, self._job.result_folder(fl_ctx))
        elif event_type == AppEventType.BEFORE_TRAIN_TASK:
            if self._job.attach(self, fl_ctx) and self._round.model is None:
                sent = FLModelUtils.from_shareable(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE))
                self._round.model, self._round.round = sent.params, sent.current_round
                self._job.start_clock()
            self._round.asked |= self._job.targets()
        elif event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            accepted, site = fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED), self._job.sender(fl_ctx)
            if accepted is False and site is not None:
                code = short(fl_ctx.get_prop(FLContextKey.TASK_RESULT).get_return_code())
                self._round.failed.setdefault(site, f"its result holds no usable parameters (return code {code})")

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take a result from ScatterAndGather, which also passes on results of finished rounds."""
        self.fl_ctx = fl_ctx
        site = self._job.sender(fl_ctx)  # what the result itself says of its sender is not trusted
        if site is None:
            self.warning("A result came after its round was over, and is not used.")
            return False
        try:
            model = FLModelUtils.from_shareable(shareable)
        except Exception as error:  # a site's message may raise anything
            self._round.failed.setdefault(site, short(reason_of(error)))
            return False
        model.meta["client_name"] = site
        return self.accept_model(model)

    def accept_model(self, model: FLModel) -> bool:
        """Check and sketch one site's result; return whether it can take part."""
        now, site = self._round, str(model.meta.get("client_name", AppConstants.CLIENT_UNKNOWN))
        if now.closed or site in now.seen:  # controllers pass on one result at a time
            why = "came after its round was over" if now.closed else "is not its first one"
            self.warning(f"A result of site {short(site)} {why}, and is not used.")
            return False
        if None not in (now.round, model.current_round) and now.round != model.current_round:
            now.failed[site] = f"its result is of round {quoted(model.current_round, 60)}"
            return False
        size, kind = 1.0, model.params_type or ParamsType.FULL
        if self._lora is None:
            update = mapped_or_unreadable(model.params, self._sent())
        elif kind == ParamsType.FULL:
            update = mapped_or_unreadable(model.params, None)  # compared with the model when the round is closed
        else:
            update, kind = Unreadable("it sent differences of factors; wanted whole adapters"), ParamsType.FULL
        try:
            size = self._size_policy.of(site, lambda: model.meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND))
        except ValueError as wrong:
            update = Unreadable(short(wrong))
        try:
            reason = self._opened(now, kind).add(update, site, size)
        except Exception as wrong:  # no room in `spill`, no memory: the site has failed, and the round goes on
            now.failed[site] = server_problem(wrong)
            return False
        now.seen.add(site)
        if self.sizes is not None:
            now.sizes[site] = size
        now.metrics[site] = model.metrics if isinstance(model.metrics, dict) else {}
        return reason is None

    def aggregate_model(self) -> FLModel:
        """Weigh and combine the results of the round; if too few are usable, return the old model."""
        self._job.stop_clock()
        now, sent = self._round, self._sent()
        now.closed = True
        kind = max(now.rounds, key=lambda kind: (len(now.rounds[kind]), kind == self._kind), default=self._kind)
        if not now.rounds:
            now.rounds[kind] = self._aggregator.round()
        opened = now.rounds[kind]
        for site in sorted(now.seen - set(opened.clients)):
            opened.add(Unreadable(f"it did not send {kind.value} parameters, as most sites did"), site)
        for site in sorted((now.asked | set(now.failed)) - now.seen):
            opened.fail(site, now.failed.get(site, "it sent no result"))
        now.close(opened)
        self._record(now)
        metrics = median_metrics([now.metrics[site] for site in now.trusted])
        self._kind = kind
        self._discard(now)
        if now.result is not None:
            self._history = now.result.history
            return FLModel(kind, in_library_of(sent, now.result.update), metrics=metrics or None)
        if sent is None:
            raise RuntimeError(f"The round was refused, and there is no global model to keep: {now.refused}")
        return FLModel(kind, sent if kind == ParamsType.FULL else zeros_like(sent))

    def reset_stats(self) -> None:
        """Discard the results of this round, and begin another."""
        self._job.stop_clock()
        self._discard(self._round)
        self._round = SiteRound()

    def _sent(self) -> Any:
        """Return the model that the sites were sent; None where NVFlare does not tell."""
        if self._round.model is not None or self.fl_ctx is None:
            return self._round.model
        return (self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) or {}).get("weights")

    def _opened(self, now: SiteRound, kind: ParamsType) -> AnyRound:
        if kind not in now.rounds and self._lora is not None:
            now.rounds[kind] = AdapterRound(
                self._aggregator, self._lora, reference=self._sent() or None, history=self._history
            )
        elif kind not in now.rounds:
            memory, reference = self.memory, self._sent() if n_bytes(self._sent()) else None
            if memory is None and self._job.tensors_on_disk():
                memory = n_bytes(reference) + EXTRA_BYTES
            now.rounds[kind] = self._aggregator.round(
                reference=reference if kind == ParamsType.FULL else None,
                history=self._history,
                spill=self.spill,
                memory=memory,
            )
        return now.rounds[kind]

    def _discard(self, now: SiteRound) -> None:
        now.closed = True
        for opened in now.rounds.values():
            opened.__exit__()
        now.rounds, now.model = {}, None

    def _record(self, now: SiteRound) -> None:
        """Log the round, add it to the reputation, and write both into the job's results."""
        self.info(str(now))
        for warning in now.warnings(self._aggregator.rule, "site"):
            self.warning(warning)
        now.add_to(self.reputation)
        sizes = None if self.sizes is None else now.sizes
        line: dict[str, Any] = {"round": now.round, "weights": now.weights, "sizes": sizes}
        line |= {"quarantined": now.quarantined, "failed": now.failed, "refused": now.refused or None}
        if (result := now.result) is not None:
            line |= {"n_byzantine": result.n_byzantine, **named(result.sketch), "seed": str(result.seed)}
        self._rounds.append(line)
        folder = self._job.result_folder(self.fl_ctx)
        if folder is not None:
            settings = {"rule": repr(self._aggregator.rule), "sizes": str(self._size_policy)}
            with self._logging_errors():
                write_record(Path(folder), settings, self._rounds, self.reputation)
        if not self._lines:
            rule, sketch = repr(self._aggregator.rule), str(self._aggregator.sketch)
            self._add_line(records.deployment_line("nvflare", rule, sketch, None), None)
        self._add_line({"kind": "round", **now.line(), "round": len(self._rounds)}, folder)

    def _add_line(self, line: dict[str, Any], folder: str | None) -> None:
        """Add a line to results.jsonl, which is written into `folder`, and pass it to `watch`."""
        self._lines.append(line)
        Guarded(None if self.watch is None else lambda line: self._watcher(line), self.error)(line)
        if folder is not None:
            with self._logging_errors():
                write_lines(Path(folder), self._lines)

    @cached_property
    def _watcher(self) -> Watch:
        """Return the callback, which is made at its first line: a job is exported elsewhere than where it runs."""
        assert self.watch is not None
        return watcher(**({"name": self.watch} if isinstance(self.watch, str) else self.watch))

    @contextmanager
    def _logging_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as full:
            self.error(f"The record of the rounds can't be written: {full}")


def mapped_or_unreadable(params: Any, sent: Any) -> Any:
    """Return the parameters, mapped where they are on disk, or why they do not fit the model that was sent."""
    try:
        if is_place(params):  # a round would open it, with the rights of the server
            raise TypeError(f"its parameters are a {type(params).__name__}, not arrays")
        update = mapped(params)
        if n_bytes(sent):
            check_layout(update, sent)
        return update
    except Exception as error:  # a site's container may raise anything
        return Unreadable(reason_of(error))
