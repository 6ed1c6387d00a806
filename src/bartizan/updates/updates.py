"""The updates of one round, and passes over their columns in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock
from bartizan.kernels.rows import Rows
from bartizan.updates.column_pass import UNLIMITED, ColumnPass, gathered_bytes, in_place_bytes
from bartizan.updates.columns import GRANULE, HostRows, Row, UpdateRows, numbers, stack
from bartizan.updates.layout import Layout, is_tensor, itemsize_of
from bartizan.updates.server_inputs import Target

Blocks = Iterable[tuple[int, ColumnBlock]]
Watch = Callable[[UpdateRows, Blocks], Blocks]


@dataclass(frozen=True)
class Updates:
    """The updates that take part, the clients that are quarantined, the reference and a trusted update.

    `clients[r]` is the caller's index of row r. The row of a trusted update, if any, comes after all clients.
    """

    layout: Layout
    rows: UpdateRows = field(repr=False)
    integers: tuple[tuple[Array, ...], ...] = field(repr=False)
    clients: tuple[int, ...]
    n_sent: int
    quarantined: dict[int, str]
    containers: Sequence[Any] = field(repr=False)  # each client's update, in plain containers
    reference: Row | None = field(default=None, repr=False)
    trusted: Row | None = field(default=None, repr=False)
    origin: Array | None = field(default=None, repr=False)  # the reference in one contiguous array, if it is read often
    target: Target | None = field(default=None, repr=False)  # the caller's arrays for the result, if any
    column_pass: ColumnPass = field(default=UNLIMITED, repr=False)
    first: int = 0  # coordinate of the whole update that column 0 is: these may be a shard
    watch: Watch | None = field(default=None, repr=False)  # sees the blocks that are combined, or replaces them
    rewritable: frozenset[int] = frozenset()  # clients whose numbers are in files that may be rewritten in place
    scale: float | None = None  # what passes over the columns multiply all numbers by, in copies of float64

    def with_target(self, out: Any, points: Mapping[str, Any]) -> Updates:
        """Return the same updates with `out` as checked target; it must not overlap `points`, the server's own."""
        if out is None:
            return self
        self._refuse_on_gpu("out")
        return replace(self, target=Target.of(out, self.layout, self._arrays(), points))

    def limit_memory(self, sketch_size: int, unit: int | None, *, distances: int = 0) -> None:
        """Take the memory that is needed besides blocks from the budget; MemoryBudgetError if too little is left.

        `sketch_size` numbers are kept of each client, and `distances` bytes are needed to weigh them. A sketch that
        reads rows in place reads `unit` columns at a time.
        """
        if self.column_pass.spare is None:
            return
        self._refuse_on_gpu("memory")
        M, itemsize = len(self.all_rows), self.layout.widest.itemsize
        least = gathered_bytes(M, GRANULE, itemsize)
        if unit is not None:
            least = max(least, in_place_bytes(1 if self.trusted is None else 2, unit, itemsize))
        widened = [a for row in (self.reference, self.trusted) if row for a in row.floats if a.base is None]
        needs = {
            "sketches": 2 * 8 * M * sketch_size,
            "distances": distances,
            "result": 0 if self.target else sum(e.size * itemsize_of(e.dtype) for e in self.layout.entries),
            "widened reference and trusted update": sum(array.nbytes for array in widened),
        }
        self.column_pass.limit(needs, least)

    def _refuse_on_gpu(self, given: str) -> None:
        if self.on_gpu:
            raise ValueError(f"{given} is for updates in host memory; these are on {self.layout.entries[0].device}.")

    def _arrays(self) -> Iterator[Array]:
        for m in range(len(self)):
            yield from (*self.rows.arrays[m], *self.integers[m])

    def only(self, rows: Sequence[int]) -> Updates:
        """Return the same round with these rows only."""
        return replace(
            self,
            rows=self.rows.take(rows),
            integers=tuple([self.integers[r] for r in rows]),
            containers=tuple([self.containers[r] for r in rows]),
            clients=tuple([self.clients[r] for r in rows]),
        )

    @property
    def like(self) -> Any:
        """The update of the usual form, before any client has a weight."""
        return self.like_of(np.ones(len(self)))

    def like_of(self, weights: Floats) -> Any:
        """The update that the result is built like: of the form that has most weight."""
        return usual_container(self.containers, weights)

    def __len__(self) -> int:
        """The number of clients that take part."""
        return len(self.clients)

    @property
    def on_gpu(self) -> bool:
        return self.rows.on_gpu

    @property
    def all_rows(self) -> UpdateRows:
        """The rows of the clients, and after them that of the trusted update if there is one."""
        return self.rows if self.trusted is None else self._rows_and_trusted

    @cached_property
    def _rows_and_trusted(self) -> UpdateRows:
        assert self.trusted is not None
        return self.rows.with_row(stack([self.trusted], self.layout))

    def blocks(
        self, rows: UpdateRows, multiple_of: int = 1, most: int | None = None
    ) -> Iterator[tuple[int, ColumnBlock, Array | None]]:
        """Pass over the columns of these rows: (first coordinate, the block's rows, the reference's part or None)."""
        column_pass, blocks = self.column_pass, rows.blocks(multiple_of, most)
        if column_pass.watched:
            column_pass.expect(len(rows) * self.layout.dim)
        if column_pass.spare is not None and isinstance(rows, HostRows):
            blocks = column_pass.gathered(self.layout, rows, multiple_of, most)
        for start, block in blocks if self.watch is None else self.watch(rows, blocks):
            origin = None if self.reference is None else self.origin_at(start, start + block.width)
            if self.scale is not None:
                block, origin = self._scaled(self.scale, block, origin)
            yield start, block, origin
            if column_pass.watched:
                column_pass.advance(self.layout, rows.arrays, start, start + block.width)

    def parts(self, unit: int) -> Sequence[Updates]:
        """Return these clients in groups that fit the memory budget in whole units, each with the trusted update."""
        if not (self.column_pass.watched or self.rows.needs_copy):
            return (self,)
        few = self.column_pass.rows_at_a_time(unit, self.layout.widest.itemsize, copied=self.rows.needs_copy)
        M, n_trusted = len(self), 0 if self.trusted is None else 1
        few = M if few is None else max(1, few - n_trusted)
        starts = range(0, M, few)
        self.column_pass.expect((M + n_trusted * len(starts)) * self.layout.dim)
        return (self,) if len(starts) == 1 else [self.only(range(low, min(low + few, M))) for low in starts]

    def units(
        self, multiple_of: int, most: int | None, about: UpdateRows | None = None, tile: int = 1
    ) -> Iterator[tuple[int, ColumnBlock, Array | None]]:
        """Pass over the columns of all rows, about the reference or a row, in blocks whose sums of one row do not
        depend on the other rows.

        The first item is the coordinate of the whole update that a block begins at.
        """
        column_pass = self.column_pass
        if column_pass.spare is not None:
            most = most or multiple_of
        for start, block in self.all_rows.blocks(multiple_of, most, narrow=False, tile=tile):
            origin = None if self.reference is None else self.origin_at(start, start + block.width)
            if about is not None:
                origin = about.row(0, start, start + block.width)
            if self.scale is not None:
                block, origin = self._scaled(self.scale, block, origin)
            yield self.first + start, block, origin
            if column_pass.watched:
                stop = start + block.width
                column_pass.advance(self.layout, self.all_rows.arrays, start, stop)
                if about is not None:
                    column_pass.release(self.layout, about.arrays, start, stop)

    def scaled(self, scale: float) -> Updates:
        """The same updates, to be read in float64 and times a power of two; on a GPU they are copied at once."""
        if not self.on_gpu:
            return replace(self, scale=scale)

        def wide(row: Row | None) -> Row | None:
            return None if row is None else Row(tuple(scale * array.double() for array in row.floats), row.integers)

        rows = [wide(Row(tuple(self.rows.arrays[m]), ())) for m in range(len(self))]
        stacked = stack([row for row in rows if row is not None], self.layout)
        return replace(self, rows=stacked, reference=wide(self.reference), trusted=wide(self.trusted), scale=scale)

    def _scaled(self, scale: float, block: ColumnBlock, origin: Array | None) -> tuple[ColumnBlock, Array | None]:
        if self.on_gpu:
            return block, origin
        with np.errstate(over="ignore"):  # clients that are too large beside the others are quarantined
            rows = Rows.of(np.asarray(block, np.float64) * scale)
            return rows, None if origin is None else np.float64(scale) * origin

    @cached_property
    def reference_row(self) -> UpdateRows | None:
        return None if self.reference is None else stack([self.reference], self.layout)

    def with_contiguous_reference(self) -> Updates:
        """The same updates, with the reference in one contiguous array, copied if it is not one already."""
        if self.reference is None or self.reference_row is None or self.on_gpu or self.column_pass.spare is not None:
            return self
        floats = self.reference.floats
        flat = floats[0] if len(floats) == 1 else np.concatenate(floats)
        return replace(self, origin=np.require(flat, self.reference_row.dtype, ["C", "A"]))

    def origin_at(self, start: int, stop: int) -> Array | None:
        if self.origin is not None:
            return self.origin[start:stop]
        if self.reference_row is None:
            return None
        origin = self.reference_row.row(0, start, stop)
        self.column_pass.release(self.layout, self.reference_row.arrays, start, stop)
        return origin

    def fault(self, row: int) -> str:
        """Return the fault in a row whose squared norm is not finite, or too large."""
        for entry, array in zip(self.layout.float_entries, self.rows.arrays[row], strict=True):
            n_bad, first, kind = 0, 0, ""
            for low, piece in self.column_pass.pieces(array):
                values = numbers(piece, entry)
                bad = ~np.isfinite(values)
                if not n_bad and bad.any():
                    first, kind = low + int(bad.argmax()), "NaN" if np.isnan(values[bad.argmax()]) else "Inf"
                n_bad += int(bad.sum())
            if n_bad:
                return f"{entry} holds {kind}, first at {first}; {n_bad} of {entry.size} values are not finite"
        return self._overflow

    @property
    def _overflow(self) -> str:
        where = "" if self.reference is None else ", taken from the reference,"
        return f"its values{where} are so large that their squares overflow {self.layout.widest}"


