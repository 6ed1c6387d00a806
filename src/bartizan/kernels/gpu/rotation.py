"""The rotated sketch: words, then blocks in registers, then a sum of parts.

The walk over (row, block) is cut into equal runs, one a program, and all programs fit on the device at once. What a
run adds for one row is written once, and a last kernel sums these parts in float64, always in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bartizan._util.types import Array
from bartizan.kernels import reference
from bartizan.kernels.gpu.chacha import COUNTERS, KEY, draw, key_words
from bartizan.kernels.gpu.device_rows import FLOATS, DeviceRows, aligned, multiprocessors, tile_at, wide
from bartizan.kernels.gpu.fallback import rotated_by_torch
from bartizan.kernels.gpu.launch import Launcher
from bartizan.kernels.gpu.registers import sketch_kernel

MAX_WORDS = 10 * 2**20  # random words held at a time: 40 MiB, for 149 million coordinates
MAX_PARTIAL_SUMS = 2**23  # numbers of partial sketches held at a time: 32 MiB
WARP_NUMBERS = 2048  # that a warp holds, 64 per thread, and as many sums
WARPS, REGISTERS = 8, 0  # that a multiprocessor has room for, with all registers that a thread can have ...
NARROW_WARPS, NARROW_REGISTERS = 12, 168  # ... or with fewer, where rows are not aligned for wide loads
NARROW_K = 4096  # up to which these are enough: above, numbers would be kept in memory
ROWS_PER_ORIGIN = 2  # that a program reads about an origin, which then comes from memory once for them all
MAX_EARLY_WORDS = 2**22  # random words that stay in L2: half of the next block is then read before this one's end
REDUCED_CELLS = 1024  # of a row, that one program sums up


class _Step(NamedTuple):
    """The rows and blocks that one launch of each kernel sketches, and the place of their scratch memory."""

    first: int
    part: tuple[int, int, int, int, int]
    run: tuple[int, int, int]
    words: int
    drawers: int
    copiers: int
    programs: int
    size: int
    places: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Plan:
    """The mapping of blocks of one kind of rows to programs and warps, and the kernels for them."""

    together: int
    words_a_block: int
    crew: int
    prepare: Launcher
    sketch: Launcher
    reduce: Launcher


def rotated(
    rows: DeviceRows, origin: Tensor | None, start: int, key: Array, mixing: int, out: Tensor, norms: Tensor
) -> None:
    k = out.shape[1]
    if rows.dtype == torch.float64 or shape_of(k, mixing) is None:
        return rotated_by_torch(rows, origin, start, key, mixing, out, norms)
    origin_at, about = (0, None) if origin is None else (origin.data_ptr(), origin.dtype)
    plan = _plan(
        k,
        mixing,
        rows.dtype,
        rows.tile,
        rows.align,
        about,
        aligned(origin_at),
        _together(len(rows)) if origin is not None else 1,
        rows.device,
        origin is None and -(-rows.width // k) * reference.rotation_words(k, mixing) <= MAX_EARLY_WORDS,
        (WARPS, REGISTERS) if rows.align == 16 or k > NARROW_K else (NARROW_WARPS, NARROW_REGISTERS),
    )
    M, width, count, place, words = len(rows), rows.width, plan.words_a_block, rows.place, key_words(key)
    for step in _steps(plan, M, width, k, rows.dtype.itemsize, origin is not None):
        scratch = torch.empty(step.size, dtype=torch.uint8, device=rows.device)
        base = scratch.data_ptr()
        words_at, tail_at, origin_tail_at, parts_at, norms_at = [base + at for at in step.places]
        drawn = ((start // k + step.first) * count // 16, step.words // 16, reference.ROTATED, *words)
        padded = (tail_at, origin_at, origin_tail_at)
        grid = (step.drawers + step.copiers, 1, 1)
        plan.prepare(grid, *place, words_at, *drawn, *padded, M, width, step.drawers)
        plan.sketch((step.programs, 1, 1), *place, words_at, *padded, parts_at, norms_at, *step.part)
        row, some, *_ = step.part
        plan.reduce((some, -(-k // REDUCED_CELLS), 1), parts_at, norms_at, out, norms, row, out.stride(0), *step.run)
    return None


@lru_cache(maxsize=64)
def _steps(plan: _Plan, M: int, width: int, k: int, itemsize: int, has_origin: bool) -> tuple[_Step, ...]:
    """Return the launches for rows of these sizes, kept for the next round."""
    R, count, rest = plan.together, plan.words_a_block, width % k
    n_blocks, most_blocks = -(-width // k), MAX_WORDS // count
    most_groups = max(1, MAX_PARTIAL_SUMS // k // R - plan.crew)
    steps = []
    for first in range(0, n_blocks, most_blocks):
        blocks = min(most_blocks, n_blocks - first)
        for row in range(0, M, most_groups * R):
            some = min(most_groups * R, M - row)
            groups = -(-some // R)
            programs = min(_programs(plan.crew, groups, R), groups * blocks)
            n_parts = (programs + groups) * R
            origin_tail = 8 * k if rest and has_origin else 0
            sizes = [4 * blocks * count, M * k * itemsize if rest else 0, origin_tail, 4 * k * n_parts, 8 * n_parts]
            *places, size = accumulate(sizes, initial=0)
            steps.append(
                _Step(
                    first=first,
                    part=(row, some, first, blocks, width),
                    run=(groups, blocks, programs),
                    words=blocks * count,
                    drawers=-(-blocks * count // (16 * COUNTERS)),
                    copiers=(M if rest else 0) + (1 if origin_tail else 0),
                    programs=programs,
                    size=size,
                    places=tuple(places),
                )
            )
    return tuple(steps)


def shape_of(k: int, n: int) -> tuple[int, int] | None:
    """Return how many sub-blocks a warp makes and how many warps make them all; None where registers are too few."""
    L = k // n
    own = min(n, 32, max(1, WARP_NUMBERS // L))
    return (own, n // own) if 32 <= L <= 512 and n // own <= 8 else None


def _together(n_rows: int) -> int:
    return min(ROWS_PER_ORIGIN, 1 << (n_rows - 1).bit_length())


def _programs(crew: int, groups: int, together: int) -> int:
    """Return how many programs share the rows: about an origin equal shares, so that they read its columns together."""
    return crew if together == 1 or groups > crew else crew // groups * groups


@lru_cache(maxsize=256)
def _plan(
    k: int,
    n: int,
    dtype: torch.dtype,
    tile: int,
    align: int,
    origin: torch.dtype | None,
    origin_align: int,
    together: int,
    device: torch.device,
    early: bool,
    room: tuple[int, int],
) -> _Plan:
    shape = shape_of(k, n)
    assert shape is not None
    own, warps = shape
    L, count = k // n, reference.rotation_words(k, n)
    vec = max(1, min(4, L // 32, align // dtype.itemsize))
    rep = L // 32 // vec
    most = room[0] * WARP_NUMBERS // (own * L)
    R = max(1, min(together, most // warps))
    form = (FLOATS[dtype], dtype.itemsize, tile)
    about = None if origin is None else FLOATS[origin]
    logs = (own.bit_length() - 1, vec.bit_length() - 1, rep.bit_length() - 1)
    cap = {"maxnreg": room[1]} if room[1] and device.type == "cuda" else {}
    return _Plan(
        together=R,
        words_a_block=count,
        crew=max(1, min(multiprocessors(device) * max(1, most // (warps * R)), MAX_PARTIAL_SUMS // k // R // 2)),
        prepare=Launcher(_prepare, (k, COUNTERS, about, *form)),
        sketch=Launcher(
            sketch_kernel,
            (n, L, own, warps, reference.sign_planes(n), count, vec, rep, *logs, *form, align, about)
            + (0 if origin is None else origin.itemsize, origin_align, R, early and align == 16 and warps <= 2),
            {"num_warps": warps * R, **cap},
        ),
        reduce=Launcher(_reduce, (R, k, min(k, REDUCED_CELLS), 1 / math.sqrt(n))),
    )


@triton.jit(
    do_not_specialize=["base", "step", "n_tiles", "words_at", "counter", "n_counters", "stream", "tail_at", "origin_at"]
    + ["origin_tail_at", "n_rows", "width", "drawers", *KEY]
)
def _prepare(
    table,
    base: tl.int64,
    step: tl.int64,
    n_tiles: tl.int64,
    words_at: tl.int64,
    counter: tl.int64,
    n_counters: tl.int64,
    stream: tl.int32,
    key0: tl.int64,
    key1: tl.int64,
    key2: tl.int64,
    key3: tl.int64,
    tail_at: tl.int64,
    origin_at: tl.int64,
    origin_tail_at: tl.int64,
    n_rows: tl.int32,
    width: tl.int64,
    drawers: tl.int32,
    K: tl.constexpr,
    COUNTERS: tl.constexpr,
    ORIGIN: tl.constexpr,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Prepare all that the blocks need in one launch: every launch costs as much as 2% of a read."""
    rows = (table, base, step, n_tiles)
    program = tl.program_id(0)
    if program < drawers:
        at = program.to(tl.int64) * COUNTERS + tl.arange(0, COUNTERS)
        words = words_at.to(tl.pointer_type(tl.int32))
        drawn = draw(counter + at, stream, key0, key1, key2, key3)
        for i in tl.static_range(16):
            tl.store(words + 16 * at + i, drawn[i].to(tl.int32, bitcast=True), mask=at < n_counters)
    else:
        m = program - drawers
        i, first = tl.arange(0, K), width // K * K
        if m < n_rows:
            place = tile_at(rows, m, first, TILE, BYTES).to(tl.pointer_type(DTYPE))
            tail = tail_at.to(tl.pointer_type(DTYPE))
            tl.store(tail + m.to(tl.int64) * K + i, tl.load(place + i, mask=first + i < width, other=0.0))
        elif ORIGIN is not None:
            origin = origin_at.to(tl.pointer_type(ORIGIN))
            origin_tail = origin_tail_at.to(tl.pointer_type(ORIGIN))
            tl.store(origin_tail + i, tl.load(origin + first + i, mask=first + i < width, other=0.0))


