"""Any container of client updates, looked at once, at the border: who takes part, who can't, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.kernels.rows import Rows
from bartizan.updates.column_pass import UNLIMITED, ColumnPass
from bartizan.updates.columns import GRANULE, SCRATCH, Columns, Located, Row, numbers
from bartizan.updates.integer_entries import medians
from bartizan.updates.layout import (
    Entry,
    Layout,
    Path,
    as_numpy,
    as_numpy_matrix,
    device_of,
    dtype_name,
    flat_of,
    form_of,
    is_array,
    like_leaf,
    on_gpu,
    place_of,
    rebuild,
    taken,
)
from bartizan.updates.server_inputs import shapes, shown, vouched, vouched_leaves
from bartizan.updates.target import Target

NO_FLOATS = (
    "The updates hold no floating-point numbers to aggregate (convert integers with .astype(float) or .float())."
)


@dataclass(frozen=True)
class Updates:
    """The updates that take part, the ones that can't, and the points they are measured from.

    `clients[r]` is the caller's index of row r. The row of a trusted update, if any, comes after all clients.
    """

    columns: Columns
    located: Located = field(repr=False)
    integers: tuple[tuple[Array, ...], ...] = field(repr=False)
    clients: tuple[int, ...]
    n_sent: int
    quarantined: dict[int, str]
    like: Any = field(repr=False)  # the container that a result is built after
    reference: Row | None = field(default=None, repr=False)
    trusted: Row | None = field(default=None, repr=False)
    origin: Array | None = field(default=None, repr=False)  # the reference in one piece, for who reads it often
    target: Target | None = field(default=None, repr=False)  # what a result is written into, if not into new memory
    column_pass: ColumnPass = field(default=UNLIMITED, repr=False)
    first: int = 0  # which coordinate of the whole update column 0 is: these may be a shard

    @classmethod
    def of(
        cls,
        updates: Any,
        *,
        reference: Any = None,
        trusted: Any = None,
        strict: bool = False,
        column_pass: ColumnPass = UNLIMITED,
    ) -> Updates:
        """Look at every client's container, without reading a number, and keep those of the common layout."""
        if is_array(updates):
            return cls._of_matrix(updates, reference, trusted, column_pass)
        sent = listed(updates)
        seen: dict[int, Seen] = {}
        quarantined: dict[int, str] = {}
        known: dict[Any, Layout] = {}  # most clients send what another sent: it is described once
        for client, update in enumerate(sent):
            try:
                seen[client] = _read(update, known)
            except Exception as unfit:  # a container may do anything when it is looked at; the round goes on
                quarantined[client] = why(unfit)
        layout = _agreed([one.layout for one in seen.values()], reference, quarantined)
        misfits = {id(own): _misfit(layout, own) for own in known.values()}
        for client, one in seen.items():
            misfit = misfits[id(one.layout)]
            if misfit:
                quarantined[client] = misfit
        quarantined = dict(sorted(quarantined.items()))
        if strict and quarantined:
            raise BadClientError(*next(iter(quarantined.items())))
        kept = [client for client in seen if client not in quarantined]
        rows, columns = [_row(seen[client].leaves, layout) for client in kept], Columns(layout)
        return cls(
            columns=columns,
            located=columns.located(rows),
            integers=tuple(row.integers for row in rows),
            clients=tuple(kept),
            n_sent=len(sent),
            quarantined=quarantined,
            like=_usual([seen[client] for client in kept], layout),
            reference=vouched("reference", reference, layout, column_pass),
            trusted=vouched("trusted", trusted, layout, column_pass),
            column_pass=column_pass,
        )

    @classmethod
    def _of_matrix(cls, updates: Any, reference: Any, trusted: Any, column_pass: ColumnPass) -> Updates:
        """One array with a row a client: all have the one layout, whatever the caller made of it."""
        if updates.ndim < 2:
            raise ValueError(
                f"Wanted one row a client, (M, p); got an array of shape {tuple(updates.shape)}. "
                f"For a single client pass update[None]."
            )
        M = len(updates)
        if not M:
            raise TooFewClientsError("Wanted at least one client's update, got none.")
        columns = _one_entry(tuple(updates.shape[1:]), dtype_name(updates), device_of(updates))
        layout = columns.layout
        if not layout.entries[0].is_float:
            raise ValueError(f"{NO_FLOATS} Got an array of {updates.dtype}.")
        if not columns.dim:
            raise ValueError(f"{NO_FLOATS} Got an array of shape {tuple(updates.shape)}.")
        return cls(
            columns=columns,
            located=_located(updates, columns),
            integers=((),) * M,
            clients=tuple(range(M)),
            n_sent=M,
            quarantined={},
            like=updates[0],
            reference=vouched("reference", reference, layout, column_pass),
            trusted=vouched("trusted", trusted, layout, column_pass),
            column_pass=column_pass,
        )

    def without(self, bad: dict[int, str]) -> Updates:
        """The same round with these rows (not clients) quarantined."""
        quarantined = self.quarantined | {self.clients[r]: reason for r, reason in bad.items()}
        fit = self.only([r for r in range(len(self)) if r not in bad])
        return replace(fit, quarantined=dict(sorted(quarantined.items())))

    def only(self, rows: Sequence[int]) -> Updates:
        """The same round, of which only these rows are looked at."""
        return replace(
            self,
            located=self.located.rows(rows),
            integers=tuple(self.integers[r] for r in rows),
            clients=tuple(self.clients[r] for r in rows),
        )

    def __len__(self) -> int:
        """How many clients take part."""
        return len(self.clients)

    @property
    def layout(self) -> Layout:
        return self.columns.layout

    @property
    def on_gpu(self) -> bool:
        return not isinstance(self.located, Located)

    @cached_property
    def everyone(self) -> Located:
        """The clients, and behind them the trusted update if there is one."""
        return self.located if self.trusted is None else self.located.with_row(self.columns.located([self.trusted]))

    def blocks(
        self, located: Located, multiple_of: int = 1, most: int | None = None
    ) -> Iterator[tuple[int, Rows, Array | None]]:
        """Walk the columns of these rows: (first coordinate, where they lie, the reference's part or None)."""
        self.column_pass.expect(len(located) * self.columns.dim)
        walk = located.blocks(multiple_of, most)
        if self.column_pass.spare is not None:
            walk = self.column_pass.gathered(self.columns, located, multiple_of, most)
        for start, block in walk:
            yield start, block, self._origin(start, start + block.width)
            self.column_pass.passed(self.columns, located.arrays, start, start + block.width)

    def parts(self, unit: int) -> Iterator[Updates]:
        """These clients, as many at a time as may be read in whole units, each part with the trusted update."""
        few = self.column_pass.rows_at_a_time(unit, self.columns.widest.itemsize, copied=self.located.odd)
        n_vouched = 0 if self.trusted is None else 1
        few = len(self) if few is None else max(1, few - n_vouched)
        starts = range(0, len(self), few)
        self.column_pass.expect((len(self) + n_vouched * len(starts)) * self.columns.dim)
        for start in starts:
            yield self if len(starts) == 1 else self.only(range(start, min(start + few, len(self))))

    def units(
        self, multiple_of: int, most: int | None, about: Located | None = None, tile: int = 1
    ) -> Iterator[tuple[int, Rows, Array | None]]:
        """Walk the columns of everyone, about the reference or a row, cut so that no sums depend on the company.

        What comes first is the coordinate of the whole update that a block begins at.
        """
        if self.column_pass.spare is not None:
            most = most or multiple_of
        for start, block in self.everyone.blocks(multiple_of, most, narrow=False, tile=tile):
            stop = start + block.width
            origin = self._origin(start, stop) if about is None else about.row(0, start, stop)
            yield self.first + start, block, origin
            self.column_pass.passed(self.columns, self.everyone.arrays, start, stop)
            if about is not None:
                self.column_pass.drop(self.columns, about.arrays, start, stop)

    @cached_property
    def _reference(self) -> Located | None:
        return None if self.reference is None else self.columns.located([self.reference])

    def with_reference_at_hand(self) -> Updates:
        """The same, with the reference's numbers in one piece of memory: its own, if they lie so, or a copy."""
        if self.reference is None or self.on_gpu or self.column_pass.spare is not None:
            return self
        assert self._reference is not None
        floats = self.reference.floats
        flat = floats[0] if len(floats) == 1 else np.concatenate(floats)
        return replace(self, origin=np.require(flat, self._reference.dtype, ["C", "A"]))

    def _origin(self, start: int, stop: int) -> Array | None:
        if self.origin is not None:
            return self.origin[start:stop]
        if self._reference is None:
            return None
        origin = self._reference.row(0, start, stop)
        self.column_pass.drop(self.columns, self._reference.arrays, start, stop)
        return origin

    def combine(self, weights: Floats) -> Any:
        """sum_m w_m x_m, and what is missing from 1 at the reference; clients of weight 0 are not read."""
        chosen = np.flatnonzero(weights)
        if not len(chosen):
            chosen = np.array([0])  # at weight 0: the answer is the reference, or zero
        rest = 1 - weights.sum()
        rest = rest if abs(rest) > 1e-12 else 0.0
        if self.on_gpu:
            there: Any = self.located
            return self._built(Row(there.combined(weights, rest, self._reference), ()), weights)
        out = self._blank()
        written = self.columns.located([out])
        for start, rows, origin in self.blocks(self.located.rows(chosen)):
            part = written.part(start, start + rows.width)
            rows.kernels.weighted_sum(rows, weights[chosen], rest, origin, part)
            self.column_pass.drop(self.columns, [out.floats], start, start + rows.width)
        return self._built(out, weights)

    def reduce(self, function: Callable[[Array], Floats], mixing: Floats, weights: Floats) -> Any:
        """Apply a coordinate-wise function to blocks of the rows that a matrix mixes; weights are for the counters."""
        chosen = np.flatnonzero(mixing.any(axis=0))
        mixing = mixing[:, chosen]
        as_they_are = mixing.shape == (len(chosen), len(chosen)) and bool((mixing == np.eye(len(chosen))).all())
        rest = 1 - mixing.sum(axis=1, keepdims=True)
        most = max(GRANULE, SCRATCH // (8 * len(self)) // GRANULE * GRANULE)
        most = self.column_pass.most(len(self), 24, GRANULE, most) or most  # each block is copied, widened and sorted

        if self.on_gpu:
            there: Any = self.located.rows(chosen)
            return self._built(Row(there.reduced(function, mixing, rest, self._reference, most), ()), weights)
        out = self._blank()
        written = self.columns.located([out])
        for start, rows, origin in self.blocks(self.located.rows(chosen), most=most):
            x = np.asarray(rows)
            if not as_they_are:
                x = mixing @ x.astype(np.float64) + (0 if origin is None else rest * origin)
            result = Rows.of(np.asarray(function(x), dtype=np.float64)[None])
            result.kernels.weighted_sum(result, np.ones(1), 0.0, None, written.part(start, start + rows.width))
            self.column_pass.drop(self.columns, [out.floats], start, start + rows.width)
        return self._built(out, weights)

    def fault(self, row: int) -> str:
        """What is wrong with the numbers of a row whose squared norm is not finite, or too large."""
        for entry, array in zip(self.columns.entries, self.located.arrays[row], strict=True):
            n_bad, first, kind = 0, 0, ""
            for low, piece in self.column_pass.pieces(array):
                values = numbers(piece, entry)
                bad = ~np.isfinite(values)
                if not n_bad and bad.any():
                    first, kind = low + int(bad.argmax()), "NaN" if np.isnan(values[bad.argmax()]) else "Inf"
                n_bad += int(bad.sum())
            if n_bad:
                return f"{entry} holds {kind}, first at {first}; {n_bad} of {entry.size} values are not finite"
        where = "" if self.reference is None else ", taken from the reference,"
        return f"its values{where} are so large that their squares overflow {self.columns.widest}"

    def _blank(self) -> Row:
        """Memory for a result: flat arrays of the entries' dtypes, bfloat16 as uint16; the caller's, if kernels can."""
        if self.target is not None and not self.columns.located([self.target.row]).odd:
            return self.target.row
        dtypes = ["uint16" if e.dtype == "bfloat16" else e.dtype for e in self.columns.entries]
        floats = (np.empty(e.size, dtype) for e, dtype in zip(self.columns.entries, dtypes, strict=True))
        return Row(tuple(floats), ())

    def _built(self, out: Row, weights: Floats) -> Any:
        if self.target is not None:
            return self.target.filled(out.floats, self._counters(weights).values())
        floats = {entry.path: array for entry, array in zip(self.columns.entries, out.floats, strict=True)}
        arrays = floats | self._counters(weights)
        return rebuild(self.like, lambda path, leaf: like_leaf(arrays[path], leaf))

    def _counters(self, weights: Floats) -> dict[Path, Array]:
        """Integer entries as the weighted median of the clients (and of the reference, for what stays there)."""
        rows = list(self.integers)
        if self.reference is not None:
            rows.append(self.reference.integers)
            weights = np.append(weights, max(0.0, 1 - weights.sum()))
        return medians([entry for entry in self.layout.entries if not entry.is_float], rows, weights)


@lru_cache(maxsize=16)
def _one_entry(shape: tuple[int, ...], dtype: str, device: str) -> Columns:
    """What rounds of one array a client have in common: small ones are called often."""
    return Columns(Layout((Entry((), shape, dtype, device),)))


def _located(x: Any, columns: Columns) -> Located:
    """The rows of one array."""
    if on_gpu(x):
        from bartizan.updates.on_gpu import OnGpu

        return cast("Located", OnGpu.of_matrix(x, columns))
    x = as_numpy_matrix(x)
    return Located.of_matrix(x) or columns.located([Row((as_numpy(row),), ()) for row in x])


def listed(updates: Any) -> Sequence[Any]:
    """One item a client, whatever came."""
    if isinstance(updates, (str, bytes, Mapping, Set)) or not isinstance(updates, Iterable):
        raise TypeError(
            f"Wanted a 2-D array or a list with one update a client; got {type(updates).__name__}. "
            f"From a dict of clients pass list(updates.values())."
        )
    if hasattr(updates, "to_numpy"):
        raise TypeError(f"Wanted an array or a list; got {type(updates).__name__}. Pass .to_numpy().")
    sent = list(updates)
    if not sent:
        raise TooFewClientsError("Wanted at least one client's update, got none.")
    return sent


def _agreed(layouts: list[Layout], reference: Any, quarantined: dict[int, str]) -> Layout:
    """The layout of this round: the reference's entries and shapes where there is one, else what most clients sent."""
    if not layouts:
        raise TooFewClientsError("No client sent a usable update.", quarantined)
    if reference is not None:
        wanted = shapes(vouched_leaves("reference", reference))
        fitting = [layout for layout in layouts if {e.path: e.shape for e in layout.entries} == wanted]
        if not fitting:
            came = {e.path: e.shape for e in Layout.most_common(layouts).entries}
            raise ValueError(
                f"No client's update has the names and shapes of the reference: it has {shown(wanted)}, most clients "
                f"sent {shown(came)}. Pass the reference in the clients' container."
            )
        layouts = fitting
    layout = Layout.most_common([layout for layout in layouts if layout.dim] or layouts)
    if not layout.dim:
        raise ValueError(f"{NO_FLOATS} Most clients sent {shown({e.path: e.shape for e in layout.entries})}.")
    return layout


class Seen(NamedTuple):
    """One client's update: in plain containers, its arrays by their path, and what they look like."""

    plain: Any
    leaves: dict[Path, Any]
    layout: Layout


def _read(update: Any, known: dict[Any, Layout]) -> Seen:
    """Look at one update; raises TypeError on what can't take part."""
    plain, leaves = taken(update)
    if not leaves:
        raise TypeError("the update is empty")
    marks = tuple([(path, leaf.shape, leaf.dtype, place_of(leaf)) for path, leaf in leaves.items()])
    if marks not in known:
        known[marks] = Layout.of(leaves)
    return Seen(plain, leaves, known[marks])


def _misfit(layout: Layout, own: Layout) -> str | None:
    """Why a client's layout is not the round's; its keys may be of any class, and do anything when compared."""
    try:
        misfit = layout.misfit(own)
    except Exception as unfit:
        return why(unfit)
    return None if misfit is None else _short(misfit)


def why(unfit: Exception) -> str:
    """The reason in an error that came of looking at an update; the error may be of a client's making."""
    try:
        said = str(unfit)
    except Exception:
        said = "it can't be said"
    if not isinstance(unfit, TypeError):
        said = f"the update can't be read: {type(unfit).__name__}: {said}"
    return _short(said)


def _short(reason: str, most: int = 300) -> str:
    return reason if len(reason) <= most else f"{reason[:most]} ..."


def _usual(kept: Sequence[Seen], layout: Layout) -> Any:
    """The update to build a result after: of the form that most sent, and in the layout's order if one of those is."""
    forms = [form_of(one.plain) for one in kept]
    usual = Counter(forms).most_common(1)[0][0]
    fitting = [one for one, form in zip(kept, forms, strict=True) if form == usual]
    return next((one for one in fitting if one.layout == layout), fitting[0]).plain


def _row(leaves: dict[Path, Any], layout: Layout) -> Row:
    arrays = [(entry.is_float, flat_of(leaves[entry.path])) for entry in layout.entries]
    return Row(tuple(a for is_float, a in arrays if is_float), tuple(a for is_float, a in arrays if not is_float))
