"""Steps on the worker of a part: inspect and sketch its clients, send one of them, sum them with their weights.

Steps are functions of a part and of plain arguments, and keep nothing: an engine may run them anywhere, and again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan._util.types import Array
from bartizan.kernels.protocol import ColumnBlock
from bartizan.kernels.rows import Rows
from bartizan.measure.geometry import norm_limit
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import StreamingSketch
from bartizan.sources.partitioned.opening import Held, clients_of, opened
from bartizan.updates import ColumnPass, Updates
from bartizan.updates.columns import Row, stack
from bartizan.updates.layout import Layout, is_tensor, rebuild
from bartizan.updates.parse import InspectedUpdates, ParsedUpdate, reason_of
from bartizan.updates.updates import form_of

CHANGED = "its update changed between sketching and summing"


@dataclass(frozen=True)
class ReadPlan:
    """The settings by which every worker reads its clients."""

    sketch: StreamingSketch
    seed: int = field(repr=False)
    memory: int | str | None
    request_timeout: float
    max_bytes: int
    """Bytes that an update in a store may have."""
    layout: Layout | None = None
    """None as long as it is not agreed: each part then takes the layout of most of its own clients."""
    scale: float | None = None

    def prepared(self, updates: Updates) -> Updates:
        """Return the updates, to be read within the memory budget of a worker and at this scale."""
        updates = replace(updates, column_pass=ColumnPass.of(self.memory))
        updates.limit_memory(*self.sketch.working_set())
        return updates if self.scale is None else updates.scaled(self.scale)

    def opened(self, items: Sequence[Any], wanted: Iterable[int] | None) -> Iterator[Held]:
        return opened(items, wanted, self.memory, timeout=self.request_timeout, max_bytes=self.max_bytes)


@dataclass(frozen=True)
class FirstReading:
    """The first sketches of clients that the worker opens again: they must not have changed since."""

    plan: ReadPlan
    digests: Mapping[int, bytes]
    """Digests of the sketches, by the client's number within the part."""

    @property
    def layout(self) -> Layout:
        assert self.plan.layout is not None
        return self.plan.layout

    def changed(self, sketched: Measurements, clients: Sequence[int]) -> dict[int, str]:
        """Return those of these clients, one per row, whose first sketch was another one, and the reason to give."""
        digests = ((client, digest_of(sketched, row)) for row, client in enumerate(clients))
        return {client: CHANGED for client, digest in digests if self.digests.get(client, digest) != digest}


@dataclass(frozen=True)
class Shell:
    """An array of an update without its numbers."""

    dtype: Any
    shape: tuple[int, ...]
    is_tensor: bool

    @classmethod
    def of(cls, leaf: Any) -> Shell:
        return cls(leaf.dtype, tuple(leaf.shape), is_tensor(leaf))

    def array(self) -> Any:
        """Return an array of this dtype and shape, which repeats one number: a client may claim any size."""
        if not self.is_tensor:
            return np.broadcast_to(np.empty((), self.dtype), self.shape)
        import torch

        return torch.empty((), dtype=self.dtype).expand(self.shape)


@dataclass
class PartReport:
    """The layouts of the clients of a part, and the sketches of those of one layout."""

    n_sent: int
    layout: Layout | None
    """The layout that clients were sketched in; None if that of most can't be."""
    kinds: dict[tuple[Layout, Any], int] = field(default_factory=dict)
    """Layouts and forms of the clients' updates, each with its place in `shells`."""
    shells: list[Any] = field(default_factory=list)
    """Containers with a `Shell` in the place of each array."""
    kind_of: dict[int, int] = field(default_factory=dict)
    """The place in `shells` of each readable client's update."""
    unreadable: dict[int, str] = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)
    """The clients that were sketched, in order."""
    measured: Measurements | None = None
    faults: dict[int, str] = field(default_factory=dict)
    """The faults in the numbers of clients whose norms are not finite, or too large."""
    digests: dict[int, bytes] = field(default_factory=dict)
    """Digests of the sketches of clients that the worker opened itself and will open again."""
    version: str = field(default_factory=lambda: __version__)  # of this library on the worker

    def add_kind(self, client: int, one: ParsedUpdate) -> None:
        """Record the kind of a client's update."""
        place = self.kinds.setdefault((one.layout, form_of(one.plain)), len(self.shells))
        if place == len(self.shells):
            self.shells.append(rebuild(one.plain, lambda _, leaf: Shell.of(leaf)))
        self.kind_of[client] = place


def inspect_part(
    part: Any,
    plan: ReadPlan,
    points: Mapping[str, Any],
    wanted: Sequence[int] | None = None,
    about: Sequence[Array] | None = None,
    first: FirstReading | None = None,
) -> PartReport:
    """Inspect and sketch these clients of a part, or all, about the reference or about the arrays of one client.

    Clients that are opened again must be what they were at the `first` reading.
    """
    items = clients_of(part)
    report = PartReport(len(items), plan.layout)
    sketches = [_inspect_held(held, report, plan, points, about, first) for held in plan.opened(items, wanted)]
    if some := [sketched for sketched in sketches if sketched is not None]:
        report.measured = Measurements.joined(some)
    return report


