"""The p floating-point coordinates of a layout: walked in blocks, used in place where they can be, else gathered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bartizan.kernels.rows import Rows, address
from bartizan.layout import Entry, Layout, Path, narrow_bfloat16, widen_bfloat16
from bartizan.types import Array, Floats

GRANULE = 4096  # no block is cut finer than this, except at the last coordinate
SCRATCH = 8 * 2**20  # bytes that a gathered block of all rows may take
FEW = 64  # rows up to which a gathered block's width does not depend on their number
WIDE = 2**19  # columns of a block that is used in place: few, so that threads seldom wait for each other


@dataclass(frozen=True)
class Row:
    """One update's arrays in the order of the layout: NumPy views, flat where the memory is contiguous."""

    floats: tuple[Array, ...]
    integers: tuple[Array, ...]

    @classmethod
    def of(cls, arrays: Mapping[Path, Array], layout: Layout) -> Row:
        ordered = [(entry.is_float, arrays[entry.path]) for entry in layout.entries]
        return cls(tuple(a for is_float, a in ordered if is_float), tuple(a for is_float, a in ordered if not is_float))

    def arrays(self) -> tuple[Array, ...]:
        return self.floats + self.integers

    def is_plain(self) -> bool:
        return all(array.flags.c_contiguous and array.flags.aligned for array in self.floats)


@dataclass(frozen=True)
class Columns:
    """Coordinates 0 to p of a layout, and in which of its entries each of them lies."""

    layout: Layout

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.layout.entries if entry.is_float)

    @cached_property
    def ends(self) -> Array:
        return np.cumsum([entry.size for entry in self.entries])

    @cached_property
    def widest(self) -> np.dtype:
        """The precision that the updates are read in: float64 if any entry is, else float32."""
        return np.dtype(np.float64 if any(entry.dtype == "float64" for entry in self.entries) else np.float32)

    def blocks(
        self, rows: Sequence[Row], multiple_of: int = 1, most: int | None = None, *, fixed: bool = False
    ) -> Iterator[tuple[int, Rows]]:
        """Walk the columns: (first coordinate, where the block's rows lie).

        Every block but the last has a width that is a multiple of `multiple_of`, a power of two. Where a block lies
        inside one contiguous float32 or float64 entry its rows are used in place, else they are gathered. With `fixed`
        and at most `FEW` rows the cuts follow from the layout alone, so that the sums over a row do not depend on its
        company, nor on how it lies in memory.
        """
        granule = max(GRANULE, multiple_of)
        few = max(FEW, len(rows)) if fixed else len(rows)
        gathered = max(granule, (most or SCRATCH // (self.widest.itemsize * few)) // granule * granule)
        in_place = max(granule, most or WIDE)
        usable = [self._usable(e, rows) for e in range(len(self.entries))]
        cuts = [entry.dtype in ("float32", "float64") for entry in self.entries] if fixed else usable
        bases: dict[int, Array] = {}
        for start, stop, e in self._runs(cuts, granule, in_place, gathered):
            if e is None or not usable[e]:
                yield start, Rows.of(self.gathered(rows, start, stop, self.widest))
                continue
            if e not in bases:
                bases[e] = np.array([address(row.floats[e]) for row in rows], dtype=np.uintp)
            dtype = rows[0].floats[e].dtype
            offset = (start - self._begin(e)) * dtype.itemsize
            yield start, Rows(bases[e] + np.uintp(offset), stop - start, dtype, rows)

    def gathered(self, rows: Sequence[Row], start: int, stop: int, dtype: np.dtype) -> Array:
        """These coordinates of the rows, copied into one array."""
        out = np.empty((len(rows), stop - start), dtype)
        for e, low, high in self._pieces(start, stop):
            begin = self._begin(e)
            for r, row in enumerate(rows):
                array = row.floats[e] if row.floats[e].ndim == 1 else row.floats[e].flat
                piece = array[low - begin : high - begin]
                out[r, low - start : high - start] = numbers(piece, self.entries[e])
        return out

    def store(self, blocks: Iterator[tuple[int, Floats]], into: Sequence[Array] | None = None) -> dict[Path, Array]:
        """Write blocks that cover all columns into flat arrays of the entries' dtypes (bfloat16 as uint16)."""
        if into is None:
            into = [np.empty(e.size, np.uint16 if e.dtype == "bfloat16" else e.dtype) for e in self.entries]
        out = [array if array.ndim == 1 else array.flat for array in into]
        for start, block in blocks:
            for e, low, high in self._pieces(start, start + len(block)):
                piece = block[low - start : high - start]
                narrow = narrow_bfloat16(piece) if self.entries[e].dtype == "bfloat16" else piece
                out[e][low - self._begin(e) : high - self._begin(e)] = narrow
        return {entry.path: array for entry, array in zip(self.entries, into, strict=True)}

    def _begin(self, e: int) -> int:
        return int(self.ends[e]) - self.entries[e].size

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(entry, low, high) for each entry that the coordinates touch."""
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        for e in range(first, last + 1):
            yield e, max(start, self._begin(e)), min(stop, int(self.ends[e]))

    def _usable(self, e: int, rows: Sequence[Row]) -> bool:
        dtype = self.entries[e].dtype
        return dtype in ("float32", "float64") and all(
            a.ndim == 1 and a.dtype == dtype and a.flags.c_contiguous and a.flags.aligned
            for a in (row.floats[e] for row in rows)
        )

    def _runs(
        self, usable: list[bool], granule: int, widest_in_place: int, widest_gathered: int
    ) -> Iterator[tuple[int, int, int | None]]:
        """(start, stop, the entry that can be used in place, if any)."""
        start, p = 0, int(self.ends[-1])

        def in_place(start: int) -> tuple[int, int | None]:
            e = int(np.searchsorted(self.ends, start, side="right"))
            stop = min(int(self.ends[e]), start + widest_in_place)
            if stop < p:
                stop -= (stop - start) % granule
            return (stop, e) if usable[e] and stop > start else (start, None)

        while start < p:
            stop, e = in_place(start)
            if e is None:
                stop = min(p, start + granule)
                while stop < p and stop - start < widest_gathered and in_place(stop)[1] is None:
                    stop = min(p, stop + granule)
            yield start, stop, e
            start = stop


def numbers(array: Array, entry: Entry) -> Array:
    """Numbers in a precision that NumPy and numba can sum; float32 and float64 stay as they are."""
    if entry.dtype == "bfloat16" and array.dtype == np.uint16:
        return widen_bfloat16(array)
    return array.astype(np.float32) if array.dtype == np.float16 else array
