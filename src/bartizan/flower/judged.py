"""What came of one round, told three ways: in Flower's log, in its metrics, and in the lines of the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import RecordDict

from bartizan._util.types import Floats
from bartizan.aggregate import Aggregation
from bartizan.defense.reputation import Reputation
from bartizan.errors import TooFewClientsError
from bartizan.flower.decode import Model

log = logging.getLogger("flwr")


@dataclass
class ReplyMetadata:
    """What is kept of a round's replies beside their arrays, by node."""

    metrics: dict[int, RecordDict] = field(default_factory=dict)
    sizes: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """One round: who replied, what the rule made of it, or why it was refused."""

    round: int
    nodes: list[int]
    """Whose replies were looked at, in rising order."""
    failed: dict[int, str]
    result: Aggregation | None
    refused: TooFewClientsError | None
    sizes: dict[int, float] | None
    """What each node counted for; None where all counted alike."""
    waiting: float
    """Seconds from the question to the last reply, without those of looking at replies."""
    looking: float
    after: float
    """Seconds behind the last reply."""

    @classmethod
    def none(cls, server_round: int, why: str) -> Judged:
        """A round whose replies could not be taken."""
        return cls(server_round, [], {}, None, TooFewClientsError(why), None, waiting=0.0, looking=0.0, after=0.0)

    @property
    def quarantined(self) -> dict[int, str]:
        if self.refused is not None:
            return dict(self.refused.quarantined)
        return {} if self.result is None else dict(self.result.quarantined)

    @property
    def weights(self) -> dict[int, float] | None:
        """By node; None for a coordinate-wise rule, and where the round was refused."""
        return self._by_node(None if self.result is None else self.result.weights)

    @property
    def scores(self) -> dict[int, float] | None:
        """By node, how far it lies from the trusted ones' centre; None where the rule looked at no distances."""
        return self._by_node(None if self.result is None else self.result.scores)

    @property
    def heard(self) -> list[int]:
        """Who has a say in the round's metrics: whoever is neither quarantined nor without weight."""
        gone, weights = self.quarantined, self.weights
        return [node for node in self.nodes if node not in gone and (weights is None or weights[node] > 0)]

    def add_to(self, reputation: Reputation) -> None:
        reputation.add(self.weights, self.quarantined, took_part=self.nodes, sizes=self.sizes)

    def _by_node(self, values: Floats | None) -> dict[int, float] | None:
        if self.result is None or values is None:
            return None
        return dict(zip(self.result.clients, values.tolist(), strict=True))

    def log(self) -> None:
        gone = self.quarantined
        told = (len(self.nodes) - len(gone), len(gone), len(self.failed))
        log.info("aggregate_train: judged %d replies, quarantined %d; %d nodes failed", *told)
        for node, reason in gone.items():
            log.warning("\t> Quarantined node %d: %s", node, reason)
        for node, reason in self.failed.items():
            log.warning("\t> Node %d failed: %s", node, reason)
        if self.refused is not None:
            log.warning("Round %d was refused and the model kept: %s", self.round, self.refused.problem)

    def metrics(self, shares: Mapping[int, float]) -> dict[str, Any]:
        """What fits into a MetricRecord: numbers and lists of numbers."""
        told: dict[str, Any] = {
            "bartizan-nodes": self.nodes,
            "bartizan-quarantined": sorted(self.quarantined),
            "bartizan-failed": sorted(self.failed),
            "bartizan-kept-old-model": int(self.result is None),
            "bartizan-seconds-looking": self.looking,
            "bartizan-seconds-after-last": self.after,
        }
        mean_shares = None if self.weights is None else shares
        told_of = {"weights": self.weights, "scores": self.scores, "shares": mean_shares}
        for key, values in told_of.items():
            if values is not None:
                told[f"bartizan-{key}"] = [values[node] for node in self.nodes]
        if self.result is not None:
            told["bartizan-seed"] = [self.result.seed >> 64, self.result.seed & (2**64 - 1)]
        return told

    def line(self, model: Model) -> dict[str, Any]:
        """As docs/reference/results-format.md has it. Ids are texts: a browser's numbers have 53 bits, an id has 64."""
        weights, scores, result = self.weights, self.scores, self.result
        line: dict[str, Any] = {
            "round": self.round,
            "clients": [str(node) for node in self.nodes],
            "weights": None if weights is None else [weights[node] for node in self.nodes],
            "quarantined": {str(node): reason for node, reason in self.quarantined.items()},
            "seconds": {"train": self.waiting},
        }
        if self.sizes is not None:
            line["sizes"] = [self.sizes[node] for node in self.nodes]
        notes = [f"Failed: {', '.join(map(str, sorted(self.failed)))}."] if self.failed else []
        if result is not None:
            line["seconds"] |= {**result.seconds, "sketch": self.looking + result.seconds["sketch"]}
            line |= {} if scores is None else {"scores": [scores[node] for node in self.nodes]}
            line |= {"seed": str(result.seed), "sketch": repr(result.sketch), "norm": _way(model, result.update)}
        if self.refused is not None:
            notes.append(f"The round was refused and the model kept: {self.refused.problem}")
        return line | ({"note": " ".join(notes)} if notes else {})


def _way(model: Model, update: Mapping[str, Any]) -> float:
    """How far the model went."""
    ways = [
        np.linalg.norm((after.astype(np.float64) - model.arrays[name]).ravel())
        for name, after in update.items()
        if after.dtype.kind == "f"
    ]
    return float(np.linalg.norm(ways))
