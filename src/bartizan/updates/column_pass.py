"""Memory budget, page release and progress of one pass over the columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bartizan._util.text import quoted
from bartizan._util.types import Array
from bartizan.errors import MemoryBudgetError
from bartizan.kernels.rows import UNIT, Rows
from bartizan.updates.columns import GRANULE, SCRATCH, HostRows
from bartizan.updates.layout import Layout, is_tensor
from bartizan.updates.mapping import NEIGHBOURS, release, span

Progress = Callable[[str, int, int], None]

SUMS = 32  # bytes per column besides the rows: the reference's part, the sum, what is added to it, and its narrow copy
UNITS = {"": 1, "B": 1}
UNITS |= {f"{letter}iB": 2 ** (10 * (i + 1)) for i, letter in enumerate("KMGT")}
UNITS |= {f"{letter}B": 10 ** (3 * (i + 1)) for i, letter in enumerate("kMGT")}


def as_bytes(memory: int | str) -> int:
    """A number of bytes, or one with its unit.

    >>> as_bytes("512 MiB"), as_bytes("1.5 GB"), as_bytes("700"), as_bytes(2000)
    (536870912, 1500000000, 700, 2000)
    """
    amount = memory
    if isinstance(memory, str):
        parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
        known = parts is not None and parts[2] in UNITS and len(memory) < 40
        amount = int(float(parts[1]) * UNITS[parts[2]]) if parts and known else 0
    if not isinstance(amount, (int, np.integer)) or isinstance(amount, bool) or amount < 1:
        raise ValueError(
            f'memory must be a number of bytes, or a text such as "512 MiB" or "2 GB"; got {quoted(memory)}.'
        )
    return int(amount)


class ColumnPass:
    """Memory budget, page release and progress of one pass over the columns.

    Without a budget blocks are as wide as is fast, and the operating system decides which pages stay in memory.
    """

    def __init__(self, spare: int | None = None, progress: Progress | None = None) -> None:
        self.spare = spare  # bytes that one block may take
        self.progress = progress
        self.watched = spare is not None or progress is not None  # what `expect` and `advance` are for
        self.stage, self.done, self.total = "", 0, 0

    @classmethod
    def of(cls, memory: int | str | None, progress: Progress | None = None) -> ColumnPass:
        """Return a pass within this budget; call `limit` before the first pass."""
        return cls(None if memory is None else as_bytes(memory), progress)

    def limit(self, needs: dict[str, int], least_block: int) -> None:
        """Subtract the memory that is needed besides blocks; raise ValueError if too little is left."""
        if self.spare is None:
            return
        memory, self.spare = self.spare, self.spare - sum(needs.values())
        if self.spare < least_block:
            listed = ", ".join(f"{name} {shown(size)}" for name, size in needs.items() if size)
            advice = " A result on disk needs less: see bartizan.files.create_update."
            raise MemoryBudgetError(
                f"memory={shown(memory)} is too little: at least {shown(sum(needs.values()) + least_block)} is needed "
                f"({listed}, one block of the updates {shown(least_block)}).{advice if needs.get('result') else ''}"
            )

    def begin(self, stage: str) -> None:
        self.stage, self.done, self.total = stage, 0, 0

    def expect(self, numbers: int) -> None:
        """Add to the count of numbers that this stage will read."""
        self.total += numbers

    def rows_at_a_time(self, unit: int, itemsize: int, *, copied: bool) -> int | None:
        """Return the number of rows to read side by side, in place or copied, in whole units; None: all."""
        few = max(1, SCRATCH // (unit * itemsize)) if copied else None
        if self.spare is None:
            return few
        none, one = (in_place_bytes(n, unit, itemsize) for n in (0, 1))
        fits = max(1, (self.spare - none) // (one - none))
        return fits if few is None else min(few, fits)

    def most(self, n_rows: int, itemsize: int, granule: int, most: int | None) -> int | None:
        """The width of a gathered block of `n_rows` rows, at most `most`."""
        if self.spare is None:
            return most
        fits = (self.spare - gathered_bytes(0, 0, 0)) // (gathered_bytes(n_rows, 1, itemsize) - gathered_bytes(0, 0, 0))
        return max(granule, min(fits, most or UNIT) // granule * granule)

    def gathered(
        self, layout: Layout, rows: HostRows, multiple_of: int, most: int | None
    ) -> Iterator[tuple[int, Rows]]:
        """Yield blocks within the budget, copied row by row into one buffer, so that few pages are mapped at a time."""
        width = self.most(len(rows), layout.widest.itemsize, max(GRANULE, multiple_of), most) or UNIT
        p = int(layout.ends[-1])
        buffer = np.empty((len(rows), min(width, p)), layout.widest)
        singles = [rows.take([row]) for row in range(len(rows))]
        for start in range(0, p, width):
            stop = min(start + width, p)
            block = buffer[:, : stop - start]
            for row, single in enumerate(singles):
                single.part(start, stop).copy_into(block[row : row + 1])
                self.release(layout, single.arrays, start, stop)
            yield start, Rows.of(block)

    def advance(self, layout: Layout, rows: Sequence[Sequence[Array]], start: int, stop: int) -> None:
        """Record that these columns of these rows were read: release their pages and report progress."""
        if self.spare is not None:
            self.release(layout, rows, start, stop)
        if self.progress is not None:
            self.done += len(rows) * (stop - start)
            self.progress(self.stage, self.done, max(self.done, self.total))

    def release(self, layout: Layout, rows: Sequence[Sequence[Array]], start: int, stop: int) -> None:
        """Release the mapped pages of these columns; they are read from the file again when needed."""
        if self.spare is None:
            return
        first, last = np.searchsorted(layout.ends, [start, stop - 1], side="right")
        for e in range(first, last + 1):
            begin = int(layout.ends[e]) - layout.float_entries[e].size
            for arrays in rows:
                release(arrays[e], *_part(arrays[e], max(start - begin, 0), stop - begin))

    def pieces(self, array: Any, size: int = 2**20) -> Iterator[tuple[int, Array]]:
        """Yield (first index, numbers) of an array, from start to end."""
        if is_tensor(array):  # on a GPU
            yield 0, array
            return
        for low in range(0, array.size, size):
            yield low, (array if array.ndim == 1 else array.flat)[low : low + size]
            if self.spare is not None:
                release(array, *_part(array, low, low + size))


UNLIMITED = ColumnPass()


def _part(array: Array, low: int, high: int) -> tuple[int, int]:
    """Return the addresses of these numbers of an array; of all of them if it is not contiguous."""
    first, last = span(array)
    if array.ndim == 1 and array.flags.c_contiguous:
        return first + low * array.itemsize, min(last, first + high * array.itemsize)
    return first, last


def in_place_bytes(n_rows: int, unit: int, itemsize: int) -> int:
    """Return the memory of rows read side by side: each twice, since the kernel maps more pages than are read."""
    return n_rows * 2 * (unit * itemsize + NEIGHBOURS) + SUMS * unit


def gathered_bytes(n_rows: int, width: int, itemsize: int) -> int:
    """Return the memory of a block that is gathered row by row: only one row's pages are mapped at a time."""
    return n_rows * width * itemsize + SUMS * width + 2 * NEIGHBOURS


def shown(size: int) -> str:
    return f"{-(-size // 2**20):,} MiB" if size >= 2**20 else f"{size:,} bytes"
