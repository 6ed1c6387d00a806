"""What a worker does with the clients of its part once weights are decided: sum them, or send columns of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.partitioned.own_clients import (
    CHANGED,
    Held,
    Reading,
    clients_of,
    digest_of,
    filled,
    fitted,
    opened,
    whole,
)
from bartizan.partitioned.workers import WorkerError
from bartizan.rules.base import CoordinateStage
from bartizan.updates import Noise, Updates
from bartizan.updates.build import finish_sum, reduce_columns, write_sum
from bartizan.updates.column_pass import UNLIMITED
from bartizan.updates.columns import HostRows, Row, stack
from bartizan.updates.layout import Entry, Layout
from bartizan.updates.lazy import LostUpdatesError
from bartizan.updates.parse import InspectedUpdates
from bartizan.updates.server_inputs import Target, server_row


@dataclass
class PartialSum:
    """The weighted sum of some clients, in the widest of their dtypes, and the integers of each of them."""

    floats: list[Array]
    integers: dict[int, tuple[Array, ...]]
    changed: dict[int, str]
    """Clients that could not be read a second time, or were not the same: with any of them there is no sum."""

    def __add__(self, other: PartialSum) -> PartialSum:
        changed = self.changed | other.changed
        floats = [] if changed else [a + b for a, b in zip(self.floats, other.floats, strict=True)]
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
    layout = reading.layout
    assert layout is not None
    total = PartialSum([], {}, {})

    def add(updates: Updates, weights: Floats) -> None:
        some = [np.empty(entry.size, layout.widest) for entry in layout.float_entries]
        write_sum(updates, weights, 0.0, Row(tuple(some), ()))
        total.floats = [a + b for a, b in zip(total.floats, some, strict=True)] if total.floats else some

    total.integers, total.changed = _read_again(part, reading, points, chosen, add)
    return total


def cut_columns(
    part: Any, reading: Reading, points: Mapping[str, Any], chosen: Chosen, ends: Sequence[int]
) -> list[Any]:
    """The values of these clients in the coordinates up to each of `ends`; and last a sum of no numbers."""
    blocks: list[list[Array]] = [[] for _ in ends]

    def cut(updates: Updates, weights: Floats) -> None:
        for block, low, high in zip(blocks, [0, *ends], ends, strict=False):
            block.append(np.concatenate([updates.rows.row(row, low, high)[None] for row in range(len(updates))]))

    rest = PartialSum([], *_read_again(part, reading, points, chosen, cut))
    return [*(None if rest.changed else np.concatenate(block) for block in blocks), rest]


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
    (values,) = reduce_columns(Updates(own, rows, ((),) * n, tuple(range(n)), n, {}, None, reference), stage)
    return values


def _read_again(
    part: Any,
    reading: Reading,
    points: Mapping[str, Any],
    chosen: Chosen,
    use: Callable[[Updates, Floats], None],
) -> tuple[dict[int, tuple[Array, ...]], dict[int, str]]:
    """Use these clients, some at a time; returns their integers, and those that can't be used again and why."""
    layout = reading.layout
    assert layout is not None
    integers: dict[int, tuple[Array, ...]] = {}
    all_changed: dict[int, str] = {}

    def read(held: Held) -> None:  # whose memory is free when this returns, before more are opened
        clients, inspected = held.clients, InspectedUpdates.of(held.taken())
        changed = {clients[row]: reason for row, reason in inspected.quarantined(layout).items()}
        updates = fitted(inspected, layout, reading, points)
        if updates is not None:
            changed |= _changed(updates, [clients[row] for row in updates.clients], reading, chosen.digests)
        all_changed.update({chosen.first + client: reason for client, reason in changed.items()})
        if updates is None or all_changed:
            return
        weights = np.array([chosen.weights[client] for client in clients])
        try:
            with updates.reading():
                use(replace(updates, reference=None, trusted=None), weights)
                for row, client in enumerate(clients):
                    integers[chosen.first + client] = tuple(map(whole, updates.integers[row]))
        except LostUpdatesError as lost:
            all_changed.update({chosen.first + clients[row]: reason for row, reason in lost.reasons.items()})

    for held in opened(clients_of(part), list(chosen.weights), reading.memory):
        read(held)
    return integers, all_changed


def _changed(
    updates: Updates, clients: Sequence[int], reading: Reading, digests: Mapping[int, bytes]
) -> dict[int, str]:
    """Clients whose sketches are not those that were seen before, of those that were opened again."""
    again = [row for row, client in enumerate(clients) if client in digests]
    if not again:
        return {}
    sketched = reading.sketch.sketch_rows(updates.only(again), reading.seed)
    return {clients[row]: CHANGED for at, row in enumerate(again) if digest_of(sketched, at) != digests[clients[row]]}


def changed_of(total: PartialSum) -> dict[int, str]:
    return total.changed


def finished(
    total: PartialSum,
    layout: Layout,
    shells: Any,
    weights: Mapping[int, float],
    points: Mapping[str, Any],
    rest: float,
    noise: Noise,
    out: Any = None,
) -> Any:
    """The update from the sum of all clients and `rest` of the reference, in the form of a client's update."""
    sizes = [array.size for array in total.floats]
    wanted = [entry.size for entry in layout.float_entries]
    if sizes != wanted or sorted(total.integers) != sorted(weights):
        raise WorkerError(
            f"The workers' sum is wrongly shaped: wanted {len(weights)} clients and entries of {wanted} numbers, "
            f"got {len(total.integers)} and {sizes}."
        )
    row = Row(tuple(total.floats), ())
    clients = Updates(
        layout=layout,
        rows=stack([row], layout),
        integers=tuple(total.integers[client] for client in weights),
        clients=tuple(weights),
        n_sent=len(weights),
        quarantined={},
        like=filled(shells),
        reference=server_row("reference", points["reference"], layout, UNLIMITED),
        target=None if out is None else Target.of(out, layout, [], points),
    )
    return finish_sum(clients, np.array(list(weights.values())), rest, row, noise)
