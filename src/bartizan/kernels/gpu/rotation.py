"""The rotated sketch: words, then blocks in registers, then a sum of parts.

The walk over (row, block) is cut into equal runs, one a program, and all programs fit on the device at once. What a
run adds for one row is written once, and a last kernel sums these parts in float64, always in the same order.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from bartizan.kernels import reference
from bartizan.kernels.gpu.chacha import COUNTERS, KEY, draw, key_words
from bartizan.kernels.gpu.plain import plainly_rotated
from bartizan.kernels.gpu.registers import sketch_kernel
from bartizan.kernels.gpu.rows import FLOATS, DeviceRows, aligned, multiprocessors, tile_at, wide
from bartizan.types import Array

WORDS = 2**23  # random words held at a time: 32 MiB
PARTS = 2**23  # numbers of partial sketches held at a time: 32 MiB
HELD = 2048  # numbers that a warp holds, 64 a thread, and as many sums
REGISTERS = 168  # a thread: what these take, and a few for the way
WARPS = 12  # that a multiprocessor then has room for
REDUCED = 1024  # cells of a row that one program sums up


def rotated(
    rows: DeviceRows,
    origin: torch.Tensor | None,
    start: int,
    key: Array,
    mixing: int,
    out: torch.Tensor,
    norms: torch.Tensor,
) -> None:
    k = out.shape[1]
    shape = shape_of(k, mixing)
    if shape is None or rows.dtype == torch.float64:
        return plainly_rotated(rows, origin, start, key, mixing, out, norms)
    crew = max(1, min(multiprocessors(rows.device) * (WARPS // shape["G"]), PARTS // k // 2))
    n_blocks, most_blocks, most_rows = -(-rows.width // k), WORDS // shape["COUNT"], max(1, PARTS // k - crew)
    for first in range(0, n_blocks, most_blocks):
        count = min(most_blocks, n_blocks - first)
        words, tails = _prepared(rows, origin, start // k + first, count, key, k, shape["COUNT"])
        for row in range(0, len(rows), most_rows):
            some = min(most_rows, len(rows) - row)
            programs = min(crew, some * count)
            parts = torch.empty((programs + some, k), dtype=torch.float32, device=rows.device)
            norm_parts = torch.empty(programs + some, dtype=torch.float64, device=rows.device)
            _sketch(rows, origin, words, tails, (row, some, first, count), parts, norm_parts, shape, programs)
            _reduce[(some, triton.cdiv(k, REDUCED))](
                parts,
                norm_parts,
                out[row:],
                norms[row:],
                out.stride(0),
                some,
                count,
                programs,
                k,
                min(k, REDUCED),
                1 / math.sqrt(mixing),
            )
    return None


def shape_of(k: int, n: int) -> dict[str, int] | None:
    """How a block lies in warps; None where it does not fit into their registers."""
    L = k // n
    own = min(n, 32, max(1, HELD // L))
    if not 32 <= L <= 512 or n // own > 8:
        return None
    count = reference.rotation_words(k, n)
    return {"N": n, "L": L, "NC": own, "G": n // own, "PLANES": reference.sign_planes(n), "COUNT": count}


def _sketch(
    rows: DeviceRows,
    origin: torch.Tensor | None,
    words: torch.Tensor,
    tails: tuple[torch.Tensor | None, torch.Tensor | None],
    part: tuple[int, int, int, int],
    parts: torch.Tensor,
    norm_parts: torch.Tensor,
    shape: dict[str, int],
    programs: int,
) -> None:
    """Add up (first row, rows, first block, blocks) of the rows in this many parts."""
    vec = max(1, min(4, shape["L"] // 32, rows.align // rows.dtype.itemsize))
    rep = shape["L"] // 32 // vec
    sketch_kernel[(programs,)](
        *rows.place,
        words,
        *(0 if tensor is None else tensor.data_ptr() for tensor in (tails[0], origin, tails[1])),
        parts,
        norm_parts,
        *part,
        rows.width,
        **shape,
        VEC=vec,
        REP=rep,
        LOGC=shape["NC"].bit_length() - 1,
        LOGV=vec.bit_length() - 1,
        LOGR=rep.bit_length() - 1,
        **rows.form,
        ALIGN=rows.align,
        ORIGIN=None if origin is None else FLOATS[origin.dtype],
        ORIGIN_BYTES=0 if origin is None else origin.dtype.itemsize,
        ORIGIN_ALIGN=1 if origin is None else aligned(origin.data_ptr()),
        num_warps=shape["G"],
        **({"maxnreg": REGISTERS} if REGISTERS and rows.device.type == "cuda" else {}),
    )


def _prepared(
    rows: DeviceRows, origin: torch.Tensor | None, block: int, n_blocks: int, key: Array, k: int, count: int
) -> tuple[torch.Tensor, tuple[torch.Tensor | None, torch.Tensor | None]]:
    """The words of these blocks, and the last coordinates of the rows and of the origin, filled up to a block."""
    words = torch.empty(n_blocks * count, dtype=torch.int32, device=rows.device)
    rest = rows.width % k
    tail = torch.empty((len(rows), k), dtype=rows.dtype, device=rows.device) if rest else None
    origin_tail = torch.empty(k, dtype=origin.dtype, device=rows.device) if rest and origin is not None else None
    drawers = triton.cdiv(words.numel(), 16 * COUNTERS)
    _prepare[(drawers + (len(rows) if rest else 0) + (origin_tail is not None),)](
        *rows.place,
        words,
        block * count // 16,
        words.numel() // 16,
        reference.ROTATED,
        *key_words(key),
        tail,
        origin,
        origin_tail,
        len(rows),
        rows.width,
        drawers,
        K=k,
        COUNTERS=COUNTERS,
        **rows.form,
    )
    return words, (tail, origin_tail)


@triton.jit(
    do_not_specialize=["base", "step", "n_tiles", "counter", "n_counters", "stream", "n_rows", "width", "drawers", *KEY]
)
def _prepare(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    words,
    counter: tl.int64,
    n_counters: tl.int64,
    stream: tl.int32,
    key0: tl.int32,
    key1: tl.int32,
    key2: tl.int32,
    key3: tl.int32,
    key4: tl.int32,
    key5: tl.int32,
    key6: tl.int32,
    key7: tl.int32,
    tail,
    origin,
    origin_tail,
    n_rows: tl.int32,
    width: tl.int64,
    drawers: tl.int32,
    K: tl.constexpr,
    COUNTERS: tl.constexpr,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
):
    """One launch for all that has to be there before the blocks: every launch costs as much as 2% of a read."""
    program = tl.program_id(0)
    if program < drawers:
        at = program.to(tl.int64) * COUNTERS + tl.arange(0, COUNTERS)
        drawn = draw(counter + at, stream, key0, key1, key2, key3, key4, key5, key6, key7)
        for i in tl.static_range(16):
            tl.store(words + 16 * at + i, drawn[i].to(tl.int32, bitcast=True), mask=at < n_counters)
    elif tail is not None:
        m = program - drawers
        i, first = tl.arange(0, K), width // K * K
        if m < n_rows:
            place = tile_at(table, base, step, n_tiles, m, first, TILE, BYTES).to(tl.pointer_type(DTYPE))
            tl.store(tail + m.to(tl.int64) * K + i, tl.load(place + i, mask=first + i < width, other=0.0))
        elif origin is not None:
            tl.store(origin_tail + i, tl.load(origin + first + i, mask=first + i < width, other=0.0))


@triton.jit(do_not_specialize=["stride", "n_rows", "n_blocks", "programs"])
def _reduce(
    parts,
    norm_parts,
    out,
    norms,
    stride: tl.int64,
    n_rows: tl.int64,
    n_blocks: tl.int64,
    programs: tl.int64,
    K: tl.constexpr,
    CELLS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Add the parts of one row to its sketch and its squared norm: those of the programs that met it."""
    m = tl.program_id(0).to(tl.int64)
    cells = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    blocks = n_rows * n_blocks
    low = ((m * n_blocks + 1) * programs - 1) // blocks
    high = ((m + 1) * n_blocks * programs - 1) // blocks + 1
    total = tl.zeros((CELLS,), tl.float64)
    norm = tl.zeros((), tl.float64)
    for part in range((low + m).to(tl.int32), (high + m).to(tl.int32)):
        total += tl.load(parts + wide(part) * K + cells).to(tl.float64)
        norm += tl.load(norm_parts + part)
    at = out + m * stride + cells
    tl.store(at, tl.load(at) + total * SCALE)
    if tl.program_id(1) == 0:
        tl.store(norms + m, tl.load(norms + m) + norm)
