"""One rank's columns of all updates, at their place among all coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bartizan.columns import Columns, Row
from bartizan.distributed.dtensors import Place, is_dtensor, local, sample_of
from bartizan.files import opened
from bartizan.layout import Entry, Layout, is_array, is_tensor, leaves_of
from bartizan.updates import Updates


@dataclass(frozen=True)
class Shard:
    """The columns here, as updates by themselves; a rank without any has one of zeros, which changes no sum."""

    clients: Updates
    first: int | None
    width: int
    place: Place | None = None
    empty: Any = None  # what to give back where there are no columns

    @classmethod
    def of(cls, shard: Any, offset: int | None, reference: Any, trusted: Any) -> Shard:
        place = None
        if not is_array(shard):
            shard = opened(shard)
        sample = sample_of(shard)
        if is_dtensor(sample):
            if offset is not None:
                raise ValueError("A DTensor knows where its columns lie: leave offset out.")
            place = Place.of(sample)
            offset = place.first
            shard = shard.to_local() if shard is sample else [local(update) for update in shard]
        elif not is_tensor(sample) and _holds_dtensors(sample):
            raise TypeError(
                "DTensors inside of a container have no common order of coordinates: pass their .to_local(), without "
                "an offset, or one flat DTensor a client."
            )
        if offset is not None and (isinstance(offset, bool) or int(offset) != offset or offset < 0):
            raise ValueError(f"offset must be the coordinate of the shard's first column, 0 or more; got {offset!r}.")
        points = {"reference": local(reference), "trusted": local(trusted)}
        if _has_no_columns(shard):
            return cls(_stand_in(shard, points), offset, 0, place, shard[0])
        clients = Updates.of(shard, **points)
        return cls(clients, offset, clients.columns.dim, place)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(sorted({entry.dtype for entry in self.clients.columns.entries}))

    @property
    def device(self) -> str:
        return self.clients.layout.entries[0].device

    def built(self, update: Any) -> Any:
        """This rank's part of the result, in the form of a client's."""
        if self.empty is not None:
            update = self.empty.clone() if is_tensor(self.empty) else self.empty.copy()
        return update if self.place is None else self.place.built(update)


def at_their_place(clients: Updates, first: int, multiple_of: int) -> Updates:
    """Columns that begin at coordinate `first`, led by zeros from the multiple below on: the rest of a block that a
    sketch maps as a whole is another rank's, and the sketches of both parts add up to that of the block.
    """
    lead = first % multiple_of
    if not lead:
        return replace(clients, first=first)
    arrays, own = clients.located.arrays, clients.columns.entries[0]
    zeros = _zeros(arrays[0][0], lead)
    columns = Columns(Layout((Entry(("lead",), (lead,), own.dtype, own.device), *clients.layout.entries)))
    return replace(
        clients,
        columns=columns,
        located=columns.located([Row((zeros, *arrays[m]), ()) for m in range(len(clients))]),
        reference=_led(clients.reference, lead),
        trusted=_led(clients.trusted, lead),
        first=first - lead,
    )


def _led(row: Row | None, lead: int) -> Row | None:
    return None if row is None else Row((_zeros(row.floats[0], lead), *row.floats), row.integers)


def _zeros(like: Any, count: int) -> Any:
    return like.new_zeros(count) if is_tensor(like) else np.zeros(count, like.dtype.newbyteorder("="))


def _has_no_columns(shard: Any) -> bool:
    if is_array(shard):
        return shard.ndim > 1 and len(shard) > 0 and 0 in shard.shape[1:]
    return isinstance(shard, (list, tuple)) and bool(shard) and all(is_array(x) and 0 in x.shape for x in shard)


def _stand_in(shard: Any, points: dict[str, Any]) -> Updates:
    for name, point in points.items():
        if point is not None and 0 not in np.shape(point):
            raise ValueError(f"{name} must have no columns where the shard has none; got shape {np.shape(point)}.")
    x = shard if is_array(shard) else shard[0]
    zeros = x.new_zeros((len(shard), 1)) if is_tensor(x) else np.zeros((len(shard), 1), x.dtype)
    vouched: dict[str, Any] = {name: None if point is None else zeros[0] for name, point in points.items()}
    return Updates.of(zeros, **vouched)


def _holds_dtensors(update: Any) -> bool:
    try:
        return any(map(is_dtensor, leaves_of(update).values()))
    except TypeError:
        return False
