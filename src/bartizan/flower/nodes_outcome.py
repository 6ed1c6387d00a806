"""The outcome of one round of a Flower run, as a MetricRecord and as a line of results.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bartizan.flower.replies import Model
from bartizan.judge.round_outcome import RoundOutcome
from bartizan.sources.adapters.adapter_round import AdapterAggregation


@dataclass
class NodesOutcome(RoundOutcome):
    """The outcome of a round, the metrics that the nodes sent, and the time that it took."""

    contents: dict[int, Any] = field(default_factory=dict)
    """The replies' metrics, by node."""
    waiting: float = 0.0
    """Seconds from the request to the last reply, without those spent on reading replies."""
    reading: float = 0.0
    after: float = 0.0
    """Seconds after the last reply."""

    def metrics(self, shares: Mapping[int, float]) -> dict[str, Any]:
        """Return the entries of a MetricRecord: numbers and lists of numbers."""
        metrics: dict[str, Any] = {
            "bartizan-nodes": self.clients,
            "bartizan-quarantined": sorted(self.quarantined),
            "bartizan-failed": sorted(self.failed),
            "bartizan-kept-old-model": int(self.result is None),
            "bartizan-seconds-reading": self.reading,
            "bartizan-seconds-after-last": self.after,
        }
        mean_shares = None if self.weights is None else shares
        for key, values in {"weights": self.weights, "scores": self.scores, "shares": mean_shares}.items():
            if values is not None:
                metrics[f"bartizan-{key}"] = [values[node] for node in self.clients]
        if self.result is not None:
            if self.result.n_byzantine is not None:
                metrics["bartizan-n-byzantine"] = self.result.n_byzantine
            if self.result.seed is not None:
                metrics["bartizan-seed"] = [self.result.seed >> 64, self.result.seed & (2**64 - 1)]
        return metrics

    def measured_line(self, model: Model) -> dict[str, Any]:
        """Return the round's line of results.jsonl, with its times and the norm of the model's step."""
        line = self.line()
        seconds = {"train": self.waiting, **line.get("seconds", {})}
        if (result := self.result) is not None:
            seconds["sketch"] += self.reading
            if not isinstance(result, AdapterAggregation):  # whose factors move without a change of their products
                floats = {name: new for name, new in result.update.items() if new.dtype.kind == "f"}
                steps = [np.subtract(new, model.arrays[name], dtype=np.float64) for name, new in floats.items()]
                line["norm"] = float(np.linalg.norm([np.linalg.norm(step.ravel()) for step in steps]))
        return line | {"seconds": seconds}
