"""Rows of a block of columns as a table of addresses, so that kernels read updates in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from bartizan._util.types import Array
from bartizan.kernels.protocol import Kernels

FORMATS = ("float32", "float64", "float16", "bfloat16")
"""Formats that kernels read and write, by their code; bfloat16 is stored as uint16."""
CODES = {np.dtype("uint16" if name == "bfloat16" else name): code for code, name in enumerate(FORMATS)}
CODES |= {dtype.newbyteorder(): code for dtype, code in CODES.items()}
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
DOUBLE = CODES[FLOAT64]

# A row is summed one unit of columns at a time, and units are added up in their order: the sum depends neither on
# the other rows, nor on the threads, nor on how wide the blocks are, if they are cut between units.
UNIT = 2**19  # columns
FOLD = 128  # blocks of k columns whose sketches are summed in the rows' precision before they are widened


def unit_of(k: int) -> int:
    """Return the unit of a rotated sketch, in columns: whole folds."""
    return max(UNIT, FOLD * k)


Seen = Callable[[int, Array, int, Array | None], None]
"""A function of a strip's first column, its numbers by row, how many columns are used at most, and the rows' order."""


class Table(NamedTuple):
    """Addresses of a block of columns that is cut into pieces, one per entry of the layout.

    Piece e of row m holds the columns from `ends[e - 1]` to `ends[e]`; its numbers have format `codes[m, e]`, the
    first lies at `pointers[m, e]` and the next ones `steps[m, e]` bytes further each.
    """

    pointers: Array  # (M, E) int64
    steps: Array  # (M, E) int64
    ends: Array  # (E,) int64
    codes: Array  # (M, E) uint8
    # Where `cpu._fill` and `cpu._store` are, or 0 if each row is one contiguous array of the dtype that it is read as;
    # -1 where `Rows` has to find out.
    fill: int = -1
    store: int = -1

    def take(self, rows: Sequence[int] | Array) -> Table:
        """Return some of the rows."""
        return self._replace(pointers=self.pointers[rows], steps=self.steps[rows], codes=self.codes[rows])


class Mixing(NamedTuple):
    """Mixtures of rows, each with its factors; what these lack of sum 1 is `rest`, and at the origin."""

    factors: Array  # (R, M)
    rest: Array  # (R,)
    origin: Array | None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of `width` numbers, one per client, anywhere in host memory; kernels read them as `dtype`."""

    pieces: Table
    dtype: np.dtype
    owner: object  # keeps the memory alive while the addresses are in use
    seen: Seen | None = None
    """Called with the copies that order statistics and mixtures are made of."""
    mixing: Mixing | None = None
    """The mixtures of the rows that order statistics are taken of, instead of the rows."""

    @classmethod
    def of(cls, arrays: Sequence[Array] | Array) -> Rows:
        """Point at the 1-D arrays of a sequence, or at the rows of a 2-D array: all of one dtype, aligned."""
        if isinstance(arrays, np.ndarray):
            return cls(table_of(arrays), working(arrays.dtype), arrays)
        first = arrays[0]
        table = Table(
            np.array([[address_of(a)] for a in arrays]),
            np.array([[a.strides[0]] for a in arrays]),
            np.array([first.size]),
            np.full((len(arrays), 1), CODES[first.dtype], dtype=np.uint8),
        )
        return cls(table, working(first.dtype), arrays)

    @property
    def table(self) -> Table:
        """The table in fixed types, so that numba compiles the kernels once."""
        return self.pieces if self.pieces.fill == 0 else self._compiled_table

    @cached_property
    def _compiled_table(self) -> Table:
        pointers, steps, ends, codes, *_ = self.pieces
        own, size = int(self.dtype == FLOAT64), self.dtype.itemsize
        alike = len(ends) == 1 and codes[0, 0] == own and steps[0, 0] == size
        if alike and (len(codes) == 1 or ((codes == own).all() and (steps == size).all())):
            return Table(pointers, steps, ends, codes, 0, 0)
        from bartizan.kernels import cpu

        steps, codes = np.ascontiguousarray(steps), np.ascontiguousarray(codes)
        return Table(pointers, steps, ends, codes, *cpu.addresses(self.dtype))

    @property
    def width(self) -> int:
        return int(self.pieces.ends[-1])

    @property
    def kernels(self) -> Kernels:
        """The module whose kernels can read these rows."""
        from bartizan.kernels import cpu

        return cpu

    def __len__(self) -> int:
        return len(self.pieces.pointers)

    def __getitem__(self, row: int) -> Array:
        """Return one row, copied."""
        return np.asarray(Rows(self.pieces.take([row]), self.dtype, self.owner))[0]

    def show(self, low: int, values: Array, columns: int, order: Array | None = None) -> None:
        """Pass a copied strip of all rows on to `seen`, with its first columns, which are used."""
        if self.seen is not None:
            self.seen(low, values, columns, order)

    def copy_into(self, out: Array) -> None:
        """Copy all rows into an array of shape (len(rows), width)."""
        from bartizan.kernels import cpu

        cpu.copied(self, out)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> Array:
        """Return all rows, copied."""
        out = np.empty((len(self), self.width), self.dtype)
        self.copy_into(out)
        self.show(0, out.reshape(-1), self.width)
        return out if dtype is None else out.astype(dtype, copy=False)


def table_of(x: Array) -> Table:
    """Return the table of the rows of a 2-D array."""
    (M, p), start, stride = x.shape, address_of(x), x.strides[0]
    pointers = np.arange(start, start + M * stride, stride) if stride else np.full(M, start)
    return _table_like(M, p, x.strides[1], x.dtype)._replace(pointers=pointers.reshape(M, 1))


@lru_cache(maxsize=16)
def _table_like(M: int, p: int, step: int, dtype: np.dtype) -> Table:
    """Return all but the addresses of such a table, cached: small rounds are called often."""
    steps, codes = np.full((M, 1), step), np.full((M, 1), CODES[dtype], np.uint8)
    plain = step == dtype.itemsize and dtype in (FLOAT32, FLOAT64)
    return Table(steps, steps, np.array([p]), codes, *((0, 0) if plain else (-1, -1)))


def working(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which numbers of this dtype are summed."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def address_of(array: Array) -> int:
    return array.__array_interface__["data"][0]
