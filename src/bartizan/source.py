"""The interface of sources: where the updates of one round are, and what the three verbs ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bartizan._util.types import Floats
from bartizan.errors import BadClientError, TooFewClientsError, nobody_left
from bartizan.measure import Sketch
from bartizan.measure.measurements import Measurements
from bartizan.rules.base import Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise

AnyRule = Rule | CoordinateWise


@dataclass(frozen=True)
class Roster:
    """The clients of one round: their ids and data sizes, and who is out and why.

    Clients are numbered from 0 to `n_sent` - 1 in the order of the weights.
    """

    n_sent: int
    dim: int
    dtype: np.dtype
    """The widest precision of the updates: squares above its range count as overflow."""
    quarantined: Mapping[int, str] = field(default_factory=dict)
    ids: Sequence[Any] | None = None
    """What the result calls the clients; their numbers if None."""
    sizes: Floats | None = None
    """Data sizes, one per client; None where all count alike."""
    failed: Mapping[Any, str] = field(default_factory=dict)
    """Clients that were asked and sent no update, by id."""
    strict: bool = False
    on_gpu: bool = False
    """Whether products of float32 updates are summed in float32, as on a GPU."""

    def without(self, reasons: Mapping[int, str]) -> Roster:
        """Return the same roster with these clients quarantined; under `strict` raise the first."""
        if not reasons:
            return self
        if self.strict:
            raise BadClientError(*min(reasons.items()))
        quarantined = dict(sorted({**self.quarantined, **reasons}.items()))
        if len(quarantined) == self.n_sent:
            raise TooFewClientsError(nobody_left(len(quarantined)), quarantined)
        return replace(self, quarantined=quarantined)


@dataclass(frozen=True)
class Judgement:
    """The decision on one round, and what it was made by."""

    decision: Decision
    """On `clients`."""
    clients: tuple[int, ...]
    """Those that are not quarantined, in the order of the weights."""
    quarantined: Mapping[int, str]
    scores: Floats | None
    """Distance of each client to the weighted centre, NaN if quarantined; None if the rule takes no distances."""
    rule: AnyRule
    """The rule that ran, with its own or a lower number of Byzantine clients."""
    sketch: Sketch
    """The sketch that the clients were weighed by, with its seed."""
    seed: int
    recheck_seed: int | None = None


class Source(Protocol):
    """The updates of one round, wherever they are.

    A source is opened with what concerns its updates alone (reference, trusted update, arrays for the result, memory),
    and checks these then.
    """

    roster: Roster

    def refuses(self, rule: AnyRule, sketch: Sketch) -> str | None:
        """Return why this source can't serve them; None if it can."""

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        """Return the sketch that "auto" stands for here, and a seed, drawn after the last update if none is given."""

    def measure(
        self,
        sketch: Sketch,
        seed: int,
        *,
        clients: Sequence[int] | None = None,
        about: int | None = None,
        scale: float | None = None,
    ) -> Measurements:
        """Measure these clients, or all that the roster has not quarantined, and last a trusted update.

        Updates are taken from the reference, or from that of the client `about`, and read in float64 times `scale`.
        """

    def explain(self, clients: Sequence[int]) -> dict[int, str]:
        """Return why the numbers of these clients can't be used, whose norms are not finite, or too large."""

    def combine(self, judgement: Judgement) -> Combined:
        """Combine by the judgement's weights or its coordinate-wise stage; raise LostClients where updates are gone."""


@dataclass(frozen=True)
class Combined:
    """The update of one round, and further fields of its result that only this source has."""

    update: Any
    extras: Mapping[str, Any] = field(default_factory=dict)
