"""Reputation of clients over the rounds: mean weights, and how often they were left out, quarantined or failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from bartizan._util import schema
from bartizan._util.text import quoted, short
from bartizan.measure.client_sizes import sizes_of
from bartizan.source import Aggregation

LEFT_OUT_BELOW = 0.1  # of its share: the weight with which a node counts as left out of a round


@dataclass
class Standing:
    """One node's sums over the rounds that it took part in."""

    rounds: int = 0
    judged: int = 0
    """Rounds in which it was given a weight: not those of coordinate-wise rules, nor rounds without a result."""
    share: float = 0.0
    """Sum of its weights relative to its share of the data; 0 for a quarantined reply."""
    left_out: int = 0
    expected: float = 0.0
    """Expected number by chance: the sum over rounds of the fraction of nodes that were left out."""
    quarantined: int = 0
    failed: int = 0
    """Rounds in which it was asked and sent no update."""
    expected_failures: float = 0.0
    """Expected number by chance: the sum over rounds of the fraction of nodes that failed."""
    reason: str = ""
    """The last reason for quarantine or failure."""

    @property
    def mean_share(self) -> float:
        """Mean over the rounds in which it was weighed or quarantined; NaN where there are none."""
        rounds = self.judged + self.quarantined
        return self.share / rounds if rounds else math.nan

    @property
    def odds(self) -> float:
        """Probability that chance alone leaves a node out, or makes it fail, so often; 0 if it was quarantined."""
        if self.quarantined:
            return 0.0
        return min(
            chernoff(self.judged, self.left_out, self.expected),
            chernoff(self.rounds, self.failed, self.expected_failures),
        )

    def checked(self) -> Standing:
        """Return the standing; raise ValueError if no rounds can have these sums."""
        limits = {"rounds": 10**9, "judged": self.rounds, "quarantined": self.rounds, "failed": self.rounds}
        limits |= {"left_out": self.judged, "expected": self.judged, "expected_failures": self.rounds}
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 0 to {most}, got {getattr(self, name)}")
        for name, events in (("expected", self.left_out), ("expected_failures", self.failed)):
            if events and not getattr(self, name):
                raise ValueError(f"{name} must be above 0 after {events} events, got 0")
        return self


