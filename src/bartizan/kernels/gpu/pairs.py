"""Inner products of all pairs on the tensor cores, as accurate as float32 sums.

The tensor cores multiply tf32, 11 bits. A float32 number is the sum of two such numbers but for its last bits, and
three products of these parts make up the product of the numbers. The cores also cut off what they add, so their sums
are kept short and added up in float32, those of different programs in float64.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan.kernels.gpu.device_rows import FLOATS, DeviceRows, multiprocessors, tile_at, wide
from bartizan.kernels.gpu.fallback import copied
from bartizan.kernels.gpu.launch import Launcher

SIDE, COLUMNS, PROGRAMS = 64, 64, 8  # rows of a block of pairs, columns read at a time, programs per multiprocessor
LARGE_SIDE, LARGE_COLUMNS, LARGE_PROGRAMS = 128, 32, 3  # the same where there are more rows than fit into one block
SHORT = 4  # times that columns are read until the sum of the tensor cores is taken away
MAX_PARTIAL_SUMS = 2**23  # numbers: 32 MiB


def gram(rows: DeviceRows, origin: Tensor | None, out: Tensor) -> None:
    if rows.dtype == torch.float64:
        for _, x in copied(rows, origin):
            out += x @ x.T
        return
    M = len(rows)
    size, columns, programs = (SIDE, COLUMNS, PROGRAMS) if M <= SIDE else (LARGE_SIDE, LARGE_COLUMNS, LARGE_PROGRAMS)
    side, steps = -(-M // size), -(-rows.width // (columns * SHORT))
    pairs = side * (side + 1) // 2
    most = min(steps, MAX_PARTIAL_SUMS // (pairs * size * size))
    parts = max(1, min(programs * multiprocessors(rows.device) // pairs, most))
    each = -(-steps // parts)
    sums = torch.empty((parts, pairs, size, size), dtype=torch.float32, device=rows.device)
    terms = 1 if rows.dtype != torch.float32 and origin is None else 3
    multiply, add = _launchers(rows.dtype, rows.tile, rows.align, (size, columns, SHORT, terms, side == 1))
    multiply((parts, side, side), *rows.place, origin, sums, M, rows.width, each)
    add((side, side, 1), sums, out, M, out.stride(0), parts)


@lru_cache(maxsize=64)
def _launchers(
    dtype: torch.dtype, tile: int, align: int, shape: tuple[int, int, int, int, bool]
) -> tuple[Launcher, Launcher]:
    form = (FLOATS[dtype], dtype.itemsize, tile)
    options = {"num_warps": shape[0] // 16, "num_stages": 1}
    return Launcher(_pairs, (*form, align, *shape), options), Launcher(_add, shape[:1])


@triton.jit
def _read(
    rows,
    m,
    at,
    origin,
    width,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Load [SIDE, COLUMNS] of rows about the origin; a mask puts zeros behind the last but makes loads narrow."""
    i = tl.arange(0, COLUMNS)[None, :]
    if MASKED:
        here = at + i < width
        place = tile_at(rows, m, tl.minimum(at, width - 1), TILE, BYTES)
        x = tl.load(place.to(tl.pointer_type(DTYPE))[:, None] + i, mask=here, other=0.0).to(tl.float32)
        if origin is not None:
            x = (x - tl.load(origin + at + i, mask=here, other=0.0)).to(tl.float32)
    else:
        place = tile_at(rows, m, at, TILE, BYTES)
        x = tl.load(tl.multiple_of(place.to(tl.pointer_type(DTYPE)), ALIGN)[:, None] + i).to(tl.float32)
        if origin is not None:
            x = (x - tl.load(origin + at + i)).to(tl.float32)
    return x


@triton.jit
def _high(x):
    """Return x cut to the digits of tf32."""
    return (x.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["base", "step", "n_tiles", "n_rows", "width", "each"])
def _pairs(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    origin,
    sums,
    n_rows: tl.int32,
    width: tl.int64,
    each: tl.int32,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    SIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHORT: tl.constexpr,
    TERMS: tl.constexpr,
    ONE: tl.constexpr,
):
    """Multiply one part of the columns of one block of pairs; if all rows are in one block (ONE) they are read once.

    `short` are short sums of the tensor cores; `mixed` multiplies what tf32 holds of a number with the rest of another.
    """
    rows = (table, base, step, n_tiles)
    part, i, j = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if j <= i:
        rows_i = tl.minimum(i * SIDE + tl.arange(0, SIDE), n_rows - 1)
        rows_j = tl.minimum(j * SIDE + tl.arange(0, SIDE), n_rows - 1)
        total = tl.zeros((SIDE, SIDE), tl.float32)
        mixed = tl.zeros((SIDE, SIDE), tl.float32)
        whole = (width // (COLUMNS * SHORT)).to(tl.int32)
        end = tl.minimum((part + 1) * each, tl.cdiv(width, COLUMNS * SHORT).to(tl.int32))
        for MASKED in tl.static_range(2):
            first, last = part * each, tl.minimum(end, whole)
            if MASKED:
                first, last = tl.maximum(part * each, whole), end
            for s in range(first, last):
                short = tl.zeros((SIDE, SIDE), tl.float32)
                for t in tl.static_range(SHORT):
                    at = (wide(s) * SHORT + t) * COLUMNS
                    x = _read(rows, rows_i, at, origin, width, DTYPE, BYTES, TILE, ALIGN, COLUMNS, MASKED)
                    y = x
                    if not ONE:
                        y = _read(rows, rows_j, at, origin, width, DTYPE, BYTES, TILE, ALIGN, COLUMNS, MASKED)
                    high_x, high_y = _high(x), _high(y)
                    short = tl.dot(high_x, tl.trans(high_y), short, input_precision="tf32")
                    if TERMS == 3:
                        if ONE:
                            mixed = tl.dot(high_x, tl.trans(y - high_y), mixed, input_precision="tf32")
                        else:
                            short = tl.dot(high_x, tl.trans(y - high_y), short, input_precision="tf32")
                            short = tl.dot(x - high_x, tl.trans(high_y), short, input_precision="tf32")
                total += short
        if ONE:
            mixed += tl.trans(mixed)
        a, b = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
        block = part.to(tl.int64) * (tl.num_programs(1) * (tl.num_programs(1) + 1) // 2) + i * (i + 1) // 2 + j
        tl.store(sums + (block * SIDE + a) * SIDE + b, total + mixed)


@triton.jit(do_not_specialize=["n_rows", "stride", "parts"])
def _add(sums, out, n_rows: tl.int32, stride: tl.int64, parts: tl.int32, SIDE: tl.constexpr):
    """Add the sums of the parts to `out`, on both sides of the diagonal."""
    i, j = tl.program_id(0), tl.program_id(1)
    if j <= i:
        a, b = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
        total = tl.zeros((SIDE, SIDE), tl.float64)
        for part in range(parts):
            block = wide(part) * (tl.num_programs(0) * (tl.num_programs(0) + 1) // 2) + i * (i + 1) // 2 + j
            total += tl.load(sums + (block * SIDE + a) * SIDE + b).to(tl.float64)
        row, column = (i * SIDE + a).to(tl.int64), (j * SIDE + b).to(tl.int64)
        here = (row < n_rows) & (column < n_rows)
        at = out + row * stride + column
        tl.store(at, tl.load(at, mask=here) + total, mask=here)
        if j < i:
            at = out + column * stride + row
            tl.store(at, tl.load(at, mask=here) + total, mask=here)
