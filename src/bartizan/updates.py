"""Any container of client updates as columns that are walked in blocks: no M x p copy is ever made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.kernels.rows import Rows, address
from bartizan.layout import (
    Entry,
    Layout,
    as_numpy,
    is_tensor,
    leaves_of,
    like_leaf,
    narrow_bfloat16,
    rebuild,
    widen_bfloat16,
)
from bartizan.types import Array, Floats

GRANULE = 4096  # no block is cut finer than this, except at the last coordinate
SCRATCH = 16 * 2**20  # bytes of one gathered block


@dataclass(frozen=True)
class Row:
    """One update's arrays in the order of the layout: NumPy views, flat where the memory is contiguous."""

    floats: tuple[Array, ...]
    integers: tuple[Array, ...]

    @classmethod
    def of(cls, leaves: dict[Any, Any], layout: Layout) -> Row:
        arrays = [(entry.is_float, as_numpy(leaves[entry.path])) for entry in layout.entries]
        return cls(tuple(a for is_float, a in arrays if is_float), tuple(a for is_float, a in arrays if not is_float))


@dataclass(frozen=True)
class Updates:
    """The updates that take part, the ones that can't, and the points they are measured from.

    `clients[r]` is the caller's index of row r. The row of a trusted update, if any, comes after all clients.
    """

    layout: Layout
    rows: tuple[Row, ...]
    clients: tuple[int, ...]
    n_sent: int
    quarantined: dict[int, str]
    like: Any = field(repr=False)  # the container that a result is built after
    reference: Row | None = None
    trusted: Row | None = None

    @classmethod
    def of(cls, updates: Any, *, reference: Any = None, trusted: Any = None, strict: bool = False) -> Updates:
        """Look at every client's container, without reading a number, and keep those of the common layout."""
        sent = _listed(updates)
        leaves: list[dict[Any, Any] | None] = []
        layouts: list[Layout | None] = []
        quarantined: dict[int, str] = {}
        for client, update in enumerate(sent):
            try:
                leaves.append(leaves_of(update))
                layouts.append(Layout.of(leaves[-1] or {}))
            except TypeError as unreadable:
                del leaves[client:]
                leaves.append(None)
                layouts.append(None)
                quarantined[client] = str(unreadable)
        layout = _agreed([each for each in layouts if each is not None], reference, quarantined)
        for client, each in enumerate(layouts):
            misfit = layout.misfit(each) if each is not None else None
            if misfit:
                quarantined[client] = misfit
        if strict and quarantined:
            raise BadClientError(min(quarantined), quarantined[min(quarantined)])
        kept = [client for client in range(len(sent)) if client not in quarantined]
        if not kept:
            raise TooFewClientsError("No client sent a usable update.", quarantined)
        return cls(
            layout=layout,
            rows=tuple(Row.of(leaves[client] or {}, layout) for client in kept),
            clients=tuple(kept),
            n_sent=len(sent),
            quarantined=quarantined,
            like=sent[kept[0]],
            reference=_vouched("reference", reference, layout),
            trusted=_vouched("trusted", trusted, layout),
        )

    def without(self, bad: dict[int, str]) -> Updates:
        """The same round with these rows (not clients) quarantined."""
        kept = [r for r in range(len(self.rows)) if r not in bad]
        return replace(
            self,
            rows=tuple(self.rows[r] for r in kept),
            clients=tuple(self.clients[r] for r in kept),
            quarantined=self.quarantined | {self.clients[r]: reason for r, reason in bad.items()},
        )

    @property
    def dim(self) -> int:
        return self.layout.dim

    @cached_property
    def floats(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.layout.entries if entry.is_float)

    @cached_property
    def ends(self) -> Array:
        return np.cumsum([entry.size for entry in self.floats])

    @cached_property
    def widest(self) -> np.dtype:
        """The precision that the updates are read in: float64 if any entry is, else float32."""
        return np.dtype(np.float64 if any(entry.dtype == "float64" for entry in self.floats) else np.float32)

    def every_row(self) -> tuple[Row, ...]:
        return self.rows if self.trusted is None else (*self.rows, self.trusted)

    def blocks(
        self, rows: Sequence[Row], multiple_of: int = 1, most: int | None = None
    ) -> Iterator[tuple[int, Rows, Floats | None]]:
        """Walk the columns: (first coordinate, where the block's rows lie, the reference's part of it).

        Every block but the last has a width that is a multiple of `multiple_of`, a power of two. Where a block lies
        inside one contiguous float32 or float64 entry its rows are used in place, else they are gathered.
        """
        granule = max(GRANULE, multiple_of)
        width = most or SCRATCH // (self.widest.itemsize * len(rows))
        walk = _Walk(self, rows, granule, max(granule, width - width % granule))
        for start, stop, entry in walk.runs():
            origin = None
            if self.reference is not None:
                origin = self._gathered([self.reference], start, stop, np.dtype(np.float64))[0]
            if entry is None:
                yield start, Rows.of(self._gathered(rows, start, stop, self.widest)), origin
            else:
                yield start, walk.in_place(start, stop, entry), origin

    def combine(self, weights: Floats) -> Any:
        """sum_m w_m x_m, and what is missing from 1 at the reference; clients of weight 0 are not read."""
        from bartizan.kernels import cpu

        chosen = np.flatnonzero(weights)
        rest = 1 - weights.sum()

        def blocks() -> Iterator[tuple[int, Floats]]:
            for start, rows, origin in self.blocks([self.rows[r] for r in chosen]):
                total = np.zeros(rows.width)
                cpu.weighted_sum(rows, weights[chosen], total)
                if origin is not None and abs(rest) > 1e-12:
                    total += rest * origin
                yield start, total

        return self._built(blocks() if len(chosen) else self._at_the_origin(), weights)

    def reduce(self, function: Callable[[Array], Floats], mixing: Floats, weights: Floats) -> Any:
        """Apply a coordinate-wise function to blocks of the rows that a matrix mixes; weights are for the counters."""
        chosen = np.flatnonzero(mixing.any(axis=0))
        mixing = mixing[:, chosen]
        as_they_are = mixing.shape == (len(chosen), len(chosen)) and bool((mixing == np.eye(len(chosen))).all())
        rest = 1 - mixing.sum(axis=1, keepdims=True)

        def blocks() -> Iterator[tuple[int, Floats]]:
            for start, rows, origin in self.blocks([self.rows[r] for r in chosen]):
                x = np.asarray(rows)
                if not as_they_are:
                    x = mixing @ x.astype(np.float64) + (0 if origin is None else rest * origin)
                yield start, function(x)

        return self._built(blocks(), weights)

    def fault(self, row: Row) -> str:
        """What is wrong with the numbers of a row whose squared norm is not finite, or too large."""
        for entry, array in zip(self.floats, row.floats, strict=True):
            flat = _values(array.reshape(-1), entry)
            bad = np.flatnonzero(~np.isfinite(flat))
            if len(bad):
                kind = "NaN" if np.isnan(flat[bad[0]]) else "Inf"
                return f"{entry} holds {kind} at {len(bad)} of {flat.size} coordinates, first at {bad[0]}"
        return f"its values are so large that their squares overflow {self.widest}"

    def _gathered(self, rows: Sequence[Row], start: int, stop: int, dtype: np.dtype) -> Array:
        out = np.empty((len(rows), stop - start), dtype)
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        for e in range(first, last + 1):
            entry, begin = self.floats[e], self.ends[e] - self.floats[e].size
            low, high = max(start, begin), min(stop, self.ends[e])
            for r, row in enumerate(rows):
                piece = row.floats[e]
                piece = piece[low - begin : high - begin] if piece.ndim == 1 else piece.flat[low - begin : high - begin]
                out[r, low - start : high - start] = _values(piece, entry)
        return out

    def _at_the_origin(self) -> Iterator[tuple[int, Floats]]:
        """No client has weight: the answer is the reference, or zero."""
        point = self.rows[0] if self.reference is None else self.reference
        for start, rows, origin in self.blocks([point]):
            yield start, np.zeros(rows.width) if origin is None else origin

    def _built(self, blocks: Iterator[tuple[int, Floats]], weights: Floats) -> Any:
        out = {
            entry.path: np.empty(entry.size, np.uint16 if entry.dtype == "bfloat16" else entry.dtype)
            for entry in self.floats
        }
        for start, block in blocks:
            first, last = np.searchsorted(self.ends, [start, start + len(block) - 1], side="right")
            for e in range(first, last + 1):
                entry, begin = self.floats[e], self.ends[e] - self.floats[e].size
                low, high = max(start, begin), min(start + len(block), self.ends[e])
                piece = block[low - start : high - start]
                out[entry.path][low - begin : high - begin] = (
                    narrow_bfloat16(piece) if entry.dtype == "bfloat16" else piece
                )
        out |= self._counters(weights)
        return rebuild(self.like, lambda path, leaf: like_leaf(out[path], leaf))

    def _counters(self, weights: Floats) -> dict[Any, Array]:
        """Integer entries as the weighted median of the clients (and of the reference, for what stays there)."""
        rows = list(self.rows)
        if self.reference is not None:
            rows.append(self.reference)
            weights = np.append(weights, max(0.0, 1 - weights.sum()))
        out = {}
        for i, entry in enumerate(entry for entry in self.layout.entries if not entry.is_float):
            arrays = [row.integers[i].reshape(-1) for row in rows]
            out[entry.path] = np.empty(entry.size, arrays[0].dtype)
            for low in range(0, entry.size, GRANULE):
                columns = np.stack([array[low : low + GRANULE] for array in arrays])
                out[entry.path][low : low + GRANULE] = _weighted_median(columns, weights)
        return out


