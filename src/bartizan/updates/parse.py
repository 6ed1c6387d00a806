"""Parse any container of client updates into `Updates`: check layouts, quarantine clients that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from bartizan._util.text import short
from bartizan.errors import BadClientError, TooFewClientsError, nobody_left
from bartizan.updates.column_pass import UNLIMITED, ColumnPass
from bartizan.updates.columns import HostRows, Row, UpdateRows, stack
from bartizan.updates.dlpack import borrowed, speaks_dlpack
from bartizan.updates.layout import (
    Entry,
    Layout,
    Path,
    as_numpy,
    as_numpy_matrix,
    device_of,
    dtype_name,
    flat_of,
    is_array,
    layout_key,
    on_gpu,
    plain_and_leaves,
)
from bartizan.updates.server_inputs import server_leaves, server_row, shapes, shown
from bartizan.updates.updates import Updates

REASON_CHARACTERS = 300  # characters of a reason for quarantine
NO_FLOATS = (
    "The updates hold no floating-point numbers to aggregate (convert integers with .astype(float) or .float())."
)


def parse_updates(
    updates: Any,
    *,
    reference: Any = None,
    trusted: Any = None,
    strict: bool = False,
    column_pass: ColumnPass = UNLIMITED,
) -> Updates:
    """Inspect every client's container, without reading a number, and keep those of the common layout."""
    one_array = is_array(updates)
    if not one_array and speaks_dlpack(type(updates)):
        updates, one_array = borrowed(updates), True
    if one_array:
        return _parse_matrix(updates, reference, trusted, column_pass)
    inspected = InspectedUpdates.of(as_list(updates))
    layout = inspected.common_layout(reference)
    return inspected.fitted(layout, reference=reference, trusted=trusted, strict=strict, column_pass=column_pass)


def _parse_matrix(updates: Any, reference: Any, trusted: Any, column_pass: ColumnPass) -> Updates:
    """Parse one array with a row per client: all clients have the same layout."""
    if updates.ndim < 2:
        raise ValueError(
            f"Wanted one row per client, (M, p); got an array of shape {tuple(updates.shape)}. "
            f"For a single client pass update[None]."
        )
    M = len(updates)
    if not M:
        raise TooFewClientsError("Wanted at least one client's update, got none.")
    layout = _one_entry(tuple(updates.shape[1:]), dtype_name(updates), device_of(updates))
    if not layout.dim:
        raise ValueError(f"{NO_FLOATS} Got an array of {updates.dtype} and shape {tuple(updates.shape)}.")
    rows: UpdateRows
    if on_gpu(updates):
        from bartizan.updates.gpu_rows import GpuRows

        rows = GpuRows.of_matrix(updates, layout)
    else:
        x = as_numpy_matrix(updates)
        rows = HostRows.of_matrix(x) or stack([Row((as_numpy(row),), ()) for row in x], layout)
    return Updates(
        layout=layout,
        rows=rows,
        integers=((),) * M,
        clients=tuple(range(M)),
        n_sent=M,
        quarantined={},
        containers=(updates[0],) * M,
        reference=None if reference is None else server_row("reference", reference, layout, column_pass),
        trusted=None if trusted is None else server_row("trusted", trusted, layout, column_pass),
        column_pass=column_pass,
    )


@lru_cache(maxsize=16)
def _one_entry(shape: tuple[int, ...], dtype: str, device: str) -> Layout:
    """The layout of updates that are one array each, cached: small rounds are called often."""
    return Layout((Entry((), shape, dtype, device),))


def as_list(updates: Any) -> Sequence[Any]:
    """Return one item per client; raise TypeError on a container that has no order of clients."""
    if isinstance(updates, (str, bytes, Mapping, Set)) or not isinstance(updates, Iterable):
        raise TypeError(
            f"Wanted a 2-D array or a list with one update per client; got {type(updates).__name__}. "
            f"From a dict of clients pass list(updates.values())."
        )
    if hasattr(updates, "to_numpy"):
        raise TypeError(f"Wanted an array or a list; got {type(updates).__name__}. Pass .to_numpy().")
    sent = list(updates)
    if not sent:
        raise TooFewClientsError("Wanted at least one client's update, got none.")
    return sent


class ParsedUpdate(NamedTuple):
    """One client's update: in plain containers, its arrays by their path, their layout, and the arrays in its order."""

    plain: Any
    leaves: dict[Path, Any]
    layout: Layout
    row: Row


