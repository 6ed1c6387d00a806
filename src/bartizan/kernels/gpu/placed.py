"""Tables of addresses for rows that consist of several tensors, made once for all kernels that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
import triton
import triton.language as tl

from bartizan.kernels.gpu.device_rows import FLOATS, TILE, DeviceRows, aligned
from bartizan.kernels.gpu.launch import Launcher

Entries: TypeAlias = Sequence[torch.Tensor]

SCRATCH_BYTES = 24 * 2**20  # of tiles that may be gathered at a time
PIECE_NUMBERS = 4096  # that one program gathers
CODES = {dtype: code for code, dtype in enumerate(FLOATS)}  # what `_gather` calls them


@dataclass(frozen=True, eq=False)
class _Range:
    """Columns from `start` on, and what has to be gathered before they can be read: (first piece, pieces)."""

    start: int
    rows: DeviceRows
    pieces: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Placed:
    """An iterable of (first coordinate, rows) for column ranges that cover the rows.

    Tiles that lie inside one contiguous entry are used in place. The others are gathered, at most `SCRATCH_BYTES`
    at a time: once if that is enough for all of them, so make a new one when the numbers have changed.
    """

    ranges: tuple[_Range, ...]
    scratch: torch.Tensor | None = None

    @classmethod
    def of(cls, rows: torch.Tensor | Sequence[Entries], tile: int = TILE) -> Placed:
        """A matrix, or one list of entries per row."""
        if isinstance(rows, torch.Tensor):
            if rows.ndim == 2 and (rows.stride(1) == 1 or rows.shape[1] <= 1):
                return cls((_Range(0, DeviceRows.of(rows, tile), (0, 0)),))
            rows = [[row] for row in rows]
        if len(rows) == 1 == len(rows[0]) and rows[0][0].is_contiguous() and rows[0][0].dtype in FLOATS:
            return cls((_Range(0, DeviceRows.of(rows[0][0].view(1, -1), tile), (0, 0)),))
        return cls._scattered(list(chain.from_iterable(rows)), len(rows), tile)

    def __iter__(self) -> Iterator[tuple[int, DeviceRows]]:
        for each in self.ranges:
            if len(self.ranges) > 1:
                self._gather(each)
            yield each.start, each.rows

    @classmethod
    def _scattered(cls, entries: list[torch.Tensor], M: int, tile: int) -> Placed:
        if not all(map(torch.Tensor.is_contiguous, entries)):
            entries = [entry.contiguous() for entry in entries]
        E = len(entries) // M
        dtypes, sizes = [entry.dtype for entry in entries], list(map(torch.Tensor.numel, entries))
        same = len(entries) == M * E and dtypes == dtypes[:E] * M and sizes == sizes[:E] * M
        if not same or len(set(map(torch.Tensor.get_device, entries))) > 1 or not CODES.keys() >= set(dtypes[:E]):
            raise ValueError(
                "Wanted rows of equally many floating-point tensors, of the same sizes and dtypes in every row and all "
                "on one device. Bring them to one form first."
            )
        kinds = set(dtypes[:E])
        dtype = kinds.pop() if len(kinds) == 1 else torch.float64 if torch.float64 in kinds else torch.float32
        layout = _layout(tuple(sizes[:E]), tuple(dtypes[:E]), dtype, M, tile, SCRATCH_BYTES)
        device = entries[0].device
        scratch = torch.empty((M, layout.slots * tile), dtype=dtype, device=device)
        places = np.empty((M, E + 1), dtype=np.int64)
        places[:, :E] = np.fromiter(map(torch.Tensor.data_ptr, entries), np.int64, M * E).reshape(M, E)
        places[:, E] = scratch.data_ptr() + np.arange(M) * (scratch.stride(0) * dtype.itemsize)
        low_bits = np.bitwise_or.reduce(places, axis=0)
        host = torch.empty(layout.table.size + places.size, dtype=torch.int64, pin_memory=device.type == "cuda")
        packed = host.numpy()
        packed[: places.size], packed[places.size :] = places.ravel(), layout.table
        table = host.to(device, non_blocking=True)
        ranges = []
        for first, width, used, offsets, pieces in layout.ranges:
            rows = DeviceRows(
                n_rows=M,
                width=width,
                dtype=dtype,
                device=device,
                tile=tile,
                base=places.size + first,
                step=E + 1,
                align=aligned(int(np.bitwise_or.reduce(low_bits[used])), offsets),
                table=table,
                owner=(entries, scratch),
                table_tiles=layout.n_tiles,
            )
            ranges.append(_Range(first * tile, rows, pieces))
        placed = cls(tuple(ranges), scratch)
        if len(ranges) == 1:
            placed._gather(ranges[0])
        return placed

    def _gather(self, each: _Range) -> None:
        first, count = each.pieces
        if count and self.scratch is not None:
            rows = each.rows
            begin = rows.n_rows * rows.step + 2 * rows.table_tiles + 5 * first
            _gatherer()((count, len(rows), 1), rows.table, self.scratch, begin, rows.step, self.scratch.stride(0))


@dataclass(frozen=True, eq=False)
class _Layout:
    """The layout by sizes alone: tiles' entries and offsets, then pieces; (first tile, width, ...) per range."""

    n_tiles: int
    slots: int
    table: Any
    ranges: tuple[tuple[int, int, Any, int, tuple[int, int]], ...]


