"""Rows of a range of columns on a GPU as addresses of tiles, so that kernels read updates in place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from bartizan.kernels.protocol import Kernels

TILE = 4096  # coordinates of a tile, which is contiguous
FLOATS = {torch.float32: tl.float32, torch.float64: tl.float64, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """Rows of `width` floating-point numbers: one matrix, or tiles anywhere on the device.

    Coordinate i of row m of a matrix is at base + m * step + i * itemsize. Tile t of row m of scattered entries is at
    places[m, entry[t]] + offset[t]: `table` begins with places, `step` numbers per row; entry[t] is its number
    base + t, offset[t] lies `table_tiles` behind.
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
    table_tiles: int = 0

    @classmethod
    def of(cls, matrix: torch.Tensor, tile: int = TILE) -> DeviceRows:
        """The rows of a matrix whose rows are contiguous, in place."""
        if matrix.ndim != 2 or (matrix.stride(1) != 1 and matrix.shape[1] > 1) or matrix.dtype not in FLOATS:
            raise ValueError(
                f"Wanted an (M, p) matrix of floating-point numbers with contiguous rows; got {matrix.dtype} of shape "
                f"{tuple(matrix.shape)} and strides {matrix.stride()}. Use Placed.of(...) for other containers."
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
    def kernels(self) -> Kernels:
        """The module whose kernels can read these rows."""
        from bartizan.kernels import gpu

        return gpu

    @property
    def place(self) -> tuple[Any, ...]:
        """The first arguments of a kernel, which passes them to `tile_at`."""
        return self.table, self.base, self.step, self.table_tiles

    @property
    def form(self) -> dict[str, Any]:
        """The constants that kernels are compiled for."""
        return {"DTYPE": FLOATS[self.dtype], "BYTES": self.dtype.itemsize, "TILE": self.tile}


def aligned(*addresses: int) -> int:
    """The largest power of two up to 16 that divides them all."""
    return math.gcd(16, *addresses)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Return how many programs can run side by side, at least; few where Triton is interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit
def wide(i):
    """Return an index in 64 bits; interpreted loops count in Python's numbers."""
    return tl.zeros((), tl.int64) + i


@triton.jit
def tile_at(rows, m, coordinate, TILE: tl.constexpr, BYTES: tl.constexpr):
    """The address of a coordinate of row m; from there to the end of its tile the row is contiguous.

    `rows` is the tuple `DeviceRows.place`.
    """
    table, base, step, n_tiles = rows
    coordinate = coordinate.to(tl.int64)
    if table is None:
        return base + m.to(tl.int64) * step + coordinate * BYTES
    else:
        tile = coordinate // TILE
        entry = tl.load(table + base + tile)
        offset = tl.load(table + base + n_tiles + tile)
        place = tl.load(table + m.to(tl.int64) * step + entry)
        return place + offset + (coordinate - tile * TILE) * BYTES
