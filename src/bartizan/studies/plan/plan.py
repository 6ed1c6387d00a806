"""Predict what a sketch promises, and how much memory and time a round takes with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bartizan import registry
from bartizan._util import machine
from bartizan.rules import Krum, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.rules.preaggregators.base import Mixed
from bartizan.sketch import Exact, Rotated, distortion, embedding_dimension, pairwise_distortion
from bartizan.sketch.choose import USUAL_K, choose, costs_of
from bartizan.sketch.norms_only import Norms
from bartizan.updates import parse_updates
from bartizan.updates.layout import FLOATS

NUMBERS = {"cpu": 2**24, "cuda": 2**28}  # more than any cache holds


@dataclass(frozen=True)
class Machine:
    """Seconds that do not depend on the number of coordinates, and the seconds to read one number."""

    name: str
    read: float
    call: float
    client: float
    choose: tuple[float, float]
    """Weights by sorted distances (Krum): seconds for a call, and for each pair of clients."""
    iterate: tuple[float, float]
    """Weights by an iteration (the geometric median), likewise."""


TYPICAL = {
    "cpu": Machine("typical: two cores of a server", 3.4e-10, 3e-4, 2e-6, (2e-5, 7e-10), (3.4e-5, 3.6e-9)),
    "cuda": Machine("typical: an H200", 1.03e-12, 5e-4, 2e-6, (1.3e-4, 2.3e-9), (1.4e-4, 8e-9)),
}


def measured(device: str, dtype: str, numbers: int | None = None) -> Machine:
    """This machine, with its read speed measured in a fraction of a second, or a typical one without the device."""
    known = TYPICAL[device]
    try:
        machine.checked_device(device)
        room = numbers or min(NUMBERS[device], machine.free_memory(device) // 64)
        clients = parse_updates(_filled(max(room // 16, 1) * 16, dtype, device).reshape(16, -1))
    except (ValueError, ModuleNotFoundError):  # no GPU here, or no torch for bfloat16
        return known
    seconds = [machine.timed(lambda: Norms().gram_stats(clients, 0), device)[1] for _ in range(5)]
    read = min(seconds[1:]) / (len(clients) * clients.layout.dim)  # the first call may compile
    return Machine(machine.name_of(device), read, known.call, known.client, known.choose, known.iterate)


def _filled(numbers: int, dtype: str, device: str) -> Any:
    """Numbers in memory that was written to: untouched pages would be read faster."""
    some = np.random.default_rng(0).standard_normal(min(numbers, 2**20), dtype=np.float32)
    if device == "cpu" and dtype != "bfloat16":
        return np.resize(some.astype(dtype), numbers)
    torch = machine.torch_for(f"dtype={dtype!r} on {device!r}")
    part = torch.from_numpy(some).to(device=device, dtype=getattr(torch, dtype))
    return part.repeat(-(-numbers // len(part)))[:numbers]


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
        return f"{self.rule}: {_seconds(self.seconds)} = {self.reads:.1f} reads ({parts})"


@dataclass(frozen=True)
class Plan:
    """Which sketch to take, what it promises, what it costs, and what the other one would cost."""

    clients: int
    dim: int
    dtype: str
    device: str
    sketch: Exact | Rotated
    eps: float | None
    """The distortion that was asked for."""
    delta: float
    rounds: int
    span_eps: float | None
    """Bound on the distortion of squared lengths in the whole span: 0 is exact, None is no promise."""
    pairs_eps: float | None
    """Bound on the distortion of squared distances of pairs: 0 is exact, None is no promise."""
    extra_bytes: int
    """Memory of a round beside the updates and the result."""
    one_read: float
    """Seconds to read all updates once: the unit of the prices."""
    prices: tuple[Price, ...]
    rejected: Exact | Rotated | None
    rejected_prices: tuple[Price, ...]
    why: str
    machine: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON; seconds and reads are spelt out."""
        whole = asdict(self) | {"sketch": repr(self.sketch), "rejected": self.rejected and repr(self.rejected)}
        for name, prices in (("prices", self.prices), ("rejected_prices", self.rejected_prices)):
            whole[name] = [asdict(price) | {"seconds": price.seconds, "reads": price.reads} for price in prices]
        return whole

    def __str__(self) -> str:
        lines = [
            f"{self.clients:,} clients of {self.dim:,} coordinates, {self.dtype} on {self.device}",
            "",
            f"Take       {self.sketch!r}: {self.why}",
            *_titled("Promise", self._promise()),
            f"Memory     {_bytes(self.extra_bytes)} beside the updates and the result",
            f"One read   {_seconds(self.one_read)}",
            *_titled("Predicted", [*map(str, self.prices)]),
        ]
        if self.rejected is not None:
            lines += _titled("Rejected", [f"{self.rejected!r}", *map(str, self.rejected_prices)])
        return "\n".join([*lines, f"Machine    {self.machine}"])

    def _promise(self) -> list[str]:
        if isinstance(self.sketch, Exact):
            return ["distances are exact, to rounding"]
        odds = f"in all of {self.rounds:,} rounds but for odds {self.delta:g}"
        of = f"at k={self.sketch.k} and {self.clients:,} clients"
        span, pairs = f"no whole-span guarantee {of} (eps would not be below 1)", f"no guarantee for pairs {of}"
        if self.span_eps is not None:
            span = f"whole span: squared lengths to 1 +- {self.span_eps:.3f} {odds}"
        if self.pairs_eps is not None:
            pairs = f"pairs: squared distances to 1 +- {self.pairs_eps:.3f} {odds}"
        proof = "These are theorems about matrices with independent Gaussian entries; for Rotated they"
        return [span, pairs, proof, "are measured, not proven (docs/sketches.md)."]


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
    on: Machine | None = None,
) -> Plan:
    """Choose between `Exact()` and `Rotated(k)` by their price, and say what the choice promises.

    Args:
        clients: The number of clients, M.
        dim: The coordinates of one update, p.
        dtype: The dtype of the updates.
        device: "cpu" or "cuda".
        eps: The distortion wanted for the whole span, below 1: k is then the theorem's, else 4096.
        delta: The odds that the promise is broken in any of the `rounds`.
        rounds: How many projections are drawn in all.
        rule: The rule, or its name; without one, the prices of a rule that takes one client (Krum) and of one that
            weighs all (the geometric median).
        on: The machine to predict for, such as `measured("cpu", "float32")`; a typical one if not given.

    >>> print(plan(200, 1_000_000).sketch)
    Rotated(k=4096, mixing=32)
    """
    for name, count in (("clients", clients), ("dim", dim), ("rounds", rounds)):
        if count < 1 or count != int(count):
            raise ValueError(f"{name} must be a positive whole number, got {count!r}.")
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be one of {', '.join(FLOATS)}; got {dtype!r}.")
    kinds, costs = _kinds(rule), costs_of(device)
    on = on or TYPICAL[device]
    # Checked here, so that a wrong eps or delta is refused also where Exact is taken in the end.
    needed = embedding_dimension(clients, 0.5 if eps is None else eps, delta, rounds)
    k = USUAL_K if eps is None else max(64, 2 ** math.ceil(math.log2(needed)))
    reads = {"exact": costs.exact(clients, dim), "projected": costs.projected(clients, dim, k)}
    fixed = on.call + on.client * clients

    def priced(which: str) -> tuple[Price, ...]:
        return tuple(
            Price(
                rule=kind.name,
                sketch=fixed + on.read * (reads[which] if kind.needs_distances else clients * dim),
                weigh=kind.weights(on)[0] + kind.weights(on)[1] * clients**2,
                combine=on.read * costs.combined(1 if kind.takes_one else clients, dim),
                one_read=on.read * clients * dim,
            )
            for kind in kinds
        )

    projected, chosen = Rotated(k=k, mixing=min(32, k)), choose(clients, dim, device, k)
    rejected: Exact | Rotated | None = projected if isinstance(chosen, Exact) else Exact()
    if not kinds[0].needs_distances:
        chosen, rejected, why = Exact(), None, "the rule needs norms only, which take one read"
    elif k >= dim:
        why = f"k={k} would not be fewer than the {dim:,} coordinates"
    elif isinstance(chosen, Exact):
        why = f"exact distances are {reads['projected'] / reads['exact']:.1f} times as fast as projected ones"
    else:
        why = f"projected distances are {reads['exact'] / reads['projected']:.1f} times as fast as exact ones"
    names = ("exact", "projected") if isinstance(chosen, Exact) else ("projected", "exact")
    return Plan(
        clients=clients,
        dim=dim,
        dtype=dtype,
        device=device,
        sketch=chosen,
        eps=eps,
        delta=delta,
        rounds=rounds,
        span_eps=_promised(distortion, chosen, clients, delta, rounds),
        pairs_eps=_promised(pairwise_distortion, chosen, clients, delta, rounds),
        extra_bytes=_extra(chosen, clients),
        one_read=on.read * clients * dim,
        prices=priced(names[0]),
        rejected=rejected,
        rejected_prices=() if rejected is None else priced(names[1]),
        why=why,
        machine=on.name,
    )