def _inspect_held(
    held: Held,
    report: PartReport,
    plan: ReadPlan,
    points: Mapping[str, Any],
    about: Sequence[Array] | None,
    first: FirstReading | None,
) -> Measurements | None:
    """Sketch the clients that are held, and add them to the report."""
    clients, inspected = held.clients, InspectedUpdates.of(held.taken())
    for row, one in list(inspected.parsed.items()):
        try:
            report.add_kind(clients[row], one)
        except Exception as error:  # names and containers may be of a client's own classes
            del inspected.parsed[row]
            inspected.unreadable[row] = reason_of(error)
    report.unreadable |= {clients[row]: reason for row, reason in inspected.unreadable.items()}
    try:
        layout = report.layout = report.layout or inspected.common_layout(points["reference"])
        updates = _fitted(inspected, layout, points)
    except ValueError:
        if plan.layout is not None:
            raise
        return None  # these clients alone do not tell the layout: the caller knows those of all parts
    if updates is None:
        return None
    if first is not None and first.digests.keys() & set(clients):
        again = first.plan.prepared(replace(updates, trusted=None))
        sketched = first.plan.sketch.measure(again, first.plan.seed)
        changed = first.changed(sketched, [clients[row] for row in updates.clients])
        report.unreadable |= changed
        updates = updates.only([at for at, row in enumerate(updates.clients) if clients[row] not in changed])
        if not len(updates):
            return None
    updates = plan.prepared(updates)
    rows = None if about is None else stack([Row(tuple(about), ())], layout)
    sketched = plan.sketch.measure(updates, plan.seed, rows)
    fitting = [clients[row] for row in updates.clients]
    fit = sketched.squared_norms[: len(fitting)] <= norm_limit(layout.widest)  # False for NaN
    report.clients += fitting
    unfit = np.flatnonzero(~fit).tolist()
    report.faults |= {fitting[row]: updates.fault(row) for row in unfit}
    report.digests |= {client: digest_of(sketched, row) for row, client in enumerate(fitting) if client in held.opened}
    return replace(sketched, clients=tuple(fitting))


def send_row(part: Any, first: FirstReading, points: Mapping[str, Any], client: int) -> list[Array] | str:
    """Return copies of the floating-point arrays of one client, or why it can't be read again."""
    (held,) = first.plan.opened(clients_of(part), [client])
    inspected = InspectedUpdates.of(held.taken())
    updates = _fitted(inspected, first.layout, points)
    if updates is None:
        return inspected.quarantined(first.layout)[0]
    arrays = [np.array(array) for array in updates.rows.arrays[0]]
    if client in first.digests:
        # Of the copy: the others are measured from it.
        copy = replace(updates, rows=stack([Row(tuple(arrays), ())], first.layout), trusted=None)
        sketched = first.plan.sketch.measure(first.plan.prepared(copy), first.plan.seed)
        if first.changed(sketched, [client]):
            return CHANGED
    return arrays


@dataclass
class PartialSum:
    """The weighted sum of some clients, in the widest of their dtypes, and the integers of each of them."""

    floats: Array
    integers: dict[int, tuple[Array, ...]]
    changed: dict[int, str]
    """The clients that changed, or could not be read a second time, and why: with any of them there is no sum."""

    def __add__(self, other: PartialSum) -> PartialSum:
        changed = self.changed | other.changed
        floats = np.empty(0) if changed else self.floats + other.floats
        return PartialSum(floats, self.integers | other.integers, changed)


def weighted_sum(
    part: Any, first: FirstReading, points: Mapping[str, Any], offset: int, weights: Mapping[int, float]
) -> PartialSum:
    """Sum these clients of a part with their weights; `offset` is the index of the part's first client among all.

    Clients that are opened again are sketched in the same pass, as at the `first` reading.
    """
    total, summed = np.empty(first.layout.dim, first.layout.widest), 0  # columns that hold the sum of some clients
    integers: dict[int, tuple[Array, ...]] = {}
    changed: dict[int, str] = {}

    def add_held(held: Held) -> None:  # whose memory is free when this returns, before more are opened
        clients, inspected = held.clients, InspectedUpdates.of(held.taken())
        changed.update({clients[row]: reason for row, reason in inspected.quarantined(first.layout).items()})
        updates = _fitted(inspected, first.layout, points)
        if updates is None:
            return
        updates, own = first.plan.prepared(replace(updates, trusted=None)), np.array([weights[m] for m in clients])

        def add(some: Updates, start: int, block: ColumnBlock) -> None:
            nonlocal summed
            low, to = some.clients[0], total[start : start + block.width]
            before = to if start < summed else None
            block.kernels.weighted_sum(block, own[low : low + len(some)], 1.0, before, Rows.of(to[None]))
            summed = max(summed, start + block.width)

        if first.digests.keys() & set(clients):
            sketched = first.plan.sketch.measure(updates, first.plan.seed, use=add)
            changed.update(first.changed(sketched, [clients[row] for row in updates.clients]))
        else:
            for start, block, _ in updates.blocks(updates.rows):
                add(updates, start, block)
        for at, row in enumerate(updates.clients):
            integers[offset + clients[row]] = tuple(map(np.array, updates.integers[at]))

    for held in first.plan.opened(clients_of(part), list(weights)):
        add_held(held)
    reasons = {offset + client: reason for client, reason in changed.items()}
    return PartialSum(total[:0] if changed else total, integers, reasons)


def _fitted(inspected: InspectedUpdates, layout: Layout, points: Mapping[str, Any]) -> Updates | None:
    """Return the clients of this layout; None if there are none."""
    if len(inspected.quarantined(layout)) == len(inspected.parsed) + len(inspected.unreadable):
        return None
    return inspected.fitted(layout, **points)


def digest_of(sketched: Measurements, row: int) -> bytes:
    numbers = sketched.sketches[row].tobytes() + sketched.squared_norms[row].tobytes()
    return hashlib.blake2b(numbers, digest_size=16).digest()
