"""The interface of sources, and what a round is made of: its roster, its judgement and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from bartizan._util.types import Floats
from bartizan.errors import BadClientError, TooFewClientsError, nobody_left
from bartizan.measure import Exact, Sketch
from bartizan.measure.measurements import Measurements
from bartizan.rules.base import Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise

AnyRule = Rule | CoordinateWise
U = TypeVar("U")


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
    """The clients' ids in the result; their numbers if None."""
    sizes: Floats | None = None
    """Data sizes, one per client; None where all count alike."""
    failed: Mapping[Any, str] = field(default_factory=dict)
    """Clients that were asked and sent no update, by id."""
    strict: bool = False
    on_gpu: bool = False
    """Whether products of float32 updates are summed in float32, as on a GPU."""

    def without(self, reasons: Mapping[int, str]) -> Roster:
        """Return the roster with these clients quarantined; with `strict`, raise an error for the first of them."""
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
    """The decision on one round, with the rule, sketch and seed that made it."""

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


class Reading(NamedTuple):
    """The clients to measure, and how their updates are read."""

    clients: Sequence[int] | None = None
    """None for all that the roster has not quarantined."""
    about: int | None = None
    """The client whose update is the origin, in place of the reference."""
    scale: float | None = None
    """Factor of the updates, which are then read in float64."""


WHOLE = Reading()


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

    def measure(self, sketch: Sketch, seed: int, reading: Reading = WHOLE) -> Measurements:
        """Measure clients, and last a trusted update."""

    def explain(self, clients: Sequence[int]) -> dict[int, str]:
        """Return why the numbers of these clients can't be used, whose norms are not finite, or too large."""

    def combine(self, judgement: Judgement) -> Combined:
        """Combine by the judgement's weights or its coordinate-wise stage; raise LostClients where updates are gone."""


@dataclass(frozen=True)
class Combined:
    """The update of one round, and further fields of its result that only this source has."""

    update: Any
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Aggregation(Generic[U]):
    """The robust update of one round, the clients' weights and how they were decided."""

    update: U
    """In the container, array type, dtypes and shapes of one client's update."""
    weights: Floats | None
    """One weight per client, (M,): >= 0, sum 1 or less, 0 if quarantined. None for a coordinate-wise rule."""
    quarantined: dict[Any, str]
    """The reason why a client's update could not take part, by its index, or by its id in a `Round`."""
    seed: int | None
    """The seed of this round: with `sketch` it replays the round. Publish it after the round, never before. None where
    a `Buffer` still uses it."""
    seconds: dict[str, float]
    """Time of the stages: sketch, weigh, combine, a round's recheck, and compile where kernels had to be compiled."""
    history: tuple[float, ...] = ()
    """For rules with a memory: pass it to the next round."""
    sketch: Sketch = Exact()
    """The sketch that the clients were weighed by: the one given, the choice of "auto", or a `Round`'s second sketch;
    `Exact()` if the rule needs only norms, which are always exact."""
    clients: tuple[Any, ...] = ()
    """The clients in the order of the weights: indices, or the ids given to a `Round`."""
    scores: Floats | None = None
    """Distance of each client to the weighted centre, (M,), as sketched: NaN if quarantined. None where the rule takes
    no distances."""
    recheck_seed: int | None = None
    """The seed that a `Round` drew at its close to sketch the selected clients again; None without a recheck. Equal to
    `seed` where all clients were sketched again, and so are weighed by that sketch."""
    n_byzantine: int | None = None
    """The number of Byzantine clients that the rule ran with: its own, or a smaller one where too many clients were
    quarantined or failed. None for rules that name none."""
    noise: float = 0.0
    """Standard deviation of the Gaussian noise in every coordinate of `update`; only FLAME adds any, if asked to."""
    failed: dict[Any, str] = field(default_factory=dict)
    """The reason why a client of a `Round` sent no update, by id; these have no weight and are not among `clients`."""
    rule: AnyRule | None = None
    """The rule that ran: the one given or the default, with the `n_byzantine` above; None if no rule made this."""

    @classmethod
    def of(cls, combined: Combined, judgement: Judgement, roster: Roster, seconds: dict[str, float]) -> Self:
        """The result of a judgement on the clients of a roster, in their order."""
        decision, quarantined = judgement.decision, judgement.quarantined
        clients = tuple(range(roster.n_sent)) if roster.ids is None else tuple(roster.ids)
        weights = None
        if decision.coordinate_stage is None or decision.coordinate_stage.has_weights:
            weights = np.array(decision.weights, dtype=np.float64)
            if quarantined:
                weights = np.zeros(len(clients))
                weights[list(judgement.clients)] = decision.weights
        return cls(
            update=combined.update,
            weights=weights,
            quarantined={clients[client]: reason for client, reason in quarantined.items()},
            seed=judgement.seed,
            seconds=seconds,
            history=decision.history,
            sketch=judgement.sketch,
            clients=clients,
            scores=judgement.scores,
            recheck_seed=judgement.recheck_seed,
            n_byzantine=judgement.rule.max_byzantine(),
            noise=decision.noise,
            failed=dict(roster.failed),
            rule=judgement.rule,
            **combined.extras,
        )

    def __repr__(self) -> str:
        weights = (
            "" if self.weights is None else f", {np.count_nonzero(self.weights)} of {len(self.weights)} have weight"
        )
        seconds = ", ".join(f"{stage} {time:.3g} s" for stage, time in self.seconds.items())
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<Aggregation{weights}, {len(self.quarantined)} quarantined{failed}; {seconds}>"
