"""What a worker does with the clients of its part: open them, inspect and sketch them, send one of them.

Steps are functions of a part and of plain arguments, and keep nothing: an engine may run them anywhere, and again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan._util.text import short
from bartizan._util.types import Array
from bartizan.errors import EXHAUSTED
from bartizan.measure.base import SketchedRows, StreamingSketch
from bartizan.measure.geometry import norm_limit
from bartizan.sources.partitioned.workers import WorkerError
from bartizan.updates import ColumnPass, Updates
from bartizan.updates.column_pass import as_bytes
from bartizan.updates.columns import Row, stack
from bartizan.updates.files import open_paths
from bartizan.updates.layout import (
    Layout,
    Unreadable,
    form_of,
    is_array,
    is_tensor,
    leaves_of,
    on_gpu,
    plain_and_leaves,
    rebuild,
)
from bartizan.updates.parse import InspectedUpdates, ParsedUpdate, as_list, reason_of

HELD = 2**27  # bytes of updates that a worker opens at a time, if no memory limit is given
CHANGED = "its update changed between sketching and summing"


@dataclass(frozen=True)
class Reading:
    """What every worker needs to read its clients."""

    sketch: StreamingSketch
    seed: int = field(repr=False)
    memory: int | str | None
    request_timeout: float
    max_bytes: int
    """Bytes that an update in a store may have."""
    layout: Layout | None = None
    """None as long as it is not agreed: each part then takes what most of its own clients sent."""
    scale: float = 1.0

    def prepared(self, updates: Updates) -> Updates:
        """The updates, to be read within the memory budget of a worker and at this scale."""
        updates = replace(updates, column_pass=ColumnPass.of(self.memory))
        return updates.prepared(None, {}, *self.sketch.working_set(), distances=False).scaled(self.scale)


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
        """An array of this dtype and shape; its memory is never written to, and so takes no RAM."""
        if not self.is_tensor:
            return np.empty(self.shape, self.dtype)
        import torch

        return torch.empty(self.shape, dtype=self.dtype)


def shells_of(update: Any) -> Any:
    """The container of an update, with a `Shell` in the place of each array."""
    return rebuild(update, lambda _, leaf: Shell.of(leaf))


def filled(shells: Any) -> Any:
    """An update of the form that these shells describe."""
    return rebuild(shells, lambda _, shell: shell.array())


@dataclass
class PartReport:
    """The layouts of the clients of a part, and the sketches of those of one layout."""

    n_sent: int
    layout: Layout | None
    """The layout that clients were sketched in; None if that of most can't be."""
    kinds: list[tuple[Layout, Any, Any]] = field(default_factory=list)
    """Layouts, forms, and containers without numbers, each once."""
    kind_of: dict[int, int] = field(default_factory=dict)
    """Which of these a client sent."""
    unreadable: dict[int, str] = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)
    """Those that were sketched, in order."""
    sketched: SketchedRows | None = None
    faults: dict[int, str] = field(default_factory=dict)
    """What is wrong with the numbers of clients whose norms are not finite, or too large."""
    digests: dict[int, bytes] = field(default_factory=dict)
    """Of the sketches of clients that the worker opened itself and will open again."""
    version: str = field(default_factory=lambda: __version__)  # of this library on the worker

    def kind(self, one: ParsedUpdate, known: dict[Any, int]) -> int:
        """The place of this update's layout and form among `kinds`; `known` has those of equal layouts by identity."""
        form = form_of(one.plain)
        place = known.get((id(one.layout), form))
        if place is None:
            places = (at for at, kind in enumerate(self.kinds) if kind[:2] == (one.layout, form))
            place = next(places, len(self.kinds))
            if place == len(self.kinds):
                self.kinds.append((one.layout, form, shells_of(one.plain)))
            known[id(one.layout), form] = place
        return place


@dataclass(frozen=True)
class FirstReading:
    """The first sketches of clients that the worker opens again: they must not have changed since."""

    reading: Reading
    digests: Mapping[int, bytes]
    """By the client's number within the part."""

    def changed(self, sketched: SketchedRows, clients: Sequence[int]) -> dict[int, str]:
        """Those of these clients, one a row, that were sketched otherwise before, and the reason to give."""
        digests = ((client, digest_of(sketched, row)) for row, client in enumerate(clients))
        return {client: CHANGED for client, digest in digests if self.digests.get(client, digest) != digest}


def inspect_part(
    part: Any,
    reading: Reading,
    points: Mapping[str, Any],
    wanted: Sequence[int] | None = None,
    about: Sequence[Array] | None = None,
    first: FirstReading | None = None,
) -> PartReport:
    """Inspect and sketch these clients of a part, or all, about the reference or about the arrays of one client.

    Clients that are opened again must be what they were at the `first` reading.
    """
    items = clients_of(part)
    report = PartReport(len(items), reading.layout)
    sketches = [_inspect_held(held, report, reading, points, about, first) for held in opened(items, wanted, reading)]
    if some := [sketched for sketched in sketches if sketched is not None]:
        report.sketched = SketchedRows.stacked(some)
    return report


