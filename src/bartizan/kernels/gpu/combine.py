"""The weighted sum of the rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan._util.types import Floats
from bartizan.kernels.gpu.device_rows import FLOATS, DeviceRows, tile_at
from bartizan.kernels.gpu.launch import Launcher

COLUMNS = 1024  # that a program sums up, over all rows
AT_ONCE = 8  # rows that it reads before it adds


def weighted_sum(rows: DeviceRows, weights: Floats, rest: float, origin: Tensor | None, out: Tensor) -> None:
    """Write sum_m weights[m] rows[m], plus rest * origin if given, to `out`, a flat tensor of `rows.width` numbers.

    Rows of weight 0 are not read, whatever they hold. `weights` is in host memory.
    """
    if out.numel() != rows.width or not out.is_contiguous():
        raise ValueError(
            f"Wanted a contiguous result of {rows.width} numbers; got shape {tuple(out.shape)} with strides "
            f"{out.stride()}. Pass a slice of a flat tensor."
        )
    which = np.flatnonzero(weights)
    chosen = torch.from_numpy(np.concatenate([[rest], weights[which], which])).to(rows.device, non_blocking=True)
    combine = _launcher(rows.dtype, out.dtype, rows.tile, rows.align, COLUMNS, AT_ONCE)
    combine((-(-rows.width // COLUMNS), 1, 1), *rows.place, chosen, len(which), origin, out, rows.width)


@lru_cache(maxsize=64)
def _launcher(dtype: torch.dtype, to: torch.dtype, tile: int, align: int, columns: int, at_once: int) -> Launcher:
    wide = FLOATS[torch.float64 if torch.float64 in (dtype, to) else torch.float32]
    return Launcher(_combine, (FLOATS[dtype], dtype.itemsize, tile, align, columns, at_once, wide))


@triton.jit(do_not_specialize=["base", "step", "n_tiles", "count", "width"])
def _combine(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    chosen,
    count: tl.int32,
    origin,
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
    """Sum one range of columns; only the last needs a mask, which would make all loads narrow.

    `chosen` holds the rest, the weights of `count` rows, and which rows they are.
    """
    rows = (table, base, step, n_tiles)
    first = tl.program_id(0).to(tl.int64) * COLUMNS
    i = tl.arange(0, COLUMNS)
    factors = chosen + 1
    which = factors + count
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
            total += tl.load(chosen).to(WIDE) * tl.load(origin + first + i).to(WIDE)
        tl.store(out + first + i, total.to(out.dtype.element_ty))
    else:
        here = first + i < width
        for j in range(count):
            m = tl.load(which + j).to(tl.int64)
            place = tile_at(rows, m, first, TILE, BYTES).to(tl.pointer_type(DTYPE))
            total += tl.load(factors + j).to(WIDE) * tl.load(place + i, mask=here, other=0.0).to(WIDE)
        if origin is not None:
            total += tl.load(chosen).to(WIDE) * tl.load(origin + first + i, mask=here, other=0.0).to(WIDE)
        tl.store(out + first + i, total.to(out.dtype.element_ty), mask=here)
