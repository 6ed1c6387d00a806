"""The outcome of one round, and how it is reported: in Flower's log, in its metrics and in results.jsonl."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import RecordDict

from bartizan._util.types import Floats
from bartizan.flower.replies import Model
from bartizan.judge.byzantine_budget import lowered
from bartizan.result import Aggregation
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sources.adapters.adapter_round import AdapterAggregation

log = logging.getLogger("flwr")


@dataclass
class RoundOutcome:
    """Metrics and sizes of one round's replies, and the rule's result or the reason that there is none."""

    round: int
    result: Aggregation[Any] | None = None
    refused: str = ""
    """Why there is no result; empty where there is one."""
    quarantined: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    """Nodes whose replies were read, in ascending order."""
    contents: dict[int, RecordDict] = field(default_factory=dict)
    """The replies' metrics, by node."""
    sizes: dict[int, float] = field(default_factory=dict)
    """How much each node counted; empty where all counted alike."""
    waiting: float = 0.0
    """Seconds from the request to the last reply, without those spent on reading replies."""
    reading: float = 0.0
    after: float = 0.0
    """Seconds after the last reply."""

    def accept(self, result: Aggregation[Any]) -> None:
        self.result, self.quarantined, self.failed = result, dict(result.quarantined), dict(result.failed)

    def refuse(self, why: str, quarantined: Mapping[int, str], failed: Mapping[int, str]) -> None:
        self.refused, self.quarantined, self.failed = why, dict(quarantined), dict(failed)

    @property
    def weights(self) -> dict[int, float] | None:
        """Weights by node; None for a coordinate-wise rule, and where the round was refused."""
        return None if self.result is None else self._by_node(self.result.weights)

    @property
    def scores(self) -> dict[int, float] | None:
        """Distances to the weighted centre by node; None where the rule took no distances."""
        return None if self.result is None else self._by_node(self.result.scores)

    @property
    def trusted(self) -> list[int]:
        """Nodes whose metrics are used: those neither quarantined nor without weight; none if the round was refused."""
        if self.result is None:
            return []
        quarantined, weights = self.quarantined, self.weights
        return [node for node in self.nodes if node not in quarantined and (weights is None or weights[node] > 0)]

    def _by_node(self, values: Floats | None) -> dict[int, float] | None:
        if self.result is None or values is None:
            return None
        return dict(zip(self.result.clients, values.tolist(), strict=True))

    def log(self, rule: Rule | CoordinateWise) -> None:
        quarantined = self.quarantined
        counts = (len(self.nodes) - len(quarantined), len(quarantined), len(self.failed))
        f = None if self.result is None else self.result.n_byzantine
        ran = "" if f is None else f"; the rule ran with n_byzantine={f}"
        log.info("aggregate_train: judged %d replies, quarantined %d; %d nodes failed%s", *counts, ran)
        for node, reason in quarantined.items():
            log.warning("\t> Quarantined node %d: %s", node, reason)
        for node, reason in self.failed.items():
            log.warning("\t> Node %d failed: %s", node, reason)
        if fewer := lowered(rule, f, len(quarantined), len(self.failed)):
            log.warning("Round %d: %s", self.round, fewer)
        if self.refused:
            log.warning("Round %d was refused and the model kept: %s", self.round, self.refused)

    def metrics(self, shares: Mapping[int, float]) -> dict[str, Any]:
        """Return the entries of a MetricRecord: numbers and lists of numbers."""
        metrics: dict[str, Any] = {
            "bartizan-nodes": self.nodes,
            "bartizan-quarantined": sorted(self.quarantined),
            "bartizan-failed": sorted(self.failed),
            "bartizan-kept-old-model": int(self.result is None),
            "bartizan-seconds-reading": self.reading,
            "bartizan-seconds-after-last": self.after,
        }
        mean_shares = None if self.weights is None else shares
        for key, values in {"weights": self.weights, "scores": self.scores, "shares": mean_shares}.items():
            if values is not None:
                metrics[f"bartizan-{key}"] = [values[node] for node in self.nodes]
        if self.result is not None:
            if self.result.n_byzantine is not None:
                metrics["bartizan-n-byzantine"] = self.result.n_byzantine
            metrics["bartizan-seed"] = [self.result.seed >> 64, self.result.seed & (2**64 - 1)]
        return metrics

    def line(self, model: Model) -> dict[str, Any]:
        """Return the round's line of results.jsonl; ids are strings, since JavaScript's numbers have 53 bits."""
        weights, scores, result = self.weights, self.scores, self.result
        line: dict[str, Any] = {
            "round": self.round,
            "clients": [str(node) for node in self.nodes],
            "weights": None if weights is None else [weights[node] for node in self.nodes],
            "quarantined": {str(node): reason for node, reason in self.quarantined.items()},
            "failed": {str(node): reason for node, reason in self.failed.items()},
            "seconds": {"train": self.waiting},
        }
        if self.sizes:
            line["sizes"] = [self.sizes[node] for node in self.nodes]
        if result is not None:
            line["seconds"] |= {**result.seconds, "sketch": self.reading + result.seconds["sketch"]}
            line |= {} if scores is None else {"scores": [scores[node] for node in self.nodes]}
            line |= {"n_byzantine": result.n_byzantine, "seed": str(result.seed), "sketch": repr(result.sketch)}
            if not isinstance(result, AdapterAggregation):  # whose factors move without a change of their products
                line["norm"] = _step(model, result.update)
        if self.refused:
            line["note"] = f"The round was refused and the model kept: {self.refused}"
        return line


def _step(model: Model, update: Mapping[str, Any]) -> float:
    """Return the distance between the old and the new model."""
    floats = {name: array for name, array in update.items() if array.dtype.kind == "f"}
    steps = [np.linalg.norm((new.astype(np.float64) - model.arrays[name]).ravel()) for name, new in floats.items()]
    return float(np.linalg.norm(steps))