def _inspect_held(
    held: Held,
    report: PartReport,
    reading: Reading,
    points: Mapping[str, Any],
    about: Sequence[Array] | None,
    first: FirstReading | None,
) -> SketchedRows | None:
    """Sketch the clients that are held, and add them to the report."""
    clients, inspected = held.clients, InspectedUpdates.of(held.taken())
    known: dict[Any, int] = {}  # by identity of the layout: most clients share one object
    for row, one in list(inspected.parsed.items()):
        try:
            report.kind_of[clients[row]] = report.kind(one, known)
        except Exception as error:  # names and containers may be of a client's own classes
            del inspected.parsed[row]
            inspected.unreadable[row] = reason_of(error)
    report.unreadable |= {clients[row]: reason for row, reason in inspected.unreadable.items()}
    try:
        layout = report.layout = report.layout or inspected.common_layout(points["reference"])
        updates = fitted(inspected, layout, points)
    except ValueError:
        if reading.layout is not None:
            raise
        return None  # these clients alone do not tell the layout: the caller knows those of all parts
    if updates is None:
        return None
    if first is not None and first.digests.keys() & set(clients):
        again = first.reading.prepared(replace(updates, trusted=None))
        sketched = first.reading.sketch.sketch_rows(again, first.reading.seed)
        changed = first.changed(sketched, [clients[row] for row in updates.clients])
        report.unreadable |= changed
        updates = updates.only([at for at, row in enumerate(updates.clients) if clients[row] not in changed])
        if not len(updates):
            return None
    updates = reading.prepared(updates)
    rows = None if about is None else stack([Row(tuple(about), ())], layout)
    sketched = reading.sketch.sketch_rows(updates, reading.seed, rows)
    fitting = [clients[row] for row in updates.clients]
    fit = sketched.squared_norms[: len(fitting)] <= norm_limit(layout.widest)  # False for NaN
    report.clients += fitting
    unfit = np.flatnonzero(~fit).tolist()
    report.faults |= {fitting[row]: updates.fault(row) for row in unfit}
    report.digests |= {client: digest_of(sketched, row) for row, client in enumerate(fitting) if client in held.opened}
    return sketched


def send_row(
    part: Any, reading: Reading, points: Mapping[str, Any], client: int, digest: bytes | None
) -> list[Array] | str:
    """The floating-point arrays of one client, copied; or why it can't be read again."""
    (held,) = opened(clients_of(part), [client], reading)
    inspected, layout = InspectedUpdates.of(held.taken()), reading.layout
    assert layout is not None
    updates = fitted(inspected, layout, points)
    if updates is None:
        return inspected.quarantined(layout)[0]
    arrays = [np.array(array) for array in updates.rows.arrays[0]]
    if digest is not None:
        # Of the copy: it is what the others will be measured from.
        copy = reading.prepared(replace(updates, rows=stack([Row(tuple(arrays), ())], layout), trusted=None))
        if digest_of(reading.sketch.sketch_rows(copy, reading.seed), 0) != digest:
            return CHANGED
    return arrays


def fitted(inspected: InspectedUpdates, layout: Layout, points: Mapping[str, Any]) -> Updates | None:
    """The clients of this layout; None if there are none."""
    if len(inspected.quarantined(layout)) == len(inspected.parsed) + len(inspected.unreadable):
        return None
    return inspected.fitted(layout, **points)


def clients_of(part: Any) -> Sequence[Any]:
    """One item a client: an update, or what it is opened from."""
    part = part() if callable(part) else part
    if is_array(part):
        return list(part)
    return [] if isinstance(part, (list, tuple)) and not part else as_list(part)


@dataclass
class Held:
    """Updates that are in memory at a time."""

    clients: list[int] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)
    opened: set[int] = field(default_factory=set)
    """Those that the worker opened itself."""
    size: int = 0

    def taken(self) -> list[Any]:
        """The updates, which are no longer held here: their memory is free when the caller is done."""
        taken, self.updates = self.updates, []
        return taken


def opened(items: Sequence[Any], wanted: Iterable[int] | None, reading: Reading) -> Iterator[Held]:
    """Updates of these clients, as many at a time as may be in memory."""
    limit = HELD if reading.memory is None else as_bytes(reading.memory) // 2
    limits = {"timeout": reading.request_timeout, "max_bytes": reading.max_bytes}
    held, clients = Held(), list(range(len(items)) if wanted is None else wanted)
    # What is in files is mapped, and takes no memory: all at once.
    mapped = iter(open_paths([items[client] for client in clients if not callable(items[client])], **limits))
    for client in clients:
        item, size = items[client], 0
        update = open_paths([_called(item, client)], **limits)[0] if callable(item) else next(mapped)
        try:
            given, update = update, _in_host_memory(update)
            if callable(item) or update is not given:
                size = sum(leaf.nbytes for leaf in leaves_of(update).values())
        except Exception as error:  # a client's container may raise anything; the other clients can be read
            update = Unreadable(reason_of(error))
        if held.clients and held.size + size > limit:
            yield held
            held = Held()
        held.clients.append(client)
        held.updates.append(update)
        held.size += size
        if update is not item:
            held.opened.add(client)
    if held.clients:
        yield held


def _called(item: Callable[[], Any], client: int) -> Any:
    """The update that a function returns, or why it can't be read; WorkerError if that is the worker's own fault."""
    try:
        return item()
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in EXHAUSTED):
            raise WorkerError(
                f"client {client} of the part can't be opened: {type(error).__name__}: {short(error)}. Give this "
                "worker more memory, file descriptors or disk, or fewer clients at a time by memory=. A path needs "
                "less than a function, and its size is checked before memory is taken."
            ) from error
        return Unreadable(reason_of(error))


def _in_host_memory(update: Any) -> Any:
    """The update itself, or a copy in host memory if it is on a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or not any(map(on_gpu, leaves_of(update).values())):
        return update
    return rebuild(plain_and_leaves(update)[0], lambda _, leaf: leaf.cpu() if on_gpu(leaf) else leaf)


def digest_of(sketched: SketchedRows, row: int) -> bytes:
    numbers = sketched.sketches[row].tobytes() + sketched.squared_norms[row].tobytes()
    return hashlib.blake2b(numbers, digest_size=16).digest()
