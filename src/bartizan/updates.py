"""Any container of client updates, looked at once, at the border: who takes part, who can't, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from bartizan.columns import FEW, GRANULE, SCRATCH, Columns, Row, numbers
from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.kernels.rows import Rows
from bartizan.layout import Layout, Path, as_numpy, form_of, is_tensor, leaves_of, like_leaf, rebuild
from bartizan.memory import NO_HURRY, WIDEST, Pace
from bartizan.target import Target
from bartizan.types import Array, Floats

NO_FLOATS = (
    "The updates hold no floating-point numbers to aggregate (convert integers with .astype(float) or .float())."
)


@dataclass(frozen=True)
class Updates:
    """The updates that take part, the ones that can't, and the points they are measured from.

    `clients[r]` is the caller's index of row r. The row of a trusted update, if any, comes after all clients.
    """

    layout: Layout
    rows: tuple[Row, ...] = field(repr=False)
    clients: tuple[int, ...]
    n_sent: int
    quarantined: dict[int, str]
    like: Any = field(repr=False)  # the container that a result is built after
    reference: Row | None = field(default=None, repr=False)
    trusted: Row | None = field(default=None, repr=False)
    target: Target | None = field(default=None, repr=False)  # what a result is written into, if not into new memory
    pace: Pace = field(default=NO_HURRY, repr=False)

    @classmethod
    def of(
        cls,
        updates: Any,
        *,
        reference: Any = None,
        trusted: Any = None,
        strict: bool = False,
        pace: Pace = NO_HURRY,
    ) -> Updates:
        """Look at every client's container, without reading a number, and keep those of the common layout."""
        sent = _listed(updates)
        seen: dict[int, tuple[dict[Path, Array], Layout]] = {}
        quarantined: dict[int, str] = {}
        for client, update in enumerate(sent):
            try:
                seen[client] = _read(update)
            except TypeError as unfit:
                quarantined[client] = str(unfit)
            except Exception as unreadable:  # a container may do anything when it is looked at; the round goes on
                quarantined[client] = f"the update can't be read: {type(unreadable).__name__}: {unreadable}"
        layout = _agreed([layout for _, layout in seen.values()], reference, quarantined)
        for client, (_, own) in seen.items():
            misfit = layout.misfit(own)
            if misfit:
                quarantined[client] = misfit
        quarantined = {client: _short(reason) for client, reason in sorted(quarantined.items())}
        if strict and quarantined:
            raise BadClientError(*next(iter(quarantined.items())))
        kept = [client for client in seen if client not in quarantined]
        return cls(
            layout=layout,
            rows=tuple(Row.of(seen[client][0], layout) for client in kept),
            clients=tuple(kept),
            n_sent=len(sent),
            quarantined=quarantined,
            like=_usual(sent, [client for client in kept if seen[client][1] == layout], kept),
            reference=_vouched("reference", reference, layout, pace),
            trusted=_vouched("trusted", trusted, layout, pace),
            pace=pace,
        )

    def without(self, bad: dict[int, str]) -> Updates:
        """The same round with these rows (not clients) quarantined."""
        kept = [r for r in range(len(self.rows)) if r not in bad]
        quarantined = self.quarantined | {self.clients[r]: reason for r, reason in bad.items()}
        return replace(
            self,
            rows=tuple(self.rows[r] for r in kept),
            clients=tuple(self.clients[r] for r in kept),
            quarantined=dict(sorted(quarantined.items())),
        )

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.layout)

    def every_row(self) -> tuple[Row, ...]:
        return self.rows if self.trusted is None else (*self.rows, self.trusted)

    def parts(self) -> Iterator[Updates]:
        """These clients, as many at a time as memory allows, each part with the trusted update."""
        few = min(FEW, self.pace.rows_at_a_time(self.columns.widest.itemsize) or FEW)
        if not all(row.is_plain() for row in self.rows):
            few = min(few, FEW // 16)  # their blocks are copied
        few = max(1, few - (self.trusted is not None))
        starts = range(0, len(self.rows), few)
        self.pace.expect((len(self.rows) + (self.trusted is not None) * len(starts)) * self.layout.dim)
        for start in starts:
            part = slice(start, start + few)
            yield self if len(starts) == 1 else replace(self, rows=self.rows[part], clients=self.clients[part])

    def blocks(
        self, rows: Sequence[Row], multiple_of: int = 1, most: int | None = None, *, fixed: bool = False
    ) -> Iterator[tuple[int, Rows, Floats | None]]:
        """Walk the columns of these rows: (first coordinate, where they lie, the reference's part or None).

        The cuts are `fixed` by the layout, or as memory allows.
        """
        walk = self.columns.blocks(rows, multiple_of, most, fixed=fixed)
        if not fixed:
            self.pace.expect(len(rows) * self.layout.dim)
            if self.pace.spare is not None:
                walk = self._gathered(rows, multiple_of, most)
        for start, block in walk:
            yield start, block, self._origin(start, start + block.width)
            self.pace.passed(self.columns, rows, start, start + block.width)

    def _gathered(self, rows: Sequence[Row], multiple_of: int, most: int | None) -> Iterator[tuple[int, Rows]]:
        """Blocks within the budget, in one buffer, copied row by row: the kernel maps far more than it is asked for."""
        widest = self.columns.widest
        most = self.pace.most(len(rows), widest.itemsize, max(GRANULE, multiple_of), most)
        buffer = np.empty((len(rows), min(most or WIDEST, self.layout.dim)), widest)
        walks = [self.columns.blocks([row], multiple_of, most, fixed=True) for row in rows]
        for pieces in zip(*walks, strict=True):
            start, first = pieces[0]
            block = buffer[:, : first.width]
            for own, row, (_, piece) in zip(block, rows, pieces, strict=True):
                own[:] = np.asarray(piece)[0]
                self.pace.drop(self.columns, [row], start, start + first.width)
            yield start, Rows.of(block)

    def _origin(self, start: int, stop: int) -> Floats | None:
        if self.reference is None:
            return None
        origin = self.columns.gathered([self.reference], start, stop, np.dtype(np.float64))[0]
        self.pace.drop(self.columns, [self.reference], start, stop)
        return origin

    def combine(self, weights: Floats) -> Any:
        """sum_m w_m x_m, and what is missing from 1 at the reference; clients of weight 0 are not read."""
        from bartizan.kernels import cpu

        chosen = np.flatnonzero(weights)
        if not len(chosen):
            chosen = np.array([0])  # at weight 0: the answer is the reference, or zero
        rest = 1 - weights.sum()

        def blocks() -> Iterator[tuple[int, Floats]]:
            for start, rows, origin in self.blocks([self.rows[r] for r in chosen]):
                total = np.full(rows.width, -0.0)  # to which any number adds as itself, -0.0 too
                cpu.weighted_sum(rows, weights[chosen], total)
                if origin is not None and abs(rest) > 1e-12:
                    total += rest * origin
                yield start, total

        return self._built(blocks(), weights)

    def reduce(self, function: Callable[[Array], Floats], mixing: Floats, weights: Floats) -> Any:
        """Apply a coordinate-wise function to blocks of the rows that a matrix mixes; weights are for the counters."""
        chosen = np.flatnonzero(mixing.any(axis=0))
        mixing = mixing[:, chosen]
        as_they_are = mixing.shape == (len(chosen), len(chosen)) and bool((mixing == np.eye(len(chosen))).all())
        rest = 1 - mixing.sum(axis=1, keepdims=True)
        most = max(GRANULE, SCRATCH // (8 * len(self.rows)) // GRANULE * GRANULE)
        most = self.pace.most(len(self.rows), 24, GRANULE, most) or most  # each block is copied, widened and sorted

        def blocks() -> Iterator[tuple[int, Floats]]:
            for start, rows, origin in self.blocks([self.rows[r] for r in chosen], most=most):
                x = np.asarray(rows)
                if not as_they_are:
                    x = mixing @ x.astype(np.float64) + (0 if origin is None else rest * origin)
                yield start, function(x)

        return self._built(blocks(), weights)

    def fault(self, row: Row) -> str:
        """What is wrong with the numbers of a row whose squared norm is not finite, or too large."""
        for entry, array in zip(self.columns.entries, row.floats, strict=True):
            n_bad, first, kind = 0, 0, ""
            for low, piece in self.pace.pieces(array):
                values = numbers(piece, entry)
                bad = ~np.isfinite(values)
                if not n_bad and bad.any():
                    first, kind = low + int(bad.argmax()), "NaN" if np.isnan(values[bad.argmax()]) else "Inf"
                n_bad += int(bad.sum())
            if n_bad:
                return f"{entry} holds {kind}, first at {first}; {n_bad} of {entry.size} values are not finite"
        where = "" if self.reference is None else ", taken from the reference,"
        return f"its values{where} are so large that their squares overflow {self.columns.widest}"

    def _built(self, blocks: Iterator[tuple[int, Floats]], weights: Floats) -> Any:
        if self.target is not None:
            self.columns.store(self._let_go(blocks, self.target.row), self.target.row.floats)
            return self.target.filled(self._counters(weights).values())
        out = self.columns.store(blocks) | self._counters(weights)
        return rebuild(self.like, lambda path, leaf: like_leaf(out[path], leaf))

    def _let_go(self, blocks: Iterator[tuple[int, Floats]], row: Row) -> Iterator[tuple[int, Floats]]:
        """The blocks, each of which is stored in the row by the time that the next one is asked for."""
        for start, block in blocks:
            yield start, block
            self.pace.drop(self.columns, [row], start, start + len(block))

    def _counters(self, weights: Floats) -> dict[Path, Array]:
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


def _listed(updates: Any) -> Sequence[Any]:
    """One item a client, whatever came."""
    if isinstance(updates, np.ndarray) or is_tensor(updates):
        if updates.ndim < 2:
            raise ValueError(
                f"Wanted one row a client, (M, p); got an array of shape {tuple(updates.shape)}. "
                f"For a single client pass update[None]."
            )
        if not Layout.of({(): updates}).entries[0].is_float:  # the caller's mistake here, not a client's
            raise ValueError(f"{NO_FLOATS} Got an array of {updates.dtype}.")
    elif isinstance(updates, (str, bytes, Mapping, Set)) or not isinstance(updates, Iterable):
        raise TypeError(
            f"Wanted a 2-D array or a list with one update a client; got {type(updates).__name__}. "
            f"From a dict of clients pass list(updates.values())."
        )
    elif hasattr(updates, "to_numpy"):
        raise TypeError(f"Wanted an array or a list; got {type(updates).__name__}. Pass .to_numpy().")
    listed = list(updates)
    if not listed:
        raise TooFewClientsError("Wanted at least one client's update, got none.")
    return listed


def _agreed(layouts: list[Layout], reference: Any, quarantined: dict[int, str]) -> Layout:
    """The layout of this round: the reference's entries and shapes where there is one, else what most clients sent."""
    if not layouts:
        raise TooFewClientsError("No client sent a usable update.", quarantined)
    if reference is not None:
        wanted = _shapes(_leaves_of("reference", reference))
        fitting = [layout for layout in layouts if {e.path: e.shape for e in layout.entries} == wanted]
        if not fitting:
            came = {e.path: e.shape for e in Layout.most_common(layouts).entries}
            raise ValueError(
                f"No client's update has the names and shapes of the reference: it has {_shown(wanted)}, most clients "
                f"sent {_shown(came)}. Pass the reference in the clients' container."
            )
        layouts = fitting
    layout = Layout.most_common([layout for layout in layouts if layout.dim] or layouts)
    if not layout.dim:
        raise ValueError(f"{NO_FLOATS} Most clients sent {_shown({e.path: e.shape for e in layout.entries})}.")
    return layout


def _read(update: Any) -> tuple[dict[Path, Array], Layout]:
    """One update's arrays and what they look like; raises TypeError on what can't take part."""
    leaves = leaves_of(update)
    if not leaves:
        raise TypeError("the update is empty")
    layout = Layout.of(leaves)
    return {path: as_numpy(leaf) for path, leaf in leaves.items()}, layout


def _short(reason: str, most: int = 300) -> str:
    return reason if len(reason) <= most else f"{reason[:most]} ..."


def _usual(sent: Sequence[Any], ordered: list[int], kept: list[int]) -> Any:
    """The update to build a result after: of the form that most sent, and in the layout's order if one of those is."""
    forms = {client: form_of(sent[client]) for client in kept}
    usual = Counter(forms.values()).most_common(1)[0][0]
    return sent[next(client for client in [*ordered, *kept] if forms[client] == usual)]


def _vouched(name: str, update: Any, layout: Layout, pace: Pace) -> Row | None:
    """The reference or the trusted update: what is wrong with it is the caller's mistake. Its precision is its own."""
    if update is None:
        return None
    leaves = _leaves_of(name, update)
    wanted = {entry.path: entry.shape for entry in layout.entries}
    if _shapes(leaves) != wanted:
        raise ValueError(
            f"{name} must have the names and shapes of a client's update: wanted {_shown(wanted)}, "
            f"got {_shown(_shapes(leaves))}."
        )
    own = {entry.path: entry for entry in Layout.of(leaves).entries}
    floats: list[Array] = []
    integers: list[Array] = []
    for entry in layout.entries:
        if own[entry.path].is_float != entry.is_float:
            raise ValueError(f"{name} has {own[entry.path]} where the clients sent {entry.dtype}.")
        flat = numbers(as_numpy(leaves[entry.path]).reshape(-1), own[entry.path])
        if not entry.is_float:
            integers.append(flat.astype(entry.dtype))
            if (integers[-1] != flat).any():
                raise ValueError(
                    f"{name} has {own[entry.path]} with values that the clients' {entry.dtype} can't hold."
                )
        elif not all(np.isfinite(piece).all() for _, piece in pace.pieces(flat)):
            raise ValueError(f"{name} must be finite: {own[entry.path]} holds NaN or Inf.")
        else:
            floats.append(flat)
    return Row(tuple(floats), tuple(integers))


def _leaves_of(name: str, update: Any) -> dict[Path, Any]:
    try:
        return leaves_of(update)
    except TypeError as unfit:
        raise ValueError(f"{name} must be like a client's update: {unfit}.") from None


def _shapes(leaves: dict[Path, Any]) -> dict[Path, tuple[int, ...]]:
    return {path: tuple(leaf.shape) for path, leaf in leaves.items()}


def _shown(shapes: dict[Path, tuple[int, ...]], most: int = 4) -> str:
    shown = [f"{'.'.join(map(str, path)) or 'one array'} {shape}" for path, shape in list(shapes.items())[:most]]
    return (", ".join(shown) or "nothing") + (f" and {len(shapes) - most} more" if len(shapes) > most else "")


def _weighted_median(values: Array, weights: Floats) -> Array:
    """Down each column the smallest value that half of the weight does not exceed; all alike where none has weight."""
    weights = weights if weights.sum() > 0 else np.ones(len(values))
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 * (1 - 1e-12)
    return np.take_along_axis(values, np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0), axis=0)[0]
