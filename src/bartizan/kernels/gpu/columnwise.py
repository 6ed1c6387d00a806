"""Median, trimmed mean and MeaMed of each column, and mixtures of rows.

Of few rows a thread keeps one column in registers and sorts it by a network that is unrolled when the kernel is
compiled. Many rows, float64 and unequal sizes are sorted by torch, a block of columns at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan._util.types import Floats
from bartizan.kernels import sorting_networks as networks
from bartizan.kernels.gpu.device_rows import FLOATS, DeviceRows, tile_at, wide
from bartizan.kernels.gpu.fallback import copied, copy_columns
from bartizan.kernels.gpu.launch import Launcher

MAX_SORTED_ROWS = 64  # that are sorted in registers: compiling takes 3 s for 64 rows, and 20 for 128
COLUMNS = 128  # of one program, one per thread
TORCH_SORTED = 2**20  # numbers that torch sorts at a time: with its copies and indices less than 64 MiB

_MEDIAN, _TRIMMED_MEAN = tl.constexpr(networks.MEDIAN), tl.constexpr(networks.TRIMMED_MEAN)


def median(rows: DeviceRows, sizes: Floats, out: Tensor) -> None:
    _order_statistic(rows, sizes, networks.MEDIAN, 0, out)


def trimmed_mean(rows: DeviceRows, sizes: Floats, f: int, out: Tensor) -> None:
    _order_statistic(rows, sizes, networks.TRIMMED_MEAN, f, out)


def meamed(rows: DeviceRows, sizes: Floats, f: int, out: Tensor) -> None:
    _order_statistic(rows, sizes, networks.MEAMED, f, out)


def mixed(rows: DeviceRows, mixing: Tensor, rest: Tensor, origin: Tensor | None, start: int, out: Tensor) -> None:
    """Write what `reference.mixed` does, all tensors in float64."""
    x = torch.empty((len(rows), out.shape[1]), dtype=torch.float64, device=rows.device)
    copy_columns(rows, None, start, x)
    torch.matmul(mixing, x, out=out)
    if origin is not None:
        out.addcmul_(rest[:, None], origin[start : start + out.shape[1]])


def _order_statistic(rows: DeviceRows, sizes: Floats, kind: int, f: int, out: Tensor) -> None:
    M = len(rows)
    if (sizes == sizes[0]).all():
        if M <= MAX_SORTED_ROWS and rows.dtype != torch.float64:
            launch = _launcher(kind, M, f, rows.dtype, rows.tile, rows.align, COLUMNS)
            return launch((-(-rows.width // COLUMNS), 1, 1), *rows.place, out, rows.width)
        weights = by_size = None
    else:
        by_size = torch.from_numpy(np.argsort(sizes, kind="stable")).to(rows.device)
        weights = torch.from_numpy(sizes).to(rows.device)[by_size]
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    for start, x in copied(rows, None, most=TORCH_SORTED, dtype=dtype):
        out[start : start + x.shape[1]] = _by_torch(x if by_size is None else x[by_size], weights, kind, f)


def _by_torch(x: Tensor, sizes: Tensor | None, kind: int, f: int) -> Tensor:
    """Return the order statistic by torch's operations, in float64; rows are in the order of their sizes."""
    M = len(x)
    if sizes is None:
        x = x.sort(dim=0).values.double()
        sizes = torch.ones((M, 1), dtype=torch.float64, device=x.device)
        centre = (x[(M - 1) // 2] + x[M // 2]) / 2
    else:
        x, order = x.sort(dim=0, stable=True)
        x, sizes = x.double(), sizes[order]
        reached, half = sizes.cumsum(0), sizes.sum(0) / 2
        low, high = ((reached < part).sum(0, keepdim=True) for part in (half * (1 - 2e-12), half * (1 + 2e-12)))
        centre = (x.gather(0, low)[0] + x.gather(0, high)[0]) / 2
    if kind == networks.MEDIAN:
        return centre
    if kind == networks.TRIMMED_MEAN:
        x, sizes = x[f : M - f], sizes.expand_as(x)[f : M - f]
        return (sizes * x).sum(0) / sizes.sum(0)
    first, rank = (centre - x[:f] > x[M - f :] - centre).sum(0), torch.arange(M, device=x.device)[:, None]
    sizes = sizes * ((rank >= first) & (rank < first + M - f))
    return (sizes * x).sum(0) / sizes.sum(0)


@lru_cache(maxsize=64)
def _launcher(kind: int, M: int, f: int, dtype: torch.dtype, tile: int, align: int, columns: int) -> Launcher:
    comparators = tuple(networks.comparators(kind, M, f)[:, :2].ravel().tolist())
    constants: tuple[Any, ...] = (FLOATS[dtype], dtype.itemsize, tile, align, columns, kind, M, f)
    return Launcher(_sorted, (*constants, comparators, len(comparators)), {"num_warps": max(1, columns // 32)})


@triton.jit(do_not_specialize=["base", "step", "n_tiles", "width"])
def _sorted(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    out,
    width: tl.int64,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    M: tl.constexpr,
    F: tl.constexpr,
    COMPARATORS: tl.constexpr,
    COUNT: tl.constexpr,
):
    """Reduce one column per thread, its M values in registers; the compiler drops unused outputs of comparators."""
    rows = (table, base, step, n_tiles)
    first = tl.program_id(0).to(tl.int64) * COLUMNS
    i = tl.arange(0, COLUMNS)
    here = first + i < width
    x = ()
    for m in tl.static_range(M):
        place = tile_at(rows, wide(m), first, TILE, BYTES).to(tl.pointer_type(DTYPE))
        x = x + (tl.load(tl.multiple_of(place, ALIGN) + i, mask=here, other=0.0).to(tl.float32),)  # type: ignore[assignment]
    for n in tl.static_range(0, COUNT, 2):
        low = tl.minimum(x[COMPARATORS[n]], x[COMPARATORS[n + 1]])
        high = tl.maximum(x[COMPARATORS[n]], x[COMPARATORS[n + 1]])
        x = x[: COMPARATORS[n]] + (low,) + x[COMPARATORS[n] + 1 :]
        x = x[: COMPARATORS[n + 1]] + (high,) + x[COMPARATORS[n + 1] + 1 :]
    total = tl.zeros((COLUMNS,), tl.float64)
    if KIND == _TRIMMED_MEAN:
        for m in tl.static_range(F, M - F):
            total += x[m].to(tl.float64)
        total = total / (M - 2 * F)
    else:
        centre = 0.5 * (x[(M - 1) // 2].to(tl.float64) + x[M // 2].to(tl.float64))
        if KIND == _MEDIAN:
            total = centre
        else:
            begin = tl.zeros((COLUMNS,), tl.int32)
            for s in tl.static_range(F):
                begin += (centre - x[s].to(tl.float64) > x[M - F + s].to(tl.float64) - centre).to(tl.int32)
            for m in tl.static_range(M):
                total += tl.where((begin <= m) & (m < begin + M - F), x[m].to(tl.float64), 0.0)
            total = total / (M - F)
    tl.store(out + first + i, total.to(out.dtype.element_ty), mask=here)