@dataclass(frozen=True)
class InspectedUpdates:
    """The layouts of all clients' updates, before any number is read."""

    parsed: dict[int, ParsedUpdate]
    unreadable: dict[int, str]

    @classmethod
    def of(cls, sent: Sequence[Any]) -> InspectedUpdates:
        parsed: dict[int, ParsedUpdate] = {}
        unreadable: dict[int, str] = {}
        known: dict[Any, Layout] = {}  # most clients send the same layout: it is described once
        for client, update in enumerate(sent):
            try:
                parsed[client] = update if type(update) is ParsedUpdate else parse_one(update, known)
            except Exception as error:  # a client's container may raise anything; the round goes on
                unreadable[client] = reason_of(error)
        return cls(parsed, unreadable)

    def common_layout(self, reference: Any) -> Layout:
        """The layout that most clients sent; with a reference, among those with its entries and shapes."""
        layouts = [one.layout for one in self.parsed.values()]
        if not layouts:
            raise TooFewClientsError(nobody_left(len(self.unreadable)), self.unreadable)
        if reference is not None:
            wanted = shapes(server_leaves("reference", reference))
            fitting = [layout for layout in layouts if {e.path: e.shape for e in layout.entries} == wanted]
            if not fitting:
                came = {e.path: e.shape for e in Layout.most_common(layouts).entries}
                raise ValueError(
                    f"No client's update has the names and shapes of the reference: it has {shown(wanted)}, most "
                    f"clients sent {shown(came)}. Pass the reference in the clients' container."
                )
            layouts = fitting
        layout = Layout.most_common([layout for layout in layouts if layout.dim] or layouts)
        if not layout.dim:
            raise ValueError(f"{NO_FLOATS} Most clients sent {shown({e.path: e.shape for e in layout.entries})}.")
        return layout

    def quarantined(self, layout: Layout) -> dict[int, str]:
        """Return the clients that can't be read or have another layout, and why."""
        layouts = {id(one.layout): one.layout for one in self.parsed.values()}
        misfits = {key: None if own is layout else _misfit(layout, own) for key, own in layouts.items()}
        reasons = {client: misfits[id(one.layout)] for client, one in self.parsed.items()}
        return dict(sorted((self.unreadable | {c: reason for c, reason in reasons.items() if reason}).items()))

    def fitted(
        self,
        layout: Layout,
        *,
        reference: Any = None,
        trusted: Any = None,
        strict: bool = False,
        column_pass: ColumnPass = UNLIMITED,
    ) -> Updates:
        """Return the clients of this layout."""
        quarantined = self.quarantined(layout)
        if strict and quarantined:
            raise BadClientError(*next(iter(quarantined.items())))
        kept = [client for client in self.parsed if client not in quarantined]
        own = [self.parsed[client] for client in kept]
        rows = [one.row if one.layout is layout else _row(one.leaves, layout) for one in own]
        return Updates(
            layout=layout,
            rows=stack(rows, layout),
            integers=tuple([row.integers for row in rows]),
            clients=tuple(kept),
            n_sent=len(self.parsed) + len(self.unreadable),
            quarantined=quarantined,
            containers=tuple([self.parsed[client].plain for client in kept]),
            reference=None if reference is None else server_row("reference", reference, layout, column_pass),
            trusted=None if trusted is None else server_row("trusted", trusted, layout, column_pass),
            column_pass=column_pass,
        )


def parse_one(update: Any, known: dict[Any, Layout]) -> ParsedUpdate:
    """Inspect one update; raise TypeError if it can't take part.

    `known` keeps the layouts: clients that send the same one share it.
    """
    plain, leaves = plain_and_leaves(update)
    if not leaves:
        raise TypeError("the update is empty")
    key = layout_key(leaves)
    layout = known.get(key)
    if layout is None:
        layout = known[key] = Layout.of(leaves)
    return ParsedUpdate(plain, leaves, layout, _row(leaves, layout))


def alone(parsed: ParsedUpdate, column_pass: ColumnPass = UNLIMITED, **points: Any) -> Updates:
    """Return one update as `Updates` of one client, beside the server's own `points`; ValueError without floats."""
    if not parsed.layout.dim:
        raise ValueError(NO_FLOATS)
    return Updates(
        layout=parsed.layout,
        rows=stack([parsed.row], parsed.layout),
        integers=(parsed.row.integers,),
        clients=(0,),
        n_sent=1,
        quarantined={},
        containers=(parsed.plain,),
        column_pass=column_pass,
        **points,
    )


def _misfit(layout: Layout, own: Layout) -> str | None:
    """Return why a client's layout is not the round's; comparing a client's keys may raise anything."""
    try:
        misfit = layout.misfit(own)
    except Exception as error:
        return reason_of(error)
    return None if misfit is None else short(misfit, REASON_CHARACTERS)


def reason_of(error: Exception) -> str:
    """Return the reason for quarantine in an error, whose class a client may have defined."""
    try:
        said = str(error)
    except Exception:
        said = "its message can't be read"
    if not isinstance(error, TypeError):
        said = f"the update can't be read: {type(error).__name__}: {said}"
    return short(said, REASON_CHARACTERS)


def _row(leaves: dict[Path, Any], layout: Layout) -> Row:
    floats: list[Any] = []
    integers: list[Any] = []
    for entry in layout.entries:
        (floats if entry.is_float else integers).append(flat_of(leaves[entry.path]))
    return Row(tuple(floats), tuple(integers))
