"""`bartizan plan`: predict what a sketch promises, and how much memory and time a round takes with it."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bartizan import registry
from bartizan._util import machine
from bartizan._util.arguments import number
from bartizan.rules import Krum
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.rules.preaggregators import Mixed
from bartizan.sketch import Exact, Rotated, distortion, embedding_dimension, pairwise_distortion
from bartizan.sketch.choose import USUAL_K, choose, costs_of
from bartizan.sketch.exact import Norms
from bartizan.studies.formatting import duration
from bartizan.updates import parse_updates
from bartizan.updates.layout import FLOATS

NUMBERS = {"cpu": 2**24, "cuda": 2**28}  # more than any cache holds
STAGES = ("sketch", "weigh", "combine")


def add_to(commands: Any) -> None:
    about = "which sketch, which k, what it promises and what it costs here"
    parser = commands.add_parser("plan", help=about, description=f"Say {about}.")
    parser.add_argument("--clients", type=number, required=True, metavar="M", help="how many clients")
    parser.add_argument("--dim", type=number, required=True, metavar="P", help="coordinates, such as 11.2M")
    parser.add_argument("--eps", type=float, help="distortion of the whole span to promise (default: that of k=4096)")
    parser.add_argument("--delta", type=float, default=0.05, help="odds that the promise is broken (default 0.05)")
    parser.add_argument("--rounds", type=number, default=100, help="the rounds for which it must hold (default 100)")
    parser.add_argument("--rule", help="a rule, such as krum or 'nnm >> geometric-median' (default: two kinds)")
    parser.add_argument("--dtype", choices=FLOATS, default="float32", help="of the updates (default float32)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="their device (default cpu)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    names = ("clients", "dim", "dtype", "device", "eps", "delta", "rounds", "rule")
    asked = {name: getattr(options, name) for name in names}
    plan(**asked)  # refuses what is wrong before anything is measured
    chosen = plan(**asked, on=measured(options.device, options.dtype))
    print(json.dumps(chosen.as_dict(), indent=1) if options.json else chosen)


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


def measured(device: str, dtype: str) -> Machine:
    """This machine, with its read speed measured in a fraction of a second, or a typical one without the device."""
    try:
        machine.checked_device(device)
        room = min(NUMBERS[device], machine.free_memory(device) // 64)
        clients = parse_updates(_filled(max(room // 16, 1) * 16, dtype, device).reshape(16, -1))
    except (ValueError, ModuleNotFoundError):  # no GPU here, or no torch for bfloat16
        return TYPICAL[device]
    seconds = [machine.timed(lambda: Norms().gram_stats(clients, 0), device)[1] for _ in range(5)]
    read = min(seconds[1:]) / (len(clients) * clients.layout.dim)  # the first call may compile
    return replace(TYPICAL[device], name=machine.name_of(device), read=read)


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
    """Predicted seconds of a round and of its stages, for one kind of rule."""

    rule: str
    sketch: float
    weigh: float
    combine: float
    seconds: float
    reads: float

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {duration(getattr(self, name))}" for name in STAGES)
        return f"{self.rule}: {duration(self.seconds)} = {self.reads:.1f} reads ({parts})"


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
        """The plan for JSON."""
        return asdict(self) | {"sketch": repr(self.sketch), "rejected": self.rejected and repr(self.rejected)}

    def __str__(self) -> str:
        parts = {
            "Take": [f"{self.sketch!r}: {self.why}"],
            "Promise": self._promise(),
            "Memory": [f"{self.extra_bytes / 2**20:,.1f} MiB beside the updates and the result"],
            "One read": [duration(self.one_read)],
            "Predicted": self.prices,
            "Rejected": [] if self.rejected is None else [self.rejected, *self.rejected_prices],
            "Machine": [self.machine],
        }
        lines = [f"{self.clients:,} clients of {self.dim:,} coordinates, {self.dtype} on {self.device}", ""]
        for title, said in parts.items():
            lines += [f"{title if i == 0 else '':<10} {line}" for i, line in enumerate(said)]
        return "\n".join(lines)

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
        return [span, pairs, proof, "are measured, not proven (docs/explanation/sketches.md)."]


def plan(
    clients: int,
    dim: int,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    eps: float | None = None,
    delta: float = 0.05,
    rounds: int = 100,
    rule: str | None = None,
    on: Machine | None = None,
) -> Plan:
    """Choose between `Exact()` and `Rotated(k)` by their price, and say what the choice promises.

    The arguments are the options of the command, and `on`, the machine to predict for: a typical one if not given.

    >>> print(plan(200, 1_000_000).sketch)
    Rotated(k=4096, mixing=32)
    """
    kinds, costs = _kinds(rule), costs_of(device)
    on = on or TYPICAL[device]
    # Checked here, so that a wrong eps or delta is refused also where Exact is taken in the end.
    needed = embedding_dimension(clients, 0.5 if eps is None else eps, delta, rounds)
    k = USUAL_K if eps is None else max(64, 2 ** math.ceil(math.log2(needed)))
    one_read = on.read * clients * dim
    exact, projected = costs.exact(clients, dim), costs.projected(clients, dim, k)

    def priced(numbers: float) -> tuple[Price, ...]:
        """The prices where the distances cost as much as reading so many numbers."""
        found = []
        for kind in kinds:
            fixed, pair = on.iterate if kind.iterates else on.choose
            stages = (
                on.call + on.client * clients + on.read * (numbers if kind.needs_distances else clients * dim),
                fixed + pair * clients**2,
                on.read * costs.combined(1 if kind.takes_one else clients, dim),
            )
            found.append(Price(kind.name, *stages, seconds=sum(stages), reads=sum(stages) / one_read))
        return tuple(found)

    chosen = choose(clients, dim, device, k)
    rejected: Exact | Rotated | None = None
    prices = priced(exact if isinstance(chosen, Exact) else projected)
    if not kinds[0].needs_distances:
        chosen, why = Exact(), "the rule needs norms only, which take one read"
    elif isinstance(chosen, Rotated):
        rejected = Exact()
        why = f"projected distances are {exact / projected:.1f} times as fast as exact ones"
    else:
        rejected = Rotated(k=k, mixing=min(32, k))
        why = f"exact distances are {projected / exact:.1f} times as fast as projected ones"
        if k >= dim:
            why = f"k={k} would not be fewer than the {dim:,} coordinates"
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
        # The sketches, a handful of M x M matrices, and a block of columns.
        extra_bytes=8 * (getattr(chosen, "k", 0) * clients + 8 * clients**2 + 2**20),
        one_read=one_read,
        prices=prices,
        rejected=rejected,
        rejected_prices=priced(projected if isinstance(chosen, Exact) else exact) if rejected else (),
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


def _kinds(rule: str | None) -> list[_Kind]:
    if rule is None:
        return [_Kind("one client (Krum)", takes_one=True, iterates=False), _Kind("all clients (geometric median)")]
    classes = registry.rule_classes(rule)
    kind = Mixed if len(classes) > 1 else classes[-1]
    if issubclass(kind, CoordinateWise):
        raise ValueError(f"{rule} judges each coordinate by itself: there is nothing to project, and no plan to make.")
    return [_Kind(rule, kind is Krum, not issubclass(kind, Krum), kind.needs_distances)]


def _promised(
    promise: Callable[..., float], sketch: Exact | Rotated, clients: int, delta: float, rounds: int
) -> float | None:
    if isinstance(sketch, Exact):
        return 0.0
    try:
        return promise(sketch.k, clients, delta, rounds)
    except ValueError:  # eps would not be below 1
        return None
