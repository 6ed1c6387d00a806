"""One rank's columns of all updates, at their place among all coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bartizan.distributed.dtensors import Place, dtensors_of, is_dtensor, local, locals_of
from bartizan.distributed.empty import Empty, has_no_columns, zeros_like
from bartizan.updates import Updates, parse_updates
from bartizan.updates.columns import Columns, Row
from bartizan.updates.files import open_paths
from bartizan.updates.layout import Entry, Layout, is_array, is_tensor, leaves_of
from bartizan.updates.parse import as_list


@dataclass(frozen=True)
class Shard:
    """The columns here, as updates by themselves; a rank without any has one of zeros, which changes no sum."""

    clients: Updates
    first: int | None
    width: int
    place: Place | None = None
    empty: Empty | None = None

    @classmethod
    def of(cls, shard: Any, offset: int | None, reference: Any, trusted: Any) -> Shard:
        place = None
        if not is_array(shard):
            shard = as_list(open_paths(shard))
        if dtensors_of(shard):
            if offset is not None:
                raise ValueError("A DTensor knows where its columns lie: leave offset out.")
            if is_array(shard):
                place = Place.of(shard, ndim=2)
                shard = shard.to_local()
            else:
                shard, place = locals_of(shard)
            offset = place.first
        elif not is_array(shard) and any(map(_holds_dtensors, shard)):
            raise TypeError(
                "DTensors inside of a container have no common order of coordinates: pass their .to_local(), without "
                "an offset, or one flat DTensor a client."
            )
        if offset is not None and (isinstance(offset, bool) or int(offset) != offset or offset < 0):
            raise ValueError(f"offset must be the coordinate of the shard's first column, 0 or more; got {offset!r}.")
        points = {"reference": local("reference", reference, place), "trusted": local("trusted", trusted, place)}
        if has_no_columns(shard):
            empty = Empty(list(shard), points)
            return cls(empty.clients(), offset, 0, place, empty)
        clients = parse_updates(shard, **points)
        return cls(clients, offset, clients.columns.dim, place)

    @property
    def dtypes(self) -> tuple[str, ...]:
        if self.empty is not None:
            return self.empty.dtypes
        return tuple(sorted({entry.dtype for entry in self.clients.columns.entries}))

    @property
    def device(self) -> str:
        return self.clients.layout.entries[0].device

    def among(self, dtypes: tuple[str, ...]) -> Shard:
        """The same among ranks whose updates are of these dtypes."""
        if self.empty is None or self.empty.dtypes:
            return self
        return replace(self, clients=self.empty.clients(max(dtypes, key=lambda name: name == "float64")))

    def built(self, update: Any) -> Any:
        """This rank's part of the result, in the form of a client's."""
        update = update if self.empty is None else self.empty.built(update)
        return update if self.place is None else self.place.built(update)


def at_their_place(clients: Updates, first: int, multiple_of: int) -> Updates:
    """Columns that begin at coordinate `first`, led by zeros from the multiple below on: the rest of a block that a
    sketch maps as a whole is another rank's, and the sketches of both parts add up to that of the block.
    """
    lead = first % multiple_of
    if not lead:
        return replace(clients, first=first)
    arrays, own = clients.located.arrays, clients.columns.entries[0]
    zeros = zeros_like(arrays[0][0], lead)
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
    return None if row is None else Row((zeros_like(row.floats[0], lead), *row.floats), row.integers)


def _holds_dtensors(update: Any) -> bool:
    if is_tensor(update):
        return False
    try:
        return any(map(is_dtensor, leaves_of(update).values()))
    except Exception:  # a container may do anything when it is looked at: Updates says what
        return False
