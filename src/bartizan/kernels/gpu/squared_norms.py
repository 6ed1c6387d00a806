"""Squared norms of rows and their inner products with the last row, in one read of the data."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan.kernels.gpu.device_rows import FLOATS, DeviceRows, multiprocessors, tile_at, wide
from bartizan.kernels.gpu.launch import Launcher

BLOCK = 4096  # numbers that a program reads at a time
PROGRAMS = 32  # per multiprocessor: many, so that the last ones leave it idle only for a moment


def squared_norms(rows: DeviceRows, origin: Tensor | None, out: Tensor) -> None:
    _launch(rows, origin, out, last=False)


def dots(rows: DeviceRows, origin: Tensor | None, out: Tensor) -> None:
    _launch(rows, origin, out, last=True)


def _launch(rows: DeviceRows, origin: Tensor | None, out: Tensor, last: bool) -> None:
    n_blocks = -(-rows.width // BLOCK)
    parts = min(n_blocks, max(1, PROGRAMS * multiprocessors(rows.device) // len(rows)))
    each = -(-n_blocks // parts)
    parts = -(-n_blocks // each)
    sums = torch.empty((len(rows), parts), dtype=torch.float64, device=rows.device)
    dots, add = _launchers(last, rows.dtype, rows.tile, rows.align, BLOCK)
    dots((parts, len(rows), 1), *rows.place, origin, sums, rows.width, each)
    add((-(-len(rows) // 16), 1, 1), sums, out, len(rows), parts)


@lru_cache(maxsize=64)
def _launchers(last: bool, dtype: torch.dtype, tile: int, align: int, block: int) -> tuple[Launcher, Launcher]:
    form = (FLOATS[dtype], dtype.itemsize, tile)
    return Launcher(_dots, (last, *form, align, block)), Launcher(_add, (16, 64))


@triton.jit(do_not_specialize=["base", "step", "n_tiles", "width", "each"])
def _dots(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    origin,
    sums,
    width: tl.int64,
    each: tl.int32,
    LAST: tl.constexpr,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum blocks `each * program` to `each * (program + 1)` of a row: whole ones, then the last of the row."""
    rows = (table, base, step, n_tiles)
    WIDE: tl.constexpr = tl.float64 if BYTES == 8 else tl.float32
    part, m = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    first, whole = part * each, (width // BLOCK).to(tl.int32)
    end = tl.minimum(first + each, tl.cdiv(width, BLOCK).to(tl.int32))
    total = tl.zeros((BLOCK,), WIDE)
    for b in range(first, tl.minimum(end, whole)):
        at = wide(b) * BLOCK
        place = tile_at(rows, m, at, TILE, BYTES).to(tl.pointer_type(DTYPE))
        x = tl.load(tl.multiple_of(place, ALIGN) + i, eviction_policy="evict_first").to(WIDE)
        if origin is not None:
            x = (x - tl.load(origin + at + i)).to(WIDE)
        if LAST:
            place = tile_at(rows, tl.num_programs(1) - 1, at, TILE, BYTES)
            y = tl.load(tl.multiple_of(place.to(tl.pointer_type(DTYPE)), ALIGN) + i).to(WIDE)
            if origin is not None:
                y = (y - tl.load(origin + at + i)).to(WIDE)
            total += x * y
        else:
            total += x * x
    for b in range(tl.maximum(first, whole), end):
        at = wide(b) * BLOCK
        here = at + i < width
        place = tile_at(rows, m, at, TILE, BYTES).to(tl.pointer_type(DTYPE))
        x = tl.load(place + i, mask=here, other=0.0).to(WIDE)
        y = x
        if LAST:
            place = tile_at(rows, tl.num_programs(1) - 1, at, TILE, BYTES)
            y = tl.load(place.to(tl.pointer_type(DTYPE)) + i, mask=here, other=0.0).to(WIDE)
        if origin is not None:
            z = tl.load(origin + at + i, mask=here, other=0.0)
            x, y = (x - z).to(WIDE), (y - z).to(WIDE)
        total += x * y
    tl.store(sums + m * tl.num_programs(0) + part, tl.sum(total.to(tl.float64)))


@triton.jit(do_not_specialize=["n_rows", "parts"])
def _add(sums, out, n_rows: tl.int32, parts: tl.int32, ROWS: tl.constexpr, PARTS: tl.constexpr):
    """Add the sums of each row's parts to `out`."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, PARTS), tl.float64)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)[None, :]
        total += tl.load(sums + m[:, None] * parts + part, mask=(m[:, None] < n_rows) & (part < parts), other=0.0)
    here = m < n_rows
    tl.store(out + m, tl.load(out + m, mask=here) + tl.sum(total, 1), mask=here)