def form_of(update: Any, *, in_order: bool = True) -> Any:
    """Return the kinds of containers and arrays that a plain update is made of, to compare and to count."""
    if type(update) is np.ndarray:
        return update.dtype.str
    if isinstance(update, Mapping):
        items = [(_form_of_key(key), form_of(child, in_order=in_order)) for key, child in update.items()]
        return type(update), tuple(items) if in_order else frozenset(items)
    if isinstance(update, (list, tuple)):
        return type(update), tuple([form_of(child, in_order=in_order) for child in update])
    form = "tensor" if is_tensor(update) else update.dtype.str
    namespace = getattr(update, "namespace", None)
    return form if namespace is None else (form, id(namespace))


def _form_of_key(key: Any) -> Any:
    """Return the key with its type; of a client's own class, which may compare as it likes, its identity."""
    kind = type(key)
    return (kind, key) if kind is str or kind is int or kind is bool else (kind, id(key))


def usual_container(containers: Sequence[Any], weights: Floats) -> Any:
    """Return a plain update in the form, and in the order of keys, that have the most weight.

    Updates of weight 0 are not looked at, unless all are.
    """
    if len(set(map(id, containers))) == 1:  # rows of one matrix
        return containers[0]
    weights = weights if weights.any() else np.ones(len(containers))
    first: dict[Any, Any] = {}
    ordered: dict[Any, float] = {}
    for row in np.flatnonzero(weights).tolist():
        form = form_of(containers[row])
        first.setdefault(form, containers[row])
        ordered[form] = ordered.get(form, 0.0) + float(weights[row])
    if len(first) > 1:
        kinds = {form: form_of(one, in_order=False) for form, one in first.items()}
        total = dict.fromkeys(kinds.values(), 0.0)
        for form, weight in ordered.items():
            total[kinds[form]] += weight
        usual = max(total, key=total.__getitem__)
        ordered = {form: weight for form, weight in ordered.items() if kinds[form] == usual}
    return first[max(ordered, key=ordered.__getitem__)]