@triton.jit(
    do_not_specialize=["parts_at", "norm_parts_at", "row", "stride", "groups", "n_blocks", "programs"],
    do_not_specialize_on_alignment=["out", "norms"],
)
def _reduce(
    parts_at: tl.int64,
    norm_parts_at: tl.int64,
    out,
    norms,
    row: tl.int64,
    stride: tl.int64,
    groups: tl.int64,
    n_blocks: tl.int64,
    programs: tl.int64,
    R: tl.constexpr,
    K: tl.constexpr,
    CELLS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Add the parts of one row to its sketch and its squared norm: those of the programs that met its group."""
    m = tl.program_id(0).to(tl.int64)
    cells = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    parts = parts_at.to(tl.pointer_type(tl.float32))
    norm_parts = norm_parts_at.to(tl.pointer_type(tl.float64))
    group, blocks = m // R, groups * n_blocks
    low = ((group * n_blocks + 1) * programs - 1) // blocks
    high = ((group + 1) * n_blocks * programs - 1) // blocks + 1
    total = tl.zeros((CELLS,), tl.float64)
    norm = tl.zeros((), tl.float64)
    for i in range((low + group).to(tl.int32), (high + group).to(tl.int32)):
        part = wide(i) * R + m % R
        total += tl.load(parts + part * K + cells).to(tl.float64)
        norm += tl.load(norm_parts + part)
    at = out + (row + m) * stride + cells
    tl.store(at, tl.load(at) + total * SCALE)
    if tl.program_id(1) == 0:
        own = norms + row + m
        tl.store(own, tl.load(own) + norm)
