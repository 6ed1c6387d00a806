"""The outcome of a round on a platform of federated learning, where no error may end the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bartizan._util.text import short
from bartizan._util.types import Floats
from bartizan.errors import TooFewClientsError, server_problem
from bartizan.judge.byzantine_budget import lowered
from bartizan.judge.reputation import Reputation
from bartizan.measure.sketches import named
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.source import Aggregation


@dataclass
class RoundOutcome:
    """The rule's result of one round, or the reason that there is none."""

    round: int | None = None
    result: Any = None
    """The `Aggregation`; None where the round was refused."""
    refused: str = ""
    """The reason why there is no result; empty where there is one."""
    clients: list[Any] = field(default_factory=list)
    """Clients whose updates were read, in ascending order."""
    quarantined: dict[Any, str] = field(default_factory=dict)
    failed: dict[Any, str] = field(default_factory=dict)
    sizes: dict[Any, float] = field(default_factory=dict)
    """The data size of each client; empty where all count alike."""

    def close(self, opened: Any) -> None:
        """Close a `Round`; whatever that raises is the reason for a refusal."""
        out: tuple[Mapping[Any, str], Mapping[Any, str]]
        try:
            self.result = opened.close()
        except TooFewClientsError as too_few:  # which is not kept: its traceback holds the updates
            self.refused, out = too_few.problem, (too_few.quarantined, too_few.failed)
        except Exception as wrong:  # a rule, of a plug-in too, may raise anything
            self.refused, out = server_problem(wrong), (opened.quarantined, opened.failed)
        else:
            out = self.result.quarantined, self.result.failed
        self.quarantined, self.failed = map(dict, out)
        self.clients = sorted(opened.clients)  # now: those of a committed round come while it is closed

    @property
    def weights(self) -> dict[Any, float] | None:
        """Weights by client; None for a coordinate-wise rule, and where the round was refused."""
        return None if self.result is None else by_client(self.result, self.result.weights)

    @property
    def scores(self) -> dict[Any, float] | None:
        """Distances to the weighted centre by client; None where the rule took no distances."""
        return None if self.result is None else by_client(self.result, self.result.scores)

    @property
    def trusted(self) -> list[Any]:
        """Clients that are neither quarantined nor without weight; none if the round was refused."""
        if self.result is None:
            return []
        quarantined, weights = self.quarantined, self.weights
        return [one for one in self.clients if one not in quarantined and (weights is None or weights[one] > 0)]

    def line(self) -> dict[str, Any]:
        """Return the round as a line of results.jsonl; ids are strings, since JavaScript's numbers have 53 bits."""
        lists = {"weights": self.weights, "sizes": self.sizes or None, "scores": self.scores}
        line: dict[str, Any] = {
            "round": self.round,
            "clients": [str(one) for one in self.clients],
            "weights": None,
            **{key: [values[one] for one in self.clients] for key, values in lists.items() if values is not None},
            "quarantined": {str(one): reason for one, reason in self.quarantined.items()},
            "failed": {str(one): reason for one, reason in self.failed.items()},
        }
        if (result := self.result) is not None:
            line |= {"seconds": dict(result.seconds), "n_byzantine": result.n_byzantine}
            line |= {"seed": str(result.seed), **named(result.sketch)}
        if self.refused:
            line["note"] = f"The round was refused and the model kept: {self.refused}"
        return line

    def add_to(self, reputation: Reputation) -> None:
        sizes = self.sizes or None
        reputation.add(self.weights, self.quarantined, self.failed, took_part=self.clients, sizes=sizes)

    def warnings(self, rule: Rule | CoordinateWise, client: str) -> list[str]:
        """Return one line per client that is out, and what became of the rule; `client` is the platform's word."""
        lines = [f"Quarantined {client} {short(one)}: {reason}" for one, reason in self.quarantined.items()]
        lines += [f"{client.capitalize()} {short(one)} failed: {reason}" for one, reason in self.failed.items()]
        f = None if self.result is None else self.result.n_byzantine
        if fewer := lowered(rule, f, len(self.quarantined), len(self.failed)):
            lines.append(f"Round {self.round}: {fewer}")
        if self.refused:
            lines.append(f"Round {self.round} was refused and the model kept: {self.refused}")
        return lines

    def __str__(self) -> str:
        counts = f"judged {len(self.clients) - len(self.quarantined)} updates, quarantined {len(self.quarantined)}"
        return f"Round {self.round}: {counts}; {len(self.failed)} failed"


def by_client(result: Aggregation[Any], values: Floats | None) -> dict[Any, float] | None:
    """Return one value per client of a result; None where there are none."""
    return None if values is None else dict(zip(result.clients, values.tolist(), strict=True))
