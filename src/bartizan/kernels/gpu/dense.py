"""The dense sketches. Achlioptas' matrix is drawn word by word and multiplied at once; Gauss' is written out, a few
columns at a time.

P holds only 0 and +-1, which every format of the tensor cores holds; the rows are split into what tf32 holds and the
rest, as in `gram`. One draw of ChaCha is 16 neighbouring cells of one coordinate: its 16 words are 16 matrices of
every 16th cell.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan._util.types import Array
from bartizan.kernels import reference
from bartizan.kernels.gpu.chacha import KEY, draw, key_words
from bartizan.kernels.gpu.device_rows import DeviceRows, multiprocessors, tile_at, wide
from bartizan.kernels.gpu.fallback import copied
from bartizan.kernels.gpu.launch import on_device
from bartizan.kernels.gpu.squared_norms import squared_norms

ROWS = 64  # of a program
GROUPS = 16  # draws of a program for one coordinate: 256 cells
COLUMNS = 32  # drawn at a time
PROGRAMS = 2  # per multiprocessor
MAX_PARTIAL_SUMS = 2**23  # numbers: 32 MiB
MATRIX_NUMBERS = 2**21  # of P, written out at a time: 16 MiB


def achlioptas(
    rows: DeviceRows, origin: Tensor | None, start: int, key: Array, s: int, out: Tensor, norms: Tensor
) -> None:
    M, k = out.shape
    squared_norms(rows, origin, norms)
    if rows.dtype == torch.float64:
        return _written_out(rows, origin, start, key, reference.ACHLIOPTAS, 2**32 // (2 * s), math.sqrt(s / k), out)
    groups, sides = triton.cdiv(k, 16 * GROUPS), triton.cdiv(M, ROWS)
    steps = triton.cdiv(rows.width, COLUMNS)
    parts = max(1, min(PROGRAMS * multiprocessors(rows.device) // (groups * sides), steps, MAX_PARTIAL_SUMS // (M * k)))
    each = triton.cdiv(steps, parts)
    sums = torch.empty((parts, M, k), dtype=torch.float32, device=rows.device)
    drawn = (start, k, 2**32 // (2 * s), reference.ACHLIOPTAS, *key_words(key))
    exact = rows.dtype != torch.float32 and origin is None
    form = {**rows.form, "EXACT": exact, "ROWS": ROWS, "GROUPS": GROUPS, "COLUMNS": COLUMNS}
    with on_device(sums.get_device()):
        _signs[(groups, sides, parts)](*rows.place, origin, sums, M, rows.width, each, *drawn, **form, num_warps=4)
    out += sums.sum(0, dtype=torch.float64) * math.sqrt(s / k)
    return None


def gaussian(rows: DeviceRows, origin: Tensor | None, start: int, key: Array, out: Tensor, norms: Tensor) -> None:
    squared_norms(rows, origin, norms)
    _written_out(rows, origin, start, key, reference.GAUSSIAN, 0, 1 / math.sqrt(out.shape[1]), out)


def _written_out(
    rows: DeviceRows, origin: Tensor | None, start: int, key: Array, stream: int, half: int, scale: float, out: Tensor
) -> None:
    """Add scale * rows @ P in float64 to `out`, with P written out for a few columns at a time."""
    k = out.shape[1]
    for first, x in copied(rows, origin, most=len(rows) * max(1, MATRIX_NUMBERS // k)):
        P = torch.empty((x.shape[1], k), dtype=torch.float64, device=rows.device)
        groups = triton.cdiv(k, 8 if stream == reference.GAUSSIAN else 16)
        grid = (triton.cdiv(x.shape[1], 64), triton.cdiv(groups, 16))
        sizes = x.shape[1], k, start + first, groups, half
        with on_device(P.get_device()):
            _matrix[grid](P, *sizes, stream, *key_words(key), stream == reference.GAUSSIAN)
        out.addmm_(x, P, alpha=scale)


@triton.jit(
    do_not_specialize=["base", "step", "n_tiles", "n_rows", "width", "each", "start", "k", "half", "stream", *KEY]
)
def _signs(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    origin,
    sums,
    n_rows: tl.int32,
    width: tl.int64,
    each: tl.int32,
    start: tl.int64,
    k: tl.int32,
    half: tl.int64,
    stream: tl.int32,
    key0: tl.int64,
    key1: tl.int64,
    key2: tl.int64,
    key3: tl.int64,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute 256 cells of the sketches of 64 rows, over one part of the columns."""
    rows = (table, base, step, n_tiles)
    group, part = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[None, :], tl.program_id(2)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    total = ()
    for _ in tl.static_range(16):
        total = total + (tl.zeros((ROWS, GROUPS), tl.float32),)
    i = tl.arange(0, COLUMNS)
    groups = tl.cdiv(k, 16)
    for s in range(part * each, tl.minimum((part + 1) * each, tl.cdiv(width, COLUMNS).to(tl.int32))):
        at = wide(s) * COLUMNS + i
        here = at < width
        row, column = tl.minimum(m, n_rows - 1)[:, None], tl.minimum(at, width - 1)[None, :]
        place = tile_at(rows, row, column, TILE, BYTES)
        x = tl.load(place.to(tl.pointer_type(DTYPE)), mask=here[None, :], other=0.0).to(tl.float32)
        if origin is not None:
            x = (x - tl.load(origin + at, mask=here, other=0.0)[None, :]).to(tl.float32)
        high = (x.to(tl.uint32, bitcast=True) & 0xFFFFE000).to(tl.float32, bitcast=True)
        drawn = draw((start + at)[:, None] * groups + group, stream, key0, key1, key2, key3)
        added = ()
        for w in tl.static_range(16):
            word = drawn[w].to(tl.int64)
            P = tl.where(word < half, 1.0, tl.where(word < 2 * half, -1.0, 0.0))
            sum = tl.dot(high, P, total[w], input_precision="tf32")
            if not EXACT:
                sum = tl.dot(x - high, P, sum, input_precision="tf32")
            added = added + (sum,)
        total = added
    out = sums + (part.to(tl.int64) * n_rows + m[:, None]) * k + 16 * group
    for w in tl.static_range(16):
        tl.store(out + w, total[w], mask=(m[:, None] < n_rows) & (16 * group + w < k))