@lru_cache(maxsize=8)
def _layout(
    sizes: tuple[int, ...], dtypes: tuple[torch.dtype, ...], dtype: torch.dtype, M: int, tile: int, most: int
) -> _Layout:
    """Compute the layout, once for all rounds of the same sizes."""
    ends = np.cumsum(np.array(sizes, dtype=np.int64))
    begins, p = ends - sizes, int(ends[-1])
    starts = np.arange(0, p, tile, dtype=np.int64)
    first = np.searchsorted(ends, starts, side="right")
    own = np.array([d == dtype for d in dtypes])
    inside = (np.minimum(starts + tile, p) <= ends[first]) & own[first]
    number = np.cumsum(~inside)
    most_slots = max(1, most // (M * tile * dtype.itemsize))
    slots = int(min(most_slots, number[-1]))
    slot = (number - 1) % max(1, slots)
    entry = np.where(inside, first, len(sizes))
    offset = np.where(inside, starts - begins[first], slot * tile) * dtype.itemsize
    cuts = np.unique(np.concatenate([np.arange(0, p, min(tile, PIECE_NUMBERS), dtype=np.int64), ends]))
    low, high = np.concatenate([[0], cuts[cuts < p][1:]]), cuts[cuts > 0]
    gathered = ~inside[low // tile]
    low, high = low[gathered], high[gathered]
    at, of = low // tile, np.searchsorted(ends, low, side="right")
    codes = np.array([CODES[d] for d in dtypes])
    pieces = np.column_stack([slot[at] * tile + low % tile, of, low - begins[of], high - low, codes[of]])
    cut = np.searchsorted(number, np.arange(most_slots, int(number[-1]), most_slots), side="right").tolist()
    ranges = []
    for a, b in zip([0, *cut], [*cut, len(starts)], strict=True):
        some = tuple(np.searchsorted(at, [a, b]).tolist())
        width = min(b * tile, p) - a * tile
        bits = int(np.bitwise_or.reduce(offset[a:b]))
        ranges.append((a, width, np.unique(entry[a:b]), bits, (some[0], some[1] - some[0])))
    table = np.concatenate([entry, offset, pieces.ravel()])
    return _Layout(len(starts), slots, table, tuple(ranges))


@lru_cache(maxsize=1)
def _gatherer() -> Launcher:
    return Launcher(_gather, (PIECE_NUMBERS,))


@triton.jit(do_not_specialize=["begin", "step", "row_size"])
def _gather(table, scratch, begin: tl.int64, step: tl.int64, row_size: tl.int64, PIECE_NUMBERS: tl.constexpr):
    """Copy one piece of one row into its scratch tile, from whatever dtype it has."""
    m = tl.program_id(1).to(tl.int64)
    piece = table + begin + 5 * tl.program_id(0)
    i = tl.arange(0, PIECE_NUMBERS)
    here = i < tl.load(piece + 3)
    place = tl.load(table + m * step + tl.load(piece + 1))
    at, code = tl.load(piece + 2) + i, tl.load(piece + 4)
    if scratch.dtype.element_ty == tl.float64:
        x = tl.zeros((PIECE_NUMBERS,), tl.float64)
    else:
        x = tl.zeros((PIECE_NUMBERS,), tl.float32)
    x += tl.load(place.to(tl.pointer_type(tl.float32)) + at, mask=here & (code == 0), other=0.0)
    if scratch.dtype.element_ty == tl.float64:
        x += tl.load(place.to(tl.pointer_type(tl.float64)) + at, mask=here & (code == 1), other=0.0)
    x += tl.load(place.to(tl.pointer_type(tl.float16)) + at, mask=here & (code == 2), other=0.0).to(tl.float32)
    x += tl.load(place.to(tl.pointer_type(tl.bfloat16)) + at, mask=here & (code == 3), other=0.0).to(tl.float32)
    tl.store(scratch + m * row_size + tl.load(piece) + i, x.to(scratch.dtype.element_ty), mask=here)
