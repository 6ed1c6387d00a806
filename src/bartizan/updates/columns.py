"""Rows of the p floating-point coordinates of a layout, in host memory, read in place in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeGuard

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock
from bartizan.kernels.rows import CODES, DOUBLE, FLOAT32, FLOAT64, Rows, Table, address_of, table_of, working
from bartizan.updates.layout import Entry, Layout, is_tensor, widen_bfloat16

if TYPE_CHECKING:
    from bartizan.updates.gpu_rows import GpuRows

GRANULE = 4096  # no block is cut finer than this, except at the last coordinate
SCRATCH = 8 * 2**20  # bytes that copies of a block may take
BLOCK_WIDTH = 2**19  # columns of a block that is read in place: few, so that threads seldom wait for each other ...
BLOCK_NUMBERS = 2**25  # ... or, of few rows, as many as make this many numbers, up to MAX_WIDTH
MAX_WIDTH = 2**23


class Row(NamedTuple):
    """One update's arrays in the order of the layout: NumPy views, flat where contiguous, or flat tensors on a GPU."""

    floats: tuple[Any, ...]
    integers: tuple[Array, ...]


def stack(rows: Sequence[Row], layout: Layout) -> UpdateRows:
    """Return these rows, in host memory or on a GPU."""
    if is_tensor(rows[0].floats[0]):
        from bartizan.updates.gpu_rows import GpuRows

        return GpuRows.of(rows, layout)
    return HostRows.of(rows, layout)


class UpdateRows(Protocol):
    """Rows of all p coordinates, in host memory (`HostRows`) or on a GPU (`GpuRows`).

    Any stands for a NumPy array in host memory, for a tensor on a GPU.
    """

    on_gpu: ClassVar[bool]

    @property
    def arrays(self) -> Sequence[Sequence[Any]]:
        """arrays[m][e] is entry e of row m."""

    @property
    def needs_copy(self) -> bool:
        """True if some arrays can't be read in place, and are copied a block at a time."""

    @property
    def dtype(self) -> np.dtype:
        """The precision that these rows are read in, float32 or float64."""

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int] | Array) -> Self:
        """Return some of the rows."""

    def with_row(self, other: Any) -> Self:
        """Return these rows, and after them the one row of `other`."""

    def blocks(
        self, multiple_of: int = 1, most: int | None = None, *, narrow: bool = True, tile: int = 1
    ) -> Iterable[tuple[int, ColumnBlock]]:
        """Return blocks of columns: (first coordinate, the block's rows).

        Every block but the last has a width that is a multiple of `multiple_of`, a power of two (and of `tile`, what
        kernels on a GPU read at a time). Blocks that must be copied are narrow, unless the caller passes only few rows.
        """

    def row(self, index: int, start: int, stop: int) -> Any:
        """Return these columns of one row, in one contiguous array."""

    def zeros(self, *shape: int) -> Any:
        """A float64 array for the kernels' sums."""


def on_device(rows: UpdateRows) -> TypeGuard[GpuRows]:
    return rows.on_gpu