def chernoff(n: int, observed: int, expected: float) -> float:
    r"""Bound the probability of as many events in n trials from above: :math:`e^{-n D(o/n \| e/n)}`.

    It holds for probabilities that differ from trial to trial (Hoeffding, 1956).
    """
    if observed <= expected:
        return 1.0
    a, b = observed / n, expected / n
    return math.exp(-n * (a * math.log(a / b) + ((1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0)))


@dataclass(frozen=True)
class Suspect:
    """A node that should be inspected, and why."""

    node: Any
    """The id of the client: of a Flower node, the name of an NVFlare site."""
    odds: float
    """Probability that chance alone left it out, or made it fail, so often; 0 if it was quarantined."""
    rounds: int
    left_out: int
    quarantined: int
    share: float
    """Its mean weight relative to its share of the data."""
    reason: str = ""
    """The last reason for quarantine or failure."""
    failed: int = 0

    def __str__(self) -> str:
        last = f"; last: {short(self.reason)}" if self.reason else ""
        return f"node {short(self.node, 60)}: {self.record}{last}"

    @property
    def record(self) -> str:
        """Text on how often it was left out, quarantined, and failed."""
        said = [f"left out of {self.left_out}"] if self.left_out else []
        said += [f"quarantined in {self.quarantined}"] if self.quarantined else []
        said += [f"failed in {self.failed}"] if self.failed else []
        return f"{' and '.join(said)} of {self.rounds} round{'' if self.rounds == 1 else 's'}"


class Reputation:
    """The record of all clients over the rounds, by id (a number or a text), in Flower, NVFlare or your own loop.

    >>> import bartizan as bz
    >>> reputation = bz.Reputation()
    >>> for _ in range(5):
    ...     sent = {"amy": [1.0], "bob": [1.1], "cal": [0.9], "dan": [1.0], "eve": [90.0]}
    ...     reputation.add_result(bz.aggregate(sent, bz.MultiKrum(n_byzantine=1)))
    >>> print(*reputation.suspects())
    node eve: left out of 5 of 5 rounds

    Where the result is somebody else's, `add` takes the weights by id, and the reasons:

    >>> reputation = Reputation()
    >>> for _ in range(5):
    ...     reputation.add({1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25, 5: 0.0}, {6: "it holds NaN"})
    >>> [str(suspect) for suspect in reputation.suspects()]
    ['node 6: quarantined in 5 of 5 rounds; last: it holds NaN', 'node 5: left out of 5 of 5 rounds']
    """

    def __init__(self) -> None:
        self.nodes: dict[Any, Standing] = {}

    def add_result(self, result: Aggregation[Any], sizes: Mapping[Any, float] | None = None) -> None:
        """Add one round by its result: of a `Round`, or of `aggregate` with a dict of clients.

        Clients that were passed as a list are known by their positions, which must then be the same in every round.
        `sizes` are the data sizes that the rule used. For a round that was refused, pass what its TooFewClientsError
        holds: ``add(None, error.quarantined, error.failed)``.
        """
        weights = result.weights
        if sizes is not None:
            if not isinstance(sizes, Mapping):
                raise TypeError(f"sizes must be a mapping from client ids to data sizes; got {quoted(sizes, 60)}.")
            sizes_of(result.clients, sizes)
        by_id = None if weights is None else dict(zip(result.clients, weights.tolist(), strict=True))
        self.add(by_id, result.quarantined, result.failed, took_part=result.clients, sizes=sizes)

    def add(
        self,
        weights: Mapping[Any, float] | None,
        quarantined: Mapping[Any, str],
        failed: Mapping[Any, str] | None = None,
        *,
        took_part: Iterable[Any] = (),
        sizes: Mapping[Any, float] | None = None,
    ) -> None:
        """Add one round: the weights of the nodes, and the reasons of those that were quarantined or failed.

        `took_part` names the nodes with a usable update where there are no weights. `sizes` are the data sizes that the
        rule used, equal if not given. A node was left out if its weight is small both relative to its share of the
        data and to an equal share, since some rules ignore sizes.
        """
        judged = {node: w for node, w in (weights or {}).items() if node not in quarantined}
        total = sum(judged.values())
        data = {node: 1.0 if sizes is None else sizes[node] for node in judged}
        all_data = sum(data.values())
        parts = {node: w / total if total else 0.0 for node, w in judged.items()}
        # A node may report a size of next to nothing.
        shares = {node: part / max(data[node] / all_data, 1e-12) for node, part in parts.items()}
        out = {node for node, part in parts.items() if max(shares[node], part * len(parts)) < LEFT_OUT_BELOW}
        for node, share in shares.items():
            standing = self._of(node)
            standing.judged += 1
            standing.share += share
            standing.left_out += node in out
            standing.expected += len(out) / len(shares)
        failed = failed or {}
        asked = {*judged, *took_part, *quarantined, *failed}
        for node in asked:
            standing = self._of(node)
            standing.rounds += 1
            standing.quarantined += node in quarantined
            standing.failed += node in failed
            standing.expected_failures += len(failed) / len(asked)
            standing.reason = quarantined.get(node) or failed.get(node) or standing.reason

    def shares(self) -> dict[Any, float]:
        """Return each node's mean weight over its rounds, relative to its share of the data; of nodes ever weighed."""
        return {node: one.mean_share for node, one in self.nodes.items() if one.judged + one.quarantined}

    def suspects(self, odds: float = 0.05) -> list[Suspect]:
        """Return nodes that were quarantined, or left out or failed more often than chance explains, the worst first.

        A hint, not a proof: a node whose data are unlike all others' is left out too, quarantine may be a bug, and a
        failure may be the network's.
        """
        found = [
            Suspect(node, one.odds, one.rounds, one.left_out, one.quarantined, one.mean_share, one.reason, one.failed)
            for node, one in self.nodes.items()
            if one.odds <= odds
        ]
        with suppress(TypeError):  # ids of several kinds stay in the order in which they came
            found.sort(key=lambda one: one.node)
        return sorted(found, key=lambda one: (-one.quarantined, one.odds))

    def as_dict(self) -> dict[str, Any]:
        return {str(node): asdict(standing) for node, standing in self.nodes.items()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], node: Callable[[str], Any] = int) -> Reputation:
        """Read the output of `as_dict`, with `node` to turn a text into an id; else raise ValueError or TypeError."""
        reputation = cls()
        reputation.nodes = {node(name): schema.parse(Standing, sums).checked() for name, sums in saved.items()}
        return reputation

    def _of(self, node: Any) -> Standing:
        return self.nodes.setdefault(node, Standing())
