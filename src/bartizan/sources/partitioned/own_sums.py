"""What a worker does with the clients of its part once weights are decided: sum them, or send columns of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock
from bartizan.kernels.rows import Rows
from bartizan.rules.base import CoordinateStage
from bartizan.sources.partitioned.own_clients import (
    FirstReading,
    Held,
    Reading,
    clients_of,
    filled,
    fitted,
    opened,
)
from bartizan.sources.partitioned.workers import WorkerError
from bartizan.updates import Noise, Updates
from bartizan.updates.build import finish_sum, reduce_columns
from bartizan.updates.column_pass import UNLIMITED
from bartizan.updates.columns import HostRows, Row, stack
from bartizan.updates.layout import Entry, Layout
from bartizan.updates.parse import InspectedUpdates
from bartizan.updates.server_inputs import Target, server_row


@dataclass
class PartialSum:
    """The weighted sum of some clients, in the widest of their dtypes, and the integers of each of them."""

    floats: Array
    integers: dict[int, tuple[Array, ...]]
    changed: dict[int, str]
    """Clients that could not be read a second time, or were not the same: with any of them there is no sum."""

    def __add__(self, other: PartialSum) -> PartialSum:
        changed = self.changed | other.changed
        floats = np.empty(0) if changed else self.floats + other.floats
        return PartialSum(floats, self.integers | other.integers, changed)


@dataclass(frozen=True)
class Chosen:
    """Clients of one part that enter the result."""

    first: int
    """The index of the part's first client among all."""
    weights: Mapping[int, float]
    """By the client's number within the part."""
    digests: Mapping[int, bytes]
    """Of those that the worker opens again, which must be what was sketched."""


def weighted_sum(part: Any, reading: Reading, points: Mapping[str, Any], chosen: Chosen) -> PartialSum:
    """The weighted sum of these clients of a part."""
    layout, weights = reading.layout, np.array(list(chosen.weights.values()))
    assert layout is not None
    total, done = np.empty(layout.dim, layout.widest), 0  # columns that hold the sum of some clients

    def add(rows: slice, start: int, block: ColumnBlock) -> None:
        nonlocal done
        own = total[start : start + block.width]
        block.kernels.weighted_sum(block, weights[rows], 1.0, own if start < done else None, Rows.of(own[None]))
        done = max(done, start + block.width)

    integers, changed = _read_again(part, reading, points, chosen, add)
    return PartialSum(total[:0] if changed else total, integers, changed)


def cut_columns(
    part: Any, reading: Reading, points: Mapping[str, Any], chosen: Chosen, ends: Sequence[int]
) -> list[Any]:
    """The values of these clients in the coordinates up to each of `ends`; and last a sum of no numbers."""
    layout = reading.layout
    assert layout is not None
    values = np.empty((len(chosen.weights), layout.dim), layout.widest)

    def copy(rows: slice, start: int, block: ColumnBlock) -> None:
        values[rows, start : start + block.width] = np.asarray(block)

    rest = PartialSum(values[0, :0], *_read_again(part, reading, points, chosen, copy))
    cuts = zip([0, *ends], ends, strict=False)
    return [*(None if rest.changed else values[:, low:high] for low, high in cuts), rest]


def reduced_columns(
    stage: CoordinateStage, layout: Layout, points: Mapping[str, Any], low: int, high: int, *blocks: Array | None
) -> Floats | None:
    """A coordinate-wise stage on some coordinates of all clients, from the blocks of all parts."""
    known = [block for block in blocks if block is not None]
    if len(known) < len(blocks):
        return None  # a client was not the same again: the caller knows from its part
    rows = HostRows.of_matrix(np.concatenate(known))
    own = Layout((Entry((), (high - low,), "float64"),))  # rounded to the clients' dtypes at the end
    reference = server_row("reference", points["reference"], layout, UNLIMITED)
    if reference is not None:
        reference = Row((stack([reference], layout).row(0, low, high),), ())
    assert rows is not None
    n = len(rows)
    (values,) = reduce_columns(Updates(own, rows, ((),) * n, tuple(range(n)), n, {}, (), reference), stage)
    return values


def _read_again(
    part: Any,
    reading: Reading,
    points: Mapping[str, Any],
    chosen: Chosen,
    use: Callable[[slice, int, ColumnBlock], None],
) -> tuple[dict[int, tuple[Array, ...]], dict[int, str]]:
    """Use these clients in blocks: use(rows among them, first column, block). Where a client was opened again, the same
    pass sketches it again.

    Returns the clients' integers, and those that are not what was sketched before, or can't be read, and why: with any
    of them, what was used must be discarded.
    """
    layout = reading.layout
    assert layout is not None
    integers: dict[int, tuple[Array, ...]] = {}
    changed: dict[int, str] = {}

    def read(held: Held, first: int) -> None:  # whose memory is free when this returns, before more are opened
        clients, inspected = held.clients, InspectedUpdates.of(held.taken())
        changed.update({clients[row]: reason for row, reason in inspected.quarantined(layout).items()})
        updates = fitted(inspected, layout, points)
        if updates is None:
            return
        updates = reading.prepared(replace(updates, trusted=None))

        def use_part(some: Updates, start: int, block: ColumnBlock) -> None:
            at = first + some.clients[0]
            use(slice(at, at + len(some)), start, block)

        if chosen.digests.keys() & set(clients):
            sketched = reading.sketch.sketch_rows(updates, reading.seed, use=use_part)
            first_reading = FirstReading(reading, chosen.digests)
            changed.update(first_reading.changed(sketched, [clients[at] for at in updates.clients]))
        else:
            for start, block, _ in updates.blocks(updates.rows):
                use_part(updates, start, block)
        for row, at in enumerate(updates.clients):
            integers[chosen.first + clients[at]] = tuple(map(np.array, updates.integers[row]))

    first = 0
    for held in opened(clients_of(part), list(chosen.weights), reading):
        read(held, first)
        first += len(held.clients)
    return integers, {chosen.first + client: reason for client, reason in changed.items()}


def changed_of(*sums: PartialSum) -> dict[int, str]:
    return {client: reason for each in sums for client, reason in each.changed.items()}


def finished(
    layout: Layout,
    shells: Any,
    weights: Mapping[int, float],
    rest: float,
    noise: Noise,
    points: Mapping[str, Any],
    out: Any,
    *sums: PartialSum,
) -> Any:
    """The update from sums of the clients and `rest` of the reference, in the form of a client's update.

    None if a client has changed: the caller learns it by `changed_of`.
    """
    if changed_of(*sums):
        return None
    sizes = [each.floats.size for each in sums]
    integers = {client: arrays for each in sums for client, arrays in each.integers.items()}
    if set(sizes) != {layout.dim} or sorted(integers) != sorted(weights):
        raise WorkerError(
            f"The workers' sum is wrongly shaped: wanted {len(weights)} clients and {layout.dim} numbers, "
            f"got {len(integers)} and {sizes}."
        )
    # Dask's arrays begin at any byte of a message, and kernels read aligned numbers only.
    aligned = [np.require(each.floats, requirements="A") for each in sums]
    clients = Updates(
        layout=layout,
        rows=stack([Row(tuple(np.split(floats, layout.ends[:-1])), ()) for floats in aligned], layout),
        integers=tuple(integers[client] for client in weights),
        clients=tuple(weights),
        n_sent=len(weights),
        quarantined={},
        containers=(filled(shells),) * len(weights),
        reference=server_row("reference", points["reference"], layout, UNLIMITED),
        target=None if out is None else Target.of(out, layout, [], points),
    )
    return finish_sum(clients, np.array(list(weights.values())), rest, noise)
