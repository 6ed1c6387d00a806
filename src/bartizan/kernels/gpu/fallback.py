"""Slower paths by torch's operations, on copies of a few columns at a time, for what has no fast kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan._util.types import Array
from bartizan.kernels import reference
from bartizan.kernels.gpu.chacha import words
from bartizan.kernels.gpu.device_rows import DeviceRows, tile_at
from bartizan.kernels.gpu.launch import on_device

COPIED_NUMBERS = 2**22  # of a block
BLOCK = 4096


def copied(
    rows: DeviceRows,
    origin: Tensor | None,
    multiple_of: int = 1,
    most: int = COPIED_NUMBERS,
    dtype: torch.dtype = torch.float64,
) -> Iterator[tuple[int, Tensor]]:
    """Yield first coordinates and the rows about the origin, filled with zeros to a multiple of `multiple_of`."""
    step = max(multiple_of, most // len(rows) // multiple_of * multiple_of)
    for start in range(0, rows.width, step):
        width = min(step, rows.width - start)
        out = torch.empty((len(rows), width + -width % multiple_of), dtype=dtype, device=rows.device)
        copy_columns(rows, origin, start, out)
        yield start, out


def copy_columns(rows: DeviceRows, origin: Tensor | None, start: int, out: Tensor) -> None:
    """Copy as many columns as `out` has, from coordinate `start` on, about the origin; zeros behind the last one."""
    grid = (triton.cdiv(out.shape[1], BLOCK), len(rows))
    with on_device(out.get_device()):
        _copy[grid](*rows.place, origin, out, start, rows.width, out.shape[1], **rows.form, BLOCK=BLOCK)


def rotated_by_torch(
    rows: DeviceRows, origin: Tensor | None, start: int, key: Array, mixing: int, out: Tensor, norms: Tensor
) -> None:
    """Add what `reference.rotated` does, many blocks at a time."""
    (M, k), n = out.shape, mixing
    L, count, planes = k // n, reference.rotation_words(k, n), reference.sign_planes(n)
    lanes, bits = torch.arange(L, device=rows.device), torch.arange(2 * n, device=rows.device)
    for first, x in copied(rows, origin, multiple_of=k):
        norms += x.square().sum(1)
        x = x.view(M, -1, n, L)
        w = words(key, reference.ROTATED, (start + first) // k * count, x.shape[1] * count, rows.device)
        w = w.view(-1, count)
        plane = w[:, : planes * L].view(-1, planes, L)
        signs = 1 - 2 * ((plane[:, bits // 32] >> (bits % 32)[:, None]) & 1).double()
        drawn = w[:, planes * L : planes * L + n, None].long() & 0xFFFFFFFF
        x = x.gather(3, (lanes ^ drawn % min(L, 2**32 // L)).expand_as(x)) * signs[:, :n]
        for stage in range(n.bit_length() - 1):
            pairs = x.view(M, -1, n >> (stage + 1), 2, L << stage)
            x = torch.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2)
        x = x.view(M, -1, n, L) * signs[:, n:]
        sources = (lanes - drawn // (2**32 // L)) % L
        out += x.gather(3, sources.expand_as(x)).sum(1).view(M, k) / math.sqrt(n)


@triton.jit(do_not_specialize=["base", "step", "n_tiles", "start", "width", "padded"])
def _copy(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    origin,
    out,
    start: tl.int64,
    width: tl.int64,
    padded: tl.int64,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = (table, base, step, n_tiles)
    m = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = start + at < width
    place = tile_at(rows, m, tl.minimum(start + at, width - 1), TILE, BYTES)
    x = tl.load(place.to(tl.pointer_type(DTYPE)), mask=here, other=0.0).to(tl.float32 if BYTES < 8 else tl.float64)
    x = x.to(tl.float64)
    if origin is not None:
        x -= tl.load(origin + start + at, mask=here, other=0.0)
    tl.store(out + m.to(tl.int64) * padded + at, x, mask=at < padded)