class _Walk:
    """How the columns of an update's entries are cut into blocks."""

    def __init__(self, updates: Updates, rows: Sequence[Row], granule: int, width: int) -> None:
        self.ends, self.floats = updates.ends, updates.floats
        self.rows, self.granule, self.width = rows, granule, width
        self.direct = [
            entry.dtype in ("float32", "float64")
            and all(row.floats[e].ndim == 1 and row.floats[e].dtype == entry.dtype for row in rows)
            for e, entry in enumerate(updates.floats)
        ]
        self.bases: dict[int, Array] = {}

    def runs(self) -> Iterator[tuple[int, int, int | None]]:
        """(start, stop, the entry that can be used in place, if any)."""
        start, p = 0, int(self.ends[-1])
        while start < p:
            stop, entry = self._in_place_until(start)
            if entry is None:
                stop = min(p, start + self.granule)
                while stop < p and stop - start < self.width and self._in_place_until(stop)[1] is None:
                    stop = min(p, stop + self.granule)
            yield start, stop, entry
            start = stop

    def _in_place_until(self, start: int) -> tuple[int, int | None]:
        e = int(np.searchsorted(self.ends, start, side="right"))
        end = int(self.ends[e])
        stop = min(end, start + self.width)
        if stop < self.ends[-1]:
            stop -= (stop - start) % self.granule
        return (stop, e) if self.direct[e] and stop > start else (start, None)

    def in_place(self, start: int, stop: int, entry: int) -> Rows:
        if entry not in self.bases:
            self.bases[entry] = np.array([address(row.floats[entry]) for row in self.rows], dtype=np.uintp)
        dtype = self.rows[0].floats[entry].dtype
        offset = (start - int(self.ends[entry]) + self.floats[entry].size) * dtype.itemsize
        return Rows(self.bases[entry] + np.uintp(offset), stop - start, dtype, self.rows)


