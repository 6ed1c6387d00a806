"""Where the rows of a column range lie on the device: addresses of tiles, so that no kernel needs them gathered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
import triton
import triton.language as tl

Entries: TypeAlias = Sequence[torch.Tensor]

TILE = 4096  # coordinates of a tile, which lies in one piece
SCRATCH = 24 * 2**20  # bytes of tiles that may be gathered at a time
PIECE = 4096  # numbers that one program gathers
FLOATS = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}
CODES = {dtype: code for code, dtype in enumerate(FLOATS)}  # what `_gather` calls them


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """`n_rows` rows of `width` floating-point numbers: one matrix, or tiles that may lie anywhere on the device.

    Coordinate i of row m of a matrix is at base + m * step + i * itemsize. Tile t of row m of scattered entries is at
    places[m, entry[t]] + offset[t]: `table` holds entry, offset and places behind each other, a row of places has
    `step` numbers.
    """

    n_rows: int
    width: int
    dtype: torch.dtype
    device: torch.device
    tile: int
    base: int
    step: int
    align: int  # every tile's address is a multiple of this, 16 at most
    table: torch.Tensor | None
    owner: object  # keeps the memory alive while the addresses are in use

    @classmethod
    def of(cls, matrix: torch.Tensor, tile: int = TILE) -> DeviceRows:
        """The rows of a matrix whose rows are contiguous, in place."""
        if matrix.ndim != 2 or (matrix.stride(1) != 1 and matrix.shape[1] > 1) or matrix.dtype not in FLOATS:
            raise ValueError(
                f"Wanted an (M, p) matrix of floating-point numbers with contiguous rows; got {matrix.dtype} of shape "
                f"{tuple(matrix.shape)} and strides {matrix.stride()}. Use walk(...) for other containers."
            )
        base, step = matrix.data_ptr(), matrix.stride(0) * matrix.element_size()
        return cls(
            n_rows=matrix.shape[0],
            width=matrix.shape[1],
            dtype=matrix.dtype,
            device=matrix.device,
            tile=tile,
            base=base,
            step=step,
            align=aligned(base, step),
            table=None,
            owner=matrix,
        )

    def __len__(self) -> int:
        return self.n_rows

    @property
    def kernels(self) -> Any:
        """The module whose kernels can read these rows."""
        from bartizan.kernels import gpu

        return gpu

    @property
    def place(self) -> tuple[Any, ...]:
        """What `tile_at` needs to know, in its order."""
        n_tiles = -(-self.width // self.tile)
        return self.table, self.base, self.step, n_tiles

    @property
    def form(self) -> dict[str, Any]:
        """What kernels are compiled for."""
        return {"DTYPE": FLOATS[self.dtype], "BYTES": self.dtype.itemsize, "TILE": self.tile}


def walk(rows: torch.Tensor | Sequence[Entries], tile: int = TILE) -> Iterator[tuple[int, DeviceRows]]:
    """(first coordinate, rows) for column ranges that cover the rows: a matrix, or one list of entries a row.

    Tiles that lie inside one contiguous entry are used in place; the others are gathered, no more than `SCRATCH`
    bytes at a time. Entries that are not contiguous are copied whole.
    """
    if isinstance(rows, torch.Tensor):
        if rows.ndim == 2 and (rows.stride(1) == 1 or rows.shape[1] <= 1):
            yield 0, DeviceRows.of(rows, tile)
            return
        rows = [[row] for row in rows]
    yield from _scattered([[entry.reshape(-1).contiguous() for entry in row if entry.numel()] for row in rows], tile)


def _scattered(rows: list[list[torch.Tensor]], tile: int) -> Iterator[tuple[int, DeviceRows]]:
    device, dtypes = rows[0][0].device, [entry.dtype for entry in rows[0]]
    if len({len(row) for row in rows}) > 1 or any(e.dtype not in FLOATS or e.device != device for r in rows for e in r):
        raise ValueError("Wanted rows of equally many floating-point tensors, all on one device.")
    dtype = dtypes[0] if len(set(dtypes)) == 1 else torch.float32
    dtype = torch.float64 if torch.float64 in dtypes else dtype
    itemsize = dtype.itemsize
    ends = np.cumsum([entry.numel() for entry in rows[0]])
    begins = ends - [entry.numel() for entry in rows[0]]
    p = int(ends[-1])
    bases = np.array([[entry.data_ptr() for entry in row] for row in rows], dtype=np.int64)
    starts = np.arange(0, p, tile)
    stops = np.minimum(starts + tile, p)
    first = np.searchsorted(ends, starts, side="right")
    own = np.array([d == dtype for d in dtypes])
    in_place = (stops <= ends[first]) & own[first]
    slots = max(1, SCRATCH // (len(rows) * tile * itemsize))
    gathered = np.cumsum(~in_place)
    ranges = np.searchsorted(gathered, np.arange(slots, int(gathered[-1]), slots), side="right").tolist()
    codes = np.array([CODES[d] for d in dtypes])
    for low, high in zip([0, *ranges], [*ranges, len(starts)], strict=True):
        inside, at = in_place[low:high], first[low:high]
        n_slots = int(np.count_nonzero(~inside))
        scratch = torch.empty((len(rows), n_slots * tile), dtype=dtype, device=device)
        home = scratch.data_ptr() + np.arange(len(rows), dtype=np.int64) * (n_slots * tile * itemsize)
        entry = np.where(inside, at, bases.shape[1])
        slot = np.cumsum(~inside) - 1
        offset = np.where(inside, starts[low:high] - begins[at], slot * tile) * itemsize
        places = np.column_stack([bases, home])
        used = np.unique(entry)
        pieces = _pieces(starts[low:high][~inside], stops[low:high][~inside], begins, ends, tile, codes)
        packed = torch.from_numpy(np.concatenate([entry, offset, places.ravel(), pieces.ravel()])).to(device)
        if n_slots:
            grid = (len(pieces), len(rows))
            _gather[grid](packed, scratch, len(entry), len(rows), places.shape[1], n_slots * tile, PIECE)
        yield (
            int(starts[low]),
            DeviceRows(
                n_rows=len(rows),
                width=int(stops[high - 1] - starts[low]),
                dtype=dtype,
                device=device,
                tile=tile,
                base=0,
                step=places.shape[1],
                align=aligned(*np.bitwise_or.reduce(places[:, used], axis=0).tolist(), *np.unique(offset).tolist()),
                table=packed,
                owner=(rows, scratch),
            ),
        )


def _pieces(starts: Any, stops: Any, begins: Any, ends: Any, tile: int, codes: Any) -> Any:
    """(where in the scratch row, entry, where in the entry, count, dtype) of each piece of each gathered tile."""
    out = []
    for slot, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
        for e in range(first, last + 1):
            low, high = max(start, int(begins[e])), min(stop, int(ends[e]))
            for part in range(low, high, PIECE):
                count = min(high - part, PIECE)
                out.append((slot * tile + part - start, e, part - int(begins[e]), count, int(codes[e])))
    return np.array(out, dtype=np.int64).reshape(-1, 5)


def aligned(*addresses: int) -> int:
    """The largest power of two up to 16 that divides them all."""
    return math.gcd(16, *addresses)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """How many programs can run side by side, at least; few where Triton is interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit
def wide(i):
    """An index in 64 bits; interpreted loops count in Python's numbers."""
    return tl.zeros((), tl.int64) + i


@triton.jit
def tile_at(table, base, step, n_tiles, m, coordinate, TILE: tl.constexpr, BYTES: tl.constexpr):
    """The address of a coordinate of row m; from there to the end of its tile the row is contiguous."""
    coordinate = coordinate.to(tl.int64)
    if table is None:
        return base + m.to(tl.int64) * step + coordinate * BYTES
    else:
        tile = coordinate // TILE
        entry = tl.load(table + tile)
        offset = tl.load(table + n_tiles + tile)
        place = tl.load(table + 2 * n_tiles + m.to(tl.int64) * step + entry)
        return place + offset + (coordinate - tile * TILE) * BYTES


@triton.jit(do_not_specialize=["n_tiles", "n_rows", "step", "row_size"])
def _gather(
    table,
    scratch,
    n_tiles: tl.int64,
    n_rows: tl.int64,
    step: tl.int64,
    row_size: tl.int64,
    PIECE: tl.constexpr,
):
    """Copy one piece of one row into its scratch tile, from whatever dtype it has."""
    m = tl.program_id(1).to(tl.int64)
    piece = table + 2 * n_tiles + n_rows * step + 5 * tl.program_id(0)
    i = tl.arange(0, PIECE)
    here = i < tl.load(piece + 3)
    place = tl.load(table + 2 * n_tiles + m * step + tl.load(piece + 1))
    at, code = tl.load(piece + 2) + i, tl.load(piece + 4)
    if scratch.dtype.element_ty == tl.float64:
        x = tl.zeros((PIECE,), tl.float64)
    else:
        x = tl.zeros((PIECE,), tl.float32)
    x += tl.load(place.to(tl.pointer_type(tl.float32)) + at, mask=here & (code == 0), other=0.0)
    if scratch.dtype.element_ty == tl.float64:
        x += tl.load(place.to(tl.pointer_type(tl.float64)) + at, mask=here & (code == 1), other=0.0)
    x += tl.load(place.to(tl.pointer_type(tl.float16)) + at, mask=here & (code == 2), other=0.0).to(tl.float32)
    x += tl.load(place.to(tl.pointer_type(tl.bfloat16)) + at, mask=here & (code == 3), other=0.0).to(tl.float32)
    tl.store(scratch + m * row_size + tl.load(piece) + i, x.to(scratch.dtype.element_ty), mask=here)