@dataclass(frozen=True, eq=False)
class HostRows:
    """Rows in host memory; arrays that kernels can't read in place (step 0) are copied a block at a time."""

    table: Table
    dtype: np.dtype
    arrays: Sequence[Sequence[Array]]  # of row m and entry e: arrays[m][e]
    needs_copy: bool = False
    on_gpu: ClassVar[bool] = False

    def zeros(self, *shape: int) -> Floats:
        return np.zeros(shape)

    @classmethod
    def of(cls, rows: Sequence[Row], layout: Layout) -> HostRows:
        arrays = [row.floats for row in rows]
        pointers, steps, codes = zip(*map(_place, chain.from_iterable(arrays)), strict=True)
        shape = len(arrays), len(arrays[0])
        dtype = FLOAT64 if DOUBLE in codes else FLOAT32
        plain = shape[1] == 1 and set(codes) == {CODES[dtype]} and set(steps) == {dtype.itemsize}
        table = Table(
            np.array(pointers).reshape(shape),
            np.array(steps).reshape(shape),
            layout.ends,
            np.array(codes, np.uint8).reshape(shape),
            *((0, 0) if plain else (-1, -1)),
        )
        return cls(table, dtype, arrays, needs_copy=0 in steps)

    @classmethod
    def of_matrix(cls, x: Array) -> HostRows | None:
        """The rows of one 2-D array, if kernels can read them in place."""
        if not (x.ndim == 2 and x.flags.aligned and x.dtype.isnative and x.strides[1]):
            return None
        return cls(table_of(x), working(x.dtype), MatrixRows(x))

    def __len__(self) -> int:
        return len(self.table.pointers)

    def take(self, indices: Sequence[int] | Array) -> HostRows:
        table = self.table.take(indices)
        return HostRows(table, self.dtype, [self.arrays[i] for i in indices], self.needs_copy and not table.steps.all())

    def with_row(self, other: HostRows) -> HostRows:
        pointers, steps, ends, codes, *_ = self.table
        more = other.table
        pointers, steps = np.concatenate([pointers, more.pointers]), np.concatenate([steps, more.steps])
        table = Table(pointers, steps, ends, np.concatenate([codes, more.codes]))
        arrays = [*(self.arrays[m] for m in range(len(self))), *other.arrays]
        return HostRows(table, self.dtype, arrays, self.needs_copy or other.needs_copy)

    def blocks(
        self, multiple_of: int = 1, most: int | None = None, *, narrow: bool = True, tile: int = 1
    ) -> Iterator[tuple[int, Rows]]:
        M, granule, p = len(self.table.pointers), max(GRANULE, multiple_of), int(self.table.ends[-1])
        copied = self.needs_copy and narrow
        width = SCRATCH // (self.dtype.itemsize * M) if copied else max(BLOCK_WIDTH, min(MAX_WIDTH, BLOCK_NUMBERS // M))
        width = max(granule, min(most or width, width) // granule * granule)
        for start in range(0, p, width):
            yield start, self.part(start, min(start + width, p))

    def row(self, index: int, start: int, stop: int) -> Array:
        if self.needs_copy:  # of this row only
            return self.take([index]).part(start, stop)[0]
        return self.part(start, stop)[index]

    def part(self, start: int, stop: int) -> Rows:
        """Return these columns of the rows."""
        pointers, steps, ends, codes, *_ = self.table
        if stop - start == ends[-1] and not self.needs_copy:
            return Rows(self.table, self.dtype, self.arrays)
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        pieces = slice(int(first), int(last) + 1)
        begins, stops = np.append(0, ends)[pieces], np.minimum(ends[pieces], stop)
        skipped = np.maximum(start - begins, 0)
        pointers = pointers[:, pieces] + skipped * steps[:, pieces]
        steps = steps[:, pieces]
        owner: list[object] = [self.arrays]
        if self.needs_copy:
            pointers, steps = pointers.copy(), steps.copy()
            for m, e in zip(*np.nonzero(steps == 0), strict=True):
                copy = self.arrays[m][pieces.start + e].flat[int(skipped[e]) : int(stops[e] - begins[e])]
                copy = copy.astype(copy.dtype.newbyteorder("="), copy=False)
                pointers[m, e], steps[m, e] = address_of(copy), copy.itemsize
                owner.append(copy)
        return Rows(Table(pointers, steps, stops - start, codes[:, pieces]), self.dtype, owner)


class MatrixRows(Sequence[tuple[Any, ...]]):
    """The rows of a 2-D array, each as a tuple of its one entry."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: Any) -> Any:
        return (self.x[row],)


def inner_products(sketches: Floats) -> Floats:
    """The Gram matrix of sketches in host memory."""
    rows, gram = Rows.of(sketches), np.zeros((len(sketches), len(sketches)))
    rows.kernels.gram(rows, None, gram)
    return gram


def numbers(array: Array, entry: Entry) -> Array:
    """Return numbers in host memory, in a precision that NumPy can sum; float32 and float64 stay as they are."""
    if is_tensor(array):
        return (array if entry.dtype == "float64" else array.float()).cpu().numpy()
    if entry.dtype == "bfloat16" and array.dtype == np.uint16:
        return widen_bfloat16(array)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _place(array: Array) -> tuple[int, int, int]:
    """Address, step and format of an array that a kernel can read in place; a step of 0 where it can't."""
    code, one = CODES[array.dtype], array.size == 1
    if array.ndim == 1 and array.flags.aligned and array.dtype.isnative and (array.strides[0] or one):
        return address_of(array), array.strides[0] or array.itemsize, code
    return 0, 0, code