def _listed(updates: Any) -> Sequence[Any]:
    """One item a client, whatever came."""
    if isinstance(updates, np.ndarray) or is_tensor(updates):
        if updates.ndim < 2:
            raise ValueError(
                f"Wanted one row a client, (M, p); got an array of shape {tuple(updates.shape)}. "
                f"For a single client pass update[None]."
            )
        Layout.of({(): updates})  # a wrong dtype or device is the caller's mistake here, not a client's
        updates = list(updates)
    elif isinstance(updates, (str, bytes, dict)) or not hasattr(updates, "__iter__"):
        raise TypeError(
            f"Wanted a 2-D array or a list with one update a client; got {type(updates).__name__}. "
            f"From a dict of clients pass list(updates.values())."
        )
    updates = list(updates)
    if not updates:
        raise TooFewClientsError("Wanted at least one client's update, got none.")
    return updates


def _agreed(layouts: list[Layout], reference: Any, quarantined: dict[int, str]) -> Layout:
    """The layout of this round: the reference's entries and shapes where there is one, else what most clients sent."""
    fitting = layouts
    if reference is not None:
        wanted = {(e.path, e.shape) for e in Layout.of(leaves_of(reference)).entries}
        fitting = [layout for layout in layouts if {(e.path, e.shape) for e in layout.entries} == wanted]
        if not fitting and layouts:
            came = Layout.most_common(layouts)
            raise ValueError(
                f"The reference has {len(wanted)} entries, and no client's update has the same names and shapes; "
                f"most clients sent {', '.join(map(str, came.entries[:5]))}. Pass the reference in the clients' container."
            )
    if not fitting:
        raise TooFewClientsError("No client sent a usable update.", quarantined)
    layout = Layout.most_common(fitting)
    if layout.dim == 0:
        raise ValueError(
            f"The updates hold no floating-point numbers ({', '.join(map(str, layout.entries[:5])) or 'no entries'}); "
            f"there is nothing to aggregate. Convert integer updates with .astype(float)."
        )
    return layout


