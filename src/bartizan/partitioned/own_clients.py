"""What a worker does with the clients of its part: open them, inspect and sketch them, send one of them.

Steps are functions of a part and of plain arguments, and keep nothing: an engine may run them anywhere, and again.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.geometry import norm_limit
from bartizan.sketch.base import SketchedRows, StreamingSketch
from bartizan.updates import ColumnPass, Updates
from bartizan.updates.column_pass import as_bytes
from bartizan.updates.columns import Row, slices, stack
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
from bartizan.updates.lazy import LazyArray
from bartizan.updates.parse import InspectedUpdates, ParsedUpdate, as_list, reason_of

HELD = 2**27  # bytes of updates that a worker opens at a time, if no memory limit is given
CHANGED = "its update was another one when it was read again than when it was sketched"


@dataclass(frozen=True)
class Reading:
    """How the workers read clients: the same for all parts."""

    sketch: StreamingSketch
    seed: int = field(repr=False)
    memory: int | str | None = None
    layout: Layout | None = None
    """None as long as it is not agreed: each part then takes what most of its own clients sent."""
    scale: float = 1.0


@dataclass(frozen=True)
class Shell:
    """An array of an update without its numbers."""

    dtype: Any
    shape: tuple[int, ...]
    is_tensor: bool

    @classmethod
    def of(cls, leaf: Any) -> Shell:
        if isinstance(leaf, LazyArray):
            leaf = leaf.like(np.empty(leaf.size, leaf.dtype))
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

    def kind(self, one: ParsedUpdate, form: Any) -> int:
        """The place of this update's layout and form among `kinds`."""
        for place, known in enumerate(self.kinds):
            if known[:2] == (one.layout, form):
                return place
        self.kinds.append((one.layout, form, shells_of(one.plain)))
        return len(self.kinds) - 1


def inspect_part(
    part: Any,
    reading: Reading,
    points: Mapping[str, Any],
    wanted: Sequence[int] | None = None,
    about: Sequence[Array] | None = None,
) -> PartReport:
    """Inspect and sketch these clients of a part, or all, about the reference or about the arrays of one client."""
    items = clients_of(part)
    report = PartReport(len(items), reading.layout)
    sketches = [_inspect_held(held, report, reading, points, about) for held in opened(items, wanted, reading.memory)]
    if some := [sketched for sketched in sketches if sketched is not None]:
        report.sketched = SketchedRows.stacked(some)
    return report


def _inspect_held(
    held: Held, report: PartReport, reading: Reading, points: Mapping[str, Any], about: Sequence[Array] | None
) -> SketchedRows | None:
    """Sketch the clients that are held, and add them to the report."""
    clients, inspected = held.clients, InspectedUpdates.of(held.taken())
    known: dict[Any, int] = {}  # by identity of the layout: most clients share one object
    for row, one in inspected.parsed.items():
        form = form_of(one.plain)
        kind = known.get((id(one.layout), form))
        if kind is None:
            kind = known[id(one.layout), form] = report.kind(one, form)
        report.kind_of[clients[row]] = kind
    report.unreadable |= {clients[row]: reason for row, reason in inspected.unreadable.items()}
    try:
        layout = report.layout = report.layout or inspected.common_layout(points["reference"])
        updates = fitted(inspected, layout, reading, points)
    except ValueError:
        if reading.layout is not None:
            raise
        return None  # these clients alone do not tell the layout: the caller knows those of all parts
    if updates is None:
        return None
    rows = None if about is None else stack([Row(tuple(about), ())], layout)
    sketched = reading.sketch.sketch_rows(updates, reading.seed, rows)
    fitting = [clients[row] for row in updates.clients]
    lost = {clients[row]: reason for row, reason in updates.lost().items()}
    sketched.squared_norms[[row for row, client in enumerate(fitting) if client in lost]] = np.nan
    fit = sketched.squared_norms[: len(fitting)] <= norm_limit(layout.widest)  # False for NaN
    report.clients += fitting
    unfit = np.flatnonzero(~fit).tolist()
    report.faults |= {fitting[row]: lost.get(fitting[row]) or updates.fault(row) for row in unfit}
    report.digests |= {client: digest_of(sketched, row) for row, client in enumerate(fitting) if client in held.opened}
    return sketched


def send_row(part: Any, client: int, layout: Layout) -> list[Array] | str:
    """The floating-point arrays of one client, copied; or why it can't be read again."""
    (held,) = opened(clients_of(part), [client], None)
    inspected = InspectedUpdates.of(held.taken())
    updates = fitted(inspected, layout)
    return inspected.quarantined(layout)[0] if updates is None else [whole(array) for array in updates.rows.arrays[0]]


def whole(array: Any) -> Array:
    """A copy of an array that may be in a store."""
    return slices([array], 0, array.size)[0] if isinstance(array, LazyArray) else np.array(array)


def fitted(
    inspected: InspectedUpdates, layout: Layout, reading: Reading | None = None, points: Mapping[str, Any] | None = None
) -> Updates | None:
    """The clients of this layout, ready to be read; None if there are none."""
    if len(inspected.quarantined(layout)) == len(inspected.parsed) + len(inspected.unreadable):
        return None
    memory = None if reading is None else reading.memory
    updates = inspected.fitted(layout, **(points or {}), column_pass=ColumnPass.of(memory))
    if reading is None:
        return updates
    return updates.prepared(None, {}, *reading.sketch.working_set()).scaled(reading.scale)


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


def opened(items: Sequence[Any], wanted: Iterable[int] | None, memory: int | str | None) -> Iterator[Held]:
    """Updates of these clients, as many at a time as may be in memory."""
    limit = HELD if memory is None else as_bytes(memory) // 2
    held, clients = Held(), list(range(len(items)) if wanted is None else wanted)
    # What is in files is mapped, and takes no memory: all at once.
    mapped = iter(open_paths([items[client] for client in clients if not callable(items[client])]))
    for client in clients:
        item, size = items[client], 0
        try:
            update = _in_host_memory(open_paths([item()])[0] if callable(item) else next(mapped))
            if callable(item) or _is_copied(update, item):
                size = sum(leaf.nbytes for leaf in leaves_of(update).values())
        except Exception as error:  # whatever goes wrong, the other clients can be read
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


def _in_host_memory(update: Any) -> Any:
    """The update itself, or a copy in host memory if it is on a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or not any(map(on_gpu, leaves_of(update).values())):
        return update
    return rebuild(plain_and_leaves(update)[0], lambda _, leaf: leaf.cpu() if on_gpu(leaf) else leaf)


def _is_copied(update: Any, item: Any) -> bool:
    """Whether a copy was made of an update that was in the memory of a GPU."""
    return update is not item and not isinstance(item, (str, os.PathLike))


def digest_of(sketched: SketchedRows, row: int) -> bytes:
    numbers = sketched.sketches[row].tobytes() + sketched.squared_norms[row].tobytes()
    return hashlib.blake2b(numbers, digest_size=16).digest()
