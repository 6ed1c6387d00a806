"""From M clients and p coordinates to a sketch, what it promises and what it costs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from bartizan import registry as names
from bartizan.rules import Krum, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.rules.preaggregators.base import Mixed
from bartizan.sketch import Exact, Rotated, distortion, embedding_dimension, pairwise_distortion
from bartizan.sketch.planner.calibration import checked_dtype, stored
from bartizan.sketch.planner.costs import TYPICAL, Costs
from bartizan.updates.layout import leaves_of
from bartizan.updates.updates import Updates

USUAL_K = 4096


@dataclass(frozen=True)
class Price:
    """Predicted seconds of a round's stages, for one kind of rule."""

    rule: str
    sketch: float
    weigh: float
    combine: float
    one_read: float

    @property
    def seconds(self) -> float:
        return self.sketch + self.weigh + self.combine

    @property
    def reads(self) -> float:
        return self.seconds / self.one_read

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_seconds(getattr(self, name))}" for name in ("sketch", "weigh", "combine"))
        return f"{_seconds(self.seconds)} = {self.reads:.1f} reads ({parts})"


@dataclass(frozen=True)
class Plan:
    """Which sketch to take, what it promises, what it costs, and what was rejected at which price."""

    clients: int
    dim: int
    dtype: str
    device: str
    sketch: Exact | Rotated
    eps: float | None
    """What was asked for."""
    delta: float
    rounds: int
    span_eps: float | None
    """To what part squared lengths in the whole span are kept: 0 is exact, None is no promise."""
    pairs_eps: float | None
    """To what part squared distances of pairs are kept: 0 is exact, None is no promise."""
    extra_bytes: int
    """Memory of a round beside the updates and the answer."""
    prices: tuple[Price, ...]
    rejected: Exact | Rotated | None
    rejected_prices: tuple[Price, ...]
    why: str
    costs: Costs

    @property
    def one_read(self) -> float:
        """Seconds to read all updates once: the unit of the prices."""
        return self.costs.one_read(self.clients, self.dim)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; seconds and reads are spelt out."""
        told = {name: value for name, value in asdict(self).items() if name not in ("sketch", "rejected")}
        told["sketch"], told["rejected"] = repr(self.sketch), self.rejected and repr(self.rejected)
        told["one_read"] = self.one_read
        for name, prices in (("prices", self.prices), ("rejected_prices", self.rejected_prices)):
            told[name] = [asdict(price) | {"seconds": price.seconds, "reads": price.reads} for price in prices]
        return told

    def __str__(self) -> str:
        lines = [
            f"{self.clients:,} clients of {self.dim:,} coordinates, {self.dtype} on {self.device}",
            "",
            f"Take       {self.sketch!r}: {self.why}",
            *_indented("Promise", self._promise()),
            f"Memory     {_bytes(self.extra_bytes)} beside the updates and the answer",
            f"One read   {_seconds(self.one_read)}",
            *_indented("Predicted", [f"{price.rule}: {price}" for price in self.prices]),
        ]
        if self.rejected is not None:
            what = [f"{price.rule}: {price}" for price in self.rejected_prices]
            lines += _indented("Rejected", [f"{self.rejected!r}", *what])
        return "\n".join([*lines, f"Costs of   {self.costs.machine}"])

    def _promise(self) -> list[str]:
        if isinstance(self.sketch, Exact):
            return ["distances are exact, to rounding"]
        odds = f"in all of {self.rounds:,} rounds but for odds {self.delta:g}"
        span = (
            f"no whole-span guarantee at k={self.sketch.k} and {self.clients:,} clients (eps would not be below 1)"
            if self.span_eps is None
            else f"whole span: squared lengths to 1 +- {self.span_eps:.3f} {odds}"
        )
        pairs = (
            f"no guarantee for pairs at k={self.sketch.k} and {self.clients:,} clients"
            if self.pairs_eps is None
            else f"pairs: squared distances to 1 +- {self.pairs_eps:.3f} {odds}"
        )
        return [
            span,
            pairs,
            "These are theorems about matrices with independent Gaussian entries; for Rotated they",
            "are measured, not proven (docs/explanation/sketches.md).",
        ]


def plan(
    clients: int,
    dim: int,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    eps: float | None = None,
    delta: float = 0.05,
    rounds: int = 100,
    rule: Rule | CoordinateWise | str | None = None,
    calibration: Costs | None = None,
) -> Plan:
    """Choose between `Exact()` and `Rotated(k)` by their price, and say what the choice promises.

    Args:
        clients: How many, M.
        dim: Coordinates of one update, p.
        dtype: Of the updates.
        device: Where they lie.
        eps: Wanted for the whole span, below 1: k is then the theorem's, else 4096.
        delta: The odds that the promise is broken in any of the `rounds`.
        rounds: How many projections are drawn in all.
        rule: The rule, or its name; without one, the prices of a rule that takes one client (Krum) and of one that
            weighs all (the geometric median).
        calibration: Costs to predict by; the stored ones of this machine if not given, else typical ones.

    >>> print(plan(8, 10_000, calibration=TYPICAL["cpu"]).sketch)
    Exact()
    >>> print(plan(200, 1_000_000, calibration=TYPICAL["cpu"]).sketch)
    Rotated(k=4096, mixing=32)
    """
    for name, count in (("clients", clients), ("dim", dim), ("rounds", rounds)):
        if count < 1 or count != int(count):
            raise ValueError(f"{name} must be a positive whole number, got {count!r}.")
    kinds = _kinds(rule)
    costs = calibration or known_costs(device, checked_dtype(dtype))
    # Checked here, so that a wrong eps or delta is refused also where Exact is taken in the end.
    needed = embedding_dimension(clients, 0.5 if eps is None else eps, delta, rounds)
    k = USUAL_K if eps is None else max(64, 2 ** math.ceil(math.log2(needed)))
    exact, projected = Exact(), Rotated(k=k, mixing=min(32, k))
    priced = {s: tuple(_price(costs, kind, s, clients, dim) for kind in kinds) for s in (exact, projected)}
    chosen, why = _choice(exact, projected, dim, kinds, priced)
    other = projected if chosen is exact else exact
    rejected = other if kinds[0].needs_distances else None
    span, pairs = _promised(chosen, clients, delta, rounds)
    return Plan(
        clients=clients,
        dim=dim,
        dtype=dtype,
        device=device,
        sketch=chosen,
        eps=eps,
        delta=delta,
        rounds=rounds,
        span_eps=span,
        pairs_eps=pairs,
        extra_bytes=_extra(chosen, clients),
        prices=priced[chosen],
        rejected=rejected,
        rejected_prices=() if rejected is None else priced[rejected],
        why=why,
        costs=costs,
    )


def known_costs(device: str, dtype: str) -> Costs:
    """Measured here before, or typical ones; never measured now."""
    known = stored(device, dtype)
    if known is None and device not in TYPICAL:
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}.")
    return known or TYPICAL[device]


def sketch_for(clients: Updates, rule: Rule | CoordinateWise, dim: int | None = None) -> Exact | Rotated:
    """What `sketch="auto"` means for these updates, or for such updates of `dim` coordinates."""
    if isinstance(rule, CoordinateWise) or not rule.needs_distances:
        return Exact()
    largest = max(clients.columns.entries, key=lambda entry: entry.size)
    leaf = next(iter(leaves_of(clients.like).values()))
    device = str(getattr(leaf, "device", "cpu")).partition(":")[0]
    return _chosen(len(clients), dim or clients.layout.dim, known_costs(device, largest.dtype))


@lru_cache(maxsize=64)
def _chosen(clients: int, dim: int, costs: Costs) -> Exact | Rotated:
    return plan(clients, dim, dtype=costs.dtype, device=costs.device, calibration=costs).sketch


@dataclass(frozen=True)
class _Kind:
    """What the price of a rule depends on."""

    name: str
    takes_one: bool = False
    iterates: bool = True
    needs_distances: bool = True


def _kinds(rule: Rule | CoordinateWise | str | None) -> list[_Kind]:
    if rule is None:
        return [_Kind("one client (Krum)", takes_one=True, iterates=False), _Kind("all clients (geometric median)")]
    if isinstance(rule, str):
        kinds = names.rule_classes(rule)
        name, kind = rule, Mixed if len(kinds) > 1 else kinds[-1]
    elif isinstance(rule, (Rule, CoordinateWise)):
        name, kind = repr(rule), type(rule)
    else:
        raise TypeError(f"rule must be a rule such as Krum(n_byzantine=5), or its name; got {rule!r}.")
    if issubclass(kind, CoordinateWise):
        raise ValueError(f"{name} judges each coordinate by itself: there is nothing to project, and no plan to make.")
    return [_Kind(name, kind is Krum, not issubclass(kind, Krum), kind.needs_distances)]


def _choice(
    exact: Exact, projected: Rotated, dim: int, kinds: list[_Kind], priced: dict[Any, tuple[Price, ...]]
) -> tuple[Exact | Rotated, str]:
    if not kinds[0].needs_distances:
        return exact, "the rule wants norms only, which take one read"
    if projected.k >= dim:
        return exact, f"k={projected.k} would not be fewer than the {dim:,} coordinates"
    ratio = priced[projected][0].sketch / priced[exact][0].sketch
    if ratio >= 1:
        return exact, f"looking at all coordinates is {ratio:.1f} times as fast as projecting them"
    return projected, f"looking through it is {1 / ratio:.1f} times as fast as at all coordinates"


def _price(costs: Costs, kind: _Kind, sketch: Exact | Rotated, clients: int, dim: int) -> Price:
    return Price(
        rule=kind.name,
        sketch=costs.look(sketch if kind.needs_distances else None, clients, dim),
        weigh=costs.weigh(clients, kind.iterates),
        combine=costs.combined(1 if kind.takes_one else clients, dim),
        one_read=costs.one_read(clients, dim),
    )


def _promised(sketch: Exact | Rotated, clients: int, delta: float, rounds: int) -> tuple[float | None, float | None]:
    if isinstance(sketch, Exact):
        return 0.0, 0.0
    promises: list[float | None] = []
    for promise in (distortion, pairwise_distortion):
        try:
            promises.append(promise(sketch.k, clients, delta, rounds))
        except ValueError:  # eps would not be below 1
            promises.append(None)
    return promises[0], promises[1]


def _extra(sketch: Exact | Rotated, clients: int) -> int:
    """The sketches, a handful of M x M matrices, and a block of columns."""
    sketches = 8 * clients * sketch.k if isinstance(sketch, Rotated) else 0
    return sketches + 8 * 8 * clients**2 + 8 * 2**20


def _indented(title: str, lines: list[str]) -> list[str]:
    return [f"{title if i == 0 else '':<10} {line}" for i, line in enumerate(lines)]


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            break
    return f"{seconds / scale:.3g} {unit}"


def _bytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