def _vouched(name: str, update: Any, layout: Layout) -> Row | None:
    """The reference or the trusted update; what is wrong with it is the caller's mistake."""
    if update is None:
        return None
    leaves = leaves_of(update)
    wanted = {entry.path: entry.shape for entry in layout.entries}
    came = {path: tuple(leaf.shape) for path, leaf in leaves.items()}
    if came != wanted:
        raise ValueError(
            f"{name} must have the names and shapes of a client's update: wanted {_shown(wanted)}, got {_shown(came)}."
        )
    own = {entry.path: entry for entry in Layout.of(leaves).entries}
    floats, integers = [], []
    for entry in layout.entries:
        if own[entry.path].is_float != entry.is_float:
            raise ValueError(f"{name} has {own[entry.path]} where the clients sent {entry.dtype}.")
        flat = _values(as_numpy(leaves[entry.path]).reshape(-1), own[entry.path])
        if not entry.is_float:
            integers.append(flat)
        elif not np.isfinite(flat).all():
            raise ValueError(f"{name} must be finite: {entry} holds NaN or Inf.")
        else:
            floats.append(flat)
    return Row(tuple(floats), tuple(integers))


def _shown(items: dict[Any, Any], most: int = 4) -> str:
    shown = [f"{'.'.join(map(str, path)) or 'one array'}: {what}" for path, what in list(items.items())[:most]]
    return ", ".join(shown) + (f" and {len(items) - most} more" if len(items) > most else "")


def _values(array: Array, entry: Entry) -> Array:
    """Numbers in a precision that NumPy and numba can sum; float32 and float64 stay as they are."""
    if entry.dtype == "bfloat16" and array.dtype == np.uint16:
        return widen_bfloat16(array)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _weighted_median(values: Array, weights: Floats) -> Array:
    """Down each column the smallest value that half of the weight does not exceed; all alike where none has weight."""
    weights = weights if weights.sum() > 0 else np.ones(len(values))
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 * (1 - 1e-12)
    return np.take_along_axis(values, np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0), axis=0)[0]