@dataclass(frozen=True)
class _Kind:
    """What the price of a rule depends on."""

    name: str
    takes_one: bool = False
    iterates: bool = True
    needs_distances: bool = True

    def weights(self, on: Machine) -> tuple[float, float]:
        return on.iterate if self.iterates else on.choose


def _kinds(rule: Rule | CoordinateWise | str | None) -> list[_Kind]:
    if rule is None:
        return [_Kind("one client (Krum)", takes_one=True, iterates=False), _Kind("all clients (geometric median)")]
    if isinstance(rule, str):
        classes = registry.rule_classes(rule)
        name, kind = rule, Mixed if len(classes) > 1 else classes[-1]
    elif isinstance(rule, (Rule, CoordinateWise)):
        name, kind = repr(rule), type(rule)
    else:
        raise TypeError(f"rule must be a rule such as Krum(n_byzantine=5), or its name; got {rule!r}.")
    if issubclass(kind, CoordinateWise):
        raise ValueError(f"{name} judges each coordinate by itself: there is nothing to project, and no plan to make.")
    return [_Kind(name, kind is Krum, not issubclass(kind, Krum), kind.needs_distances)]


def _promised(
    promise: Callable[..., float], sketch: Exact | Rotated, clients: int, delta: float, rounds: int
) -> float | None:
    if isinstance(sketch, Exact):
        return 0.0
    try:
        return promise(sketch.k, clients, delta, rounds)
    except ValueError:  # eps would not be below 1
        return None


def _extra(sketch: Exact | Rotated, clients: int) -> int:
    """The sketches, a handful of M x M matrices, and a block of columns."""
    sketches = 8 * clients * sketch.k if isinstance(sketch, Rotated) else 0
    return sketches + 8 * 8 * clients**2 + 8 * 2**20


def _titled(title: str, lines: list[str]) -> list[str]:
    return [f"{title if i == 0 else '':<10} {line}" for i, line in enumerate(lines)]


def _seconds(seconds: float) -> str:
    scale, unit = next((pair for pair in ((1.0, "s"), (1e-3, "ms")) if seconds >= pair[0]), (1e-6, "us"))
    return f"{seconds / scale:.3g} {unit}"


def _bytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