@triton.jit(do_not_specialize=["width", "k", "start", "groups", "half", "stream", *KEY])
def _matrix(
    P,
    width: tl.int64,
    k: tl.int32,
    start: tl.int64,
    groups: tl.int32,
    half: tl.int64,
    stream: tl.int32,
    key0: tl.int64,
    key1: tl.int64,
    key2: tl.int64,
    key3: tl.int64,
    NORMAL: tl.constexpr,
):
    """Write 64 coordinates of P, 16 draws each: normal numbers by Box and Muller from two words, or signs from one."""
    i = tl.program_id(0).to(tl.int64) * 64 + tl.arange(0, 64)[:, None]
    group = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    drawn = draw((start + i) * groups + group, stream, key0, key1, key2, key3)
    if NORMAL:
        for w in tl.static_range(8):
            u = (drawn[2 * w].to(tl.float64) + 0.5) / 4294967296.0
            v = (drawn[2 * w + 1].to(tl.float64) + 0.5) / 4294967296.0
            normal = tl.sqrt(-2 * tl.log(u)) * tl.cos(6.283185307179586 * v)
            tl.store(P + i * k + 8 * group + w, normal, mask=(i < width) & (8 * group + w < k))
    else:
        for w in tl.static_range(16):
            word = drawn[w].to(tl.int64)
            sign = tl.where(word < half, 1.0, tl.where(word < 2 * half, -1.0, 0.0)).to(tl.float64)
            tl.store(P + i * k + 16 * group + w, sign, mask=(i < width) & (16 * group + w < k))
