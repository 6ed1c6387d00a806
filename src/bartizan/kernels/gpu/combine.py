"""The weighted sum of the rows."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan.kernels.gpu.device_rows import FLOATS, DeviceRows, tile_at
from bartizan.kernels.gpu.launch import Launcher

COLUMNS = 1024  # that a program sums up, over all rows
AT_ONCE = 8  # rows that it reads before it adds


def weighted_sum(rows: DeviceRows, weights: Tensor, rest: Tensor | None, origin: Tensor | None, out: Tensor) -> None:
    """out = sum_m weights[m] rows[m], + rest * origin if given, in the dtype of `out`, a flat tensor of `rows.width`.

    Rows of weight 0 are not read, whatever they hold; the device selects them, so the host does not wait for it.
    `weights` and `rest` (one number) are float64 on the device.
    """
    if out.numel() != rows.width or not out.is_contiguous():
        raise ValueError(
            f"Wanted a contiguous result of {rows.width} numbers; got shape {tuple(out.shape)} with strides "
            f"{out.stride()}. Pass a slice of a flat tensor."
        )
    M = len(rows)
    chosen = torch.empty(2 * M + 1, dtype=torch.float64, device=rows.device)
    choose, combine = _launchers(M, rows.dtype, out.dtype, rows.tile, rows.align, COLUMNS, AT_ONCE)
    choose((1, 1, 1), weights, chosen, M)
    combine((-(-rows.width // COLUMNS), 1, 1), *rows.place, chosen, M, origin, rest, out, rows.width)


@lru_cache(maxsize=64)
def _launchers(
    M: int, dtype: torch.dtype, to: torch.dtype, tile: int, align: int, columns: int, at_once: int
) -> tuple[Launcher, Launcher]:
    wide = FLOATS[torch.float64 if torch.float64 in (dtype, to) else torch.float32]
    form = (FLOATS[dtype], dtype.itemsize, tile)
    return (
        Launcher(_choose, (triton.next_power_of_2(M),)),
        Launcher(_combine, (*form, align, columns, at_once, wide)),
    )


@triton.jit(do_not_specialize=["n_rows"])
def _choose(weights, chosen, n_rows: tl.int32, ROWS: tl.constexpr):
    """How many rows have weight, their weights, and, behind room for all weights, which ones they are."""
    m = tl.arange(0, ROWS)
    weight = tl.load(weights + m, mask=m < n_rows, other=0.0).to(tl.float64)
    has_weight = (weight != 0).to(tl.int32)
    at = tl.cumsum(has_weight) - 1
    tl.store(chosen, tl.sum(has_weight).to(tl.float64))
    tl.store(chosen + 1 + at, weight, mask=has_weight != 0)
    tl.store(chosen + 1 + n_rows + at, m.to(tl.float64), mask=has_weight != 0)


@triton.jit(do_not_specialize=["base", "step", "n_tiles", "n_rows", "width"])
def _combine(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    chosen,
    n_rows: tl.int32,
    origin,
    rest,
    out,
    width: tl.int64,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One range of columns; only the last needs a mask, which would make all loads narrow."""
    rows = (table, base, step, n_tiles)
    first = tl.program_id(0).to(tl.int64) * COLUMNS
    i = tl.arange(0, COLUMNS)
    count = tl.load(chosen).to(tl.int32)
    factors = chosen + 1
    which = factors + n_rows
    total = tl.zeros((COLUMNS,), WIDE)
    if first + COLUMNS <= width:
        for start in range(0, count // AT_ONCE * AT_ONCE, AT_ONCE):
            x = ()
            for j in tl.static_range(AT_ONCE):
                m = tl.load(which + start + j).to(tl.int64)
                place = tile_at(rows, m, first, TILE, BYTES).to(tl.pointer_type(DTYPE))
                x = x + (tl.load(tl.multiple_of(place, ALIGN) + i, eviction_policy="evict_first"),)
            for j in tl.static_range(AT_ONCE):
                total += tl.load(factors + start + j).to(WIDE) * x[j].to(WIDE)
        for j in range(count // AT_ONCE * AT_ONCE, count):
            m = tl.load(which + j).to(tl.int64)
            place = tile_at(rows, m, first, TILE, BYTES).to(tl.pointer_type(DTYPE))
            x = tl.load(tl.multiple_of(place, ALIGN) + i, eviction_policy="evict_first")
            total += tl.load(factors + j).to(WIDE) * x.to(WIDE)
        if origin is not None:
            total += tl.load(rest).to(WIDE) * tl.load(origin + first + i).to(WIDE)
        tl.store(out + first + i, total.to(out.dtype.element_ty))
    else:
        here = first + i < width
        for j in range(count):
            m = tl.load(which + j).to(tl.int64)
            place = tile_at(rows, m, first, TILE, BYTES).to(tl.pointer_type(DTYPE))
            total += tl.load(factors + j).to(WIDE) * tl.load(place + i, mask=here, other=0.0).to(WIDE)
        if origin is not None:
            total += tl.load(rest).to(WIDE) * tl.load(origin + first + i, mask=here, other=0.0).to(WIDE)
        tl.store(out + first + i, total.to(out.dtype.element_ty), mask=here)
