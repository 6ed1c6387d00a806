"""Kernels for host memory in numba, on all cores; `reference` defines what each of them computes.

Rows are read in place, a tile at a time; a tile that spans several arrays, or is of another format, is copied
to cache. Sums of float64 rows are float64; the mixing of narrower ones is float32, and a block's sketches are
then added up in float64. Loops run over flat buffers with unsigned indices: numba then emits no wrap-around checks and
LLVM vectorises them. The innermost ones of the sketch and of the weighted sum are written in LLVM's vectors, with
prefetches between their operations: without, they wait for memory. All are in one file because numba's cache checks
only the file that a kernel is in, not what it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from bartizan._util.jit import carray, cgutils, from_dtype, intrinsic, ir, llvm, njit, typeof, types, u64
from bartizan._util.threads import n_threads, share, share_range
from bartizan._util.types import Array, Floats
from bartizan.kernels import compiling, reference
from bartizan.kernels import order_statistics as order
from bartizan.kernels import random_matrices as dense
from bartizan.kernels import sorting_networks as networks
from bartizan.kernels.rows import FLOAT64, FOLD, UNIT, Mixing, Rows, Table, address_of, unit_of

compiling.register()

# Reordering sums is all we allow: NaN and Inf must come through.
SUMS = {"reassoc", "contract", "nsz"}
TILE, STRIP, SIDE = 4096, 256, 4  # columns that are read at once, and multiplied at once; rows of a square of products
THREADS_FROM_ADDITIONS = 2**20  # below it, waking a second thread costs more than it saves
THREADS_FROM_SORTED = 2**15  # numbers; below it one thread is enough
GRAM_PARTS_FROM_NUMBERS = 2**17  # from which on a Gram matrix is summed in parts
STRIPS_PER_TASK, MIN_TASKS, MAX_TASKS = 32, 4, 64  # of such a sum
STRIPE_FROM_ROWS = 256  # above it a strip of all rows is larger than the caches, and rows are multiplied by stripes
STRIPE_ROWS, CACHED_ROWS = 128, 16  # of a stripe, and those of it that stay in the first cache
MAX_OWN_FACTORS = 0.5  # of a mixing's factors, up to which it pays to sum once what its rows share
BAND_STRIPS = 256  # that are walked together
PREFETCH_NUMBERS = 1024  # by which a weighted sum asks for a row's numbers before it reads them
LINE_BYTES, PREFETCH_LINES = 64, 64  # of a cache line; lines of other rows that are asked for ahead
STRIP_BYTES, MAX_STRIP_COLUMNS, MAX_STRIPS_BYTES = 2**20, 2**13, 2**25  # of strips that are sorted: one; all threads'


Probe = tuple[Array, Array]
"""TILE weights, in the precision to sum in, and where the products of each row's strips with them are written."""
NO_PROBE: Probe = np.empty(0), np.empty((0, 0))

# A client may send the largest numbers there are: its norm quarantines it, without NumPy's warnings.
IGNORE_OVERFLOW = np.errstate(over="ignore", invalid="ignore")


def gram(rows: Rows, origin: Array | None, out: Floats, probe: Probe = NO_PROBE) -> None:
    M, width = len(rows), rows.width
    if M > STRIPE_FROM_ROWS:
        return _gram_of_many(rows, origin, out, probe)
    threads, about = _threads(M * width * M / 16), _only_read(origin)  # 16 products cost what one addition does
    n_strips = -(-width // STRIP)
    # Rows are cut alike for any number of threads, so that their products are the same to the bit.
    in_parts = width * M >= GRAM_PARTS_FROM_NUMBERS
    parts = max(MIN_TASKS, min(MAX_TASKS, n_strips // STRIPS_PER_TASK)) if in_parts else 1
    sums = np.zeros((parts, *[M + -M % SIDE] * 2))

    def task(part: int) -> None:
        first, last = n_strips * part // parts, n_strips * (part + 1) // parts
        _gram(rows.table, np.empty(STRIP, rows.dtype), about, first, last, sums[part], *probe)

    share(task, parts, threads)
    _add_grams(sums, out)


def _gram_of_many(rows: Rows, origin: Array | None, out: Floats, probe: Probe) -> None:
    """Add the Gram matrix of many rows; one task multiplies a stripe of rows with all rows before it.

    Rows are read once per stripe, and long ones band by band, so that a band comes from memory or disk once.
    """
    about, n_stripes, band = _only_read(origin), -(-len(rows) // STRIPE_ROWS), STRIP * BAND_STRIPS

    @IGNORE_OVERFLOW
    def add(low: int, i: int) -> None:
        top = STRIPE_ROWS * (n_stripes - 1 - i)  # the last ones are the longest
        high, bottom = min(low + band, rows.width), min(top + STRIPE_ROWS, len(rows))
        sums = np.zeros((STRIPE_ROWS, top + STRIPE_ROWS))
        _gram_stripe(rows.table, np.empty(STRIP, rows.dtype), about, low, high, top, bottom, sums, *probe)
        sums = sums[: bottom - top, :bottom]
        out[top:bottom, :bottom] += sums
        out[:top, top:bottom] += sums[:, :top].T

    for low in range(0, rows.width, band):
        share(partial(add, low), n_stripes, n_threads())


def squared_norms(rows: Rows, origin: Array | None, out: Floats) -> None:
    _dots(rows, np.arange(len(rows)), origin, out)


def dots(rows: Rows, origin: Array | None, out: Floats) -> None:
    _dots(rows, np.full(len(rows), len(rows) - 1), origin, out)


def _dots(rows: Rows, others: Array, origin: Array | None, out: Floats) -> None:
    threads, about = _threads(len(rows) * rows.width), _only_read(origin)
    parts = -(-rows.width // UNIT)
    sums, like = np.empty((len(rows), parts)), np.empty(0, rows.dtype)
    share_range(partial(_dot_parts, rows.table, others, like, about, sums), sums.size, threads)
    _add_parts(sums, out)


def probed_norms(rows: Rows, origin: Array | None, out: Floats, probe: Probe) -> None:
    """Add the squared norms as `squared_norms` does, to the bit, and write the probe's products in the same pass."""
    threads, about = _threads(len(rows) * rows.width), _only_read(origin)
    sums, like = np.empty((len(rows), -(-rows.width // UNIT))), np.empty(0, rows.dtype)
    share_range(partial(_probe_parts, rows.table, like, about, *probe, sums), sums.size, threads)
    _add_parts(sums, out)


def weighted_sum(
    rows: Rows, weights: Floats, rest: float, origin: Array | None, out: Rows, norms: Floats | None = None
) -> None:
    """Write the weighted sum; in the same read add the rows' squared norms about the origin to `norms`, if given."""
    threads, about = _threads(len(rows) * rows.width), _only_read(origin)
    n_tiles, like = -(-rows.width // TILE), np.empty(0, rows.dtype)
    squares = None if norms is None else np.empty((len(rows), n_tiles))
    share_range(partial(_sum_part, rows.table, like, weights, rest, about, out.table, squares), n_tiles, threads)
    if norms is not None:
        _add_parts(squares, norms)


def median(rows: Rows, sizes: Floats, out: Rows) -> None:
    _order_statistic(rows, sizes, networks.MEDIAN, 0, out)


def trimmed_mean(rows: Rows, sizes: Floats, f: int, out: Rows) -> None:
    _order_statistic(rows, sizes, networks.TRIMMED_MEAN, f, out)


def meamed(rows: Rows, sizes: Floats, f: int, out: Rows) -> None:
    _order_statistic(rows, sizes, networks.MEAMED, f, out)


def _order_statistic(rows: Rows, sizes: Floats, kind: int, f: int, out: Rows) -> None:
    by_size = None if (sizes == sizes[0]).all() else np.argsort(sizes, kind="stable")
    M, to, n_owners = len(sizes), out.table, 0 if by_size is None else len(sizes)
    if rows.mixing is None:
        fill, padded, dtype, buffers = _strips_of(rows, by_size), M, rows.dtype, [(1, rows.dtype)]
    else:
        # Of two values at the border MeaMed, and sizes, decide by rounding: they mix as they always did.
        alike = _alike(rows.mixing.factors) if by_size is None and kind != networks.MEAMED else None
        fill, padded, dtype = _mixed_strips_of(rows, rows.mixing, rows.width, by_size, alike), M + -M % 4, FLOAT64
        buffers = [(1, rows.dtype), (len(rows) + -len(rows) % 4, FLOAT64)]
    comparators = networks.comparators(kind, M, f, by_sizes=by_size is not None)
    ordered = sizes if by_size is None else sizes[by_size]

    def reduce(low: int, width: int, result: Floats, values: Array, owners: Array, *own: Array) -> None:
        fill(low, width, values, *own)
        if by_size is None:
            order.reduce(values[: M * width], width, comparators, kind, f, result)
        else:
            order.reduce_by_sizes(values[: M * width], owners, ordered, width, comparators, kind, f, result)
        _put_strip(to, low, result)

    _share_strips(reduce, rows.width, (1, FLOAT64), (padded, dtype), (n_owners, dtype), *buffers)


def _strips_of(rows: Rows, by_size: Array | None) -> Callable[..., None]:
    """Return a function that fills a strip with the rows, in this order."""
    table = rows.table if by_size is None else rows.table.take(by_size)

    def fill(low: int, width: int, values: Array, own: Array) -> None:
        _fill_strip(table, low, width, own, values)
        rows.show(low, values, rows.width - low, by_size)

    return fill


def _mixed_strips_of(
    rows: Rows, mixing: Mixing, stop: int, by_size: Array | None = None, alike: Any = None, start: int = 0
) -> Callable[..., None]:
    """Return a function that fills a strip with mixtures of the rows, in this order; both are padded to fours of rows.

    Columns are counted from `start` on, and are not used from `stop` on. `alike` is what the mixtures share, if any.
    """
    factors, rest, origin = mixing
    if by_size is not None:
        factors, rest = factors[by_size], rest[by_size]
    (R, M), factors = factors.shape, np.ascontiguousarray(factors)

    def fill(low: int, width: int, values: Floats, own: Array, sources: Floats) -> None:
        low += start
        _fill_strip(rows.table, low, width, own, sources)
        rows.show(low, sources[: M * width], stop - low)
        if alike is None:
            order.mix(factors, sources, width, values)
        else:
            order.mix_alike(*alike, sources, width, values)
        if origin is not None:
            about = origin[low : low + width]
            values.reshape(-1, width)[:R, : len(about)] += rest[:, None] * about

    return fill


def mixed(rows: Rows, mixing: Floats, rest: Floats, origin: Array | None, start: int, out: Floats) -> None:
    (R, M), mixtures = mixing.shape, Mixing(mixing, rest, origin)
    fill = _mixed_strips_of(rows, mixtures, start + out.shape[1], start=start)

    def mix(low: int, width: int, values: Floats, own: Array, sources: Floats) -> None:
        fill(low, width, values, own, sources)
        part = out[:, low : low + width]
        part[:] = values.reshape(-1, width)[:R, : part.shape[1]]

    buffers = (R + -R % 4, FLOAT64), (1, rows.dtype), (M + -M % 4, FLOAT64)
    _share_strips(mix, out.shape[1], *buffers)


def _alike(mixing: Floats) -> tuple[Floats, Array, Array, Floats] | None:
    """Return what most mixtures share, and where each differs, for `order.mix_alike`; None where they share too little.

    A client that most mixtures leave out is no part of what they share, so a distant one takes no digits of theirs.
    """
    shared = np.where(2 * np.count_nonzero(mixing, axis=0) > len(mixing), mixing.max(axis=0), 0.0)
    own = mixing - shared
    counts = np.count_nonzero(own, axis=1)
    if counts.sum() > MAX_OWN_FACTORS * mixing.size:
        return None
    return shared, np.append(0, np.cumsum(counts)), np.nonzero(own)[1], own[own != 0]


def _share_strips(task: Callable[..., None], columns: int, *buffers: tuple[int, np.dtype]) -> None:
    """Call task(first column, columns of a strip, *buffers) for strips that cover the columns.

    A buffer holds as many rows of a strip as it says, flat. A strip fits the second cache, a tile of it the first.
    Threads have buffers of their own.
    """
    numbers = sum(rows for rows, _ in buffers)
    size = sum(rows * dtype.itemsize for rows, dtype in buffers)
    # An odd number of tiles: the rows of one tile then lie in different sets of the first cache.
    tiles = min(MAX_STRIP_COLUMNS, STRIP_BYTES // size, columns + order.TILE) // order.TILE
    width = order.TILE * (max(0, tiles - 1) // 2 * 2 + 1)
    n_strips = -(-columns // width)
    few = columns * numbers < THREADS_FROM_SORTED
    threads = 1 if few else min(n_threads(), max(1, MAX_STRIPS_BYTES // (size * width)))
    parts = min(n_strips, 8 * threads) if threads > 1 else 1  # so that all threads are busy to the end

    def run(part: int) -> None:
        own = [_aligned(rows * width, dtype) for rows, dtype in buffers]
        for strip in range(n_strips * part // parts, n_strips * (part + 1) // parts):
            task(strip * width, width, *own)

    share(run, parts, threads)


def _aligned(count: int, dtype: np.dtype) -> Array:
    """Return uninitialised numbers, aligned to 64 bytes: a vector in two cache lines would take twice as long."""
    memory = np.empty(count * dtype.itemsize + 64, np.uint8)
    skip = -address_of(memory) % 64
    return memory[skip : skip + count * dtype.itemsize].view(dtype)


def copied(rows: Rows, out: Array) -> None:
    share(lambda m: _fill(rows.table, m, 0, out[m]), len(rows), _threads(out.size))


def rotated(rows: Rows, origin: Array | None, start: int, key: Array, mixing: int, out: Floats, norms: Floats) -> None:
    (M, k), about, like = out.shape, _only_read(origin), np.empty(0, rows.dtype)
    words = rotation_words(key, start // k, -(-rows.width // k), k, mixing)
    unit = unit_of(k) // k
    parts = -(-len(words) // unit)
    at_once = parts == 1 and unit == FOLD  # one fold, or a sum of several
    sums, squares = out[:, None] if at_once else np.zeros((M, parts, k)), np.empty((M, parts))
    rotate = partial(rotation_of(k, mixing), rows.table, unit, like, about, words, sums, squares)
    share_range(rotate, squares.size, _threads(M * rows.width))
    if not at_once:
        with np.errstate(over="ignore", invalid="ignore"):
            for part in range(parts):
                out += sums[:, part]
    _add_parts(squares, norms)


def rotation_words(key: Array, block: int, n_blocks: int, k: int, mixing: int) -> Array:
    """Return the random words of these blocks, (n_blocks, words per block)."""
    count = reference.rotation_words(k, mixing)
    words = np.empty((n_blocks, count), dtype=np.uint32)
    dense.fill_words(key, u64(reference.ROTATED), u64(block * count), words.reshape(-1))
    return words


@IGNORE_OVERFLOW
def achlioptas(rows: Rows, origin: Array | None, start: int, key: Array, s: int, out: Floats, norms: Floats) -> None:
    k, columns, half = out.shape[1], _columns(rows, origin), u64(2**32 // (2 * s))
    sums, groups = np.zeros((k, len(rows))), -(-k // 16)
    tasks = -(-groups // dense.BLOCKS)
    share(lambda i: dense.achlioptas(columns, start, key, half, i, groups, sums), tasks, n_threads())
    out += sums.T * np.sqrt(s / k)
    squared_norms(rows, origin, norms)


@IGNORE_OVERFLOW
def gaussian(rows: Rows, origin: Array | None, start: int, key: Array, out: Floats, norms: Floats) -> None:
    k, columns = out.shape[1], _columns(rows, origin)
    sums, groups = np.zeros((k, len(rows))), -(-k // 8)
    tasks = -(-groups // dense.BLOCKS)
    share(lambda i: dense.gaussian(columns, start, key, i, groups, sums), tasks, n_threads())
    out += sums.T / np.sqrt(k)
    squared_norms(rows, origin, norms)


def _columns(rows: Rows, origin: Array | None) -> Floats:
    """Return the transposed block, (w, M): the dense sketches add one coordinate of all clients at a time."""
    return np.ascontiguousarray(reference.centred(rows, origin).T)


def _threads(additions: float) -> int:
    """Return the number of threads that pay off for so many additions."""
    return n_threads() if additions >= THREADS_FROM_ADDITIONS else 1


def _only_read(origin: Array | None) -> Array | None:
    """Return a read-only view of the origin, so that numba sees one type, whether or not its owner may write to it."""
    if origin is not None:
        origin = origin.view()
        origin.flags.writeable = False
    return origin


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def emit_prefetch(builder, pointer):
    """Prefetch a number into all caches."""
    i32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
    builder.call(function, [builder.bitcast(pointer, cgutils.voidptr_t), i32(0), i32(3), i32(1)])


@intrinsic
def _prefetch(typing_context, address):
    """Prefetch the number at this address, which need not be readable."""

    def generate(context, builder, signature, arguments):
        emit_prefetch(builder, builder.inttoptr(arguments[0], cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@cache
def has_half_conversion(triple: str, cpu: str, features: str) -> bool:
    """Return whether LLVM has an instruction of this target for float16, rather than a call of a missing function."""
    code = "define float @f(half %x) {\n %y = fpext half %x to float\n ret float %y\n}"
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    return "hfsf2" not in (text := machine.emit_assembly(llvm.parse_assembly(code))) and "h2f" not in text


def half_to_float(bits):
    """Return a float16 as float32, by integer operations."""
    size = np.uint32(bits) & np.uint32(0x7FFF)
    sign = (np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16)
    wide = np.uint32((size << np.uint32(13)) + np.uint32(112 << 23))
    if size >= np.uint32(0x7C00):  # Inf and NaN
        wide = np.uint32(wide + np.uint32(112 << 23))
    if size < np.uint32(0x400):  # subnormal
        wide = np.float32(np.float32(size) * np.float32(2.0**-24)).view(np.uint32)
    return np.uint32(sign | wide).view(np.float32)


def float_to_half(number):
    """Return the nearest float16, ties to even, by integer operations."""
    bits = np.float32(number).view(np.uint32)
    size, sign = bits & np.uint32(0x7FFFFFFF), (bits >> np.uint32(16)) & np.uint32(0x8000)
    odd = (size >> np.uint32(13)) & np.uint32(1)
    near = np.uint32(size - np.uint32(112 << 23) + np.uint32(0xFFF) + odd) >> np.uint32(13)
    if size < np.uint32(113 << 23):  # subnormal: next to 0.5 float32 has the digits that float16 has next to 0
        tiny = np.float32(np.float32(abs(number)) + np.float32(0.5)).view(np.uint32)
        near = np.uint32(tiny - np.uint32(126 << 23))
    if size >= np.uint32(0x477FF000):  # half a step above the largest
        near = np.uint32(0x7E00) if size > np.uint32(0x7F800000) else np.uint32(0x7C00)
    return np.uint16(sign | near)


@intrinsic
def _from_half(typing_context, bits):
    def generate(context, builder, signature, arguments):
        if not has_half_conversion(*context.codegen().magic_tuple()):
            return context.compile_internal(builder, half_to_float, signature, arguments)
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _to_half(typing_context, number):
    def generate(context, builder, signature, arguments):
        if not has_half_conversion(*context.codegen().magic_tuple()):
            return context.compile_internal(builder, float_to_half, signature, arguments)
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@njit(inner=True, cache=True)
def _from_brain(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@njit(inner=True, cache=True)
def _to_brain(number):
    """Return the nearest bfloat16, ties to even."""
    bits = np.float32(number).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    return rounded if number == number else np.uint16(0x7FC0)


@njit(inner=True, cache=True)
def _round_to_odd(number):
    """Round to odd, so that a second rounding to 16 bits is correct."""
    near = np.float32(number)
    if np.float64(near) == number or not np.isfinite(near):
        return near
    bits = np.float32(near).view(np.uint32)
    if abs(np.float64(near)) > abs(number):
        bits = np.uint32(bits - np.uint32(1))
    return np.uint32(bits | np.uint32(1)).view(np.float32)


@njit(inner=True, cache=True)
def _number(address, code):
    if code == 0:
        return np.float64(carray(_pointer(address), (1,), np.float32)[0])
    if code == 1:
        return carray(_pointer(address), (1,), np.float64)[0]
    bits = carray(_pointer(address), (1,), np.uint16)[0]
    return np.float64(_from_half(bits)) if code == 2 else np.float64(_from_brain(bits))


@njit(inner=True, cache=True)
def _read(address, step, code, out, at, count):
    """Read `count` numbers from this address on into out[at : at + count]."""
    if (code == 0 and step != 4) or (code == 1 and step != 8) or (code > 1 and step != 2):
        for i in range(count):
            out[at + i] = _number(address + np.int64(i) * step, code)
    elif code == 0:
        single = carray(_pointer(address), (count,), np.float32)
        for i in range(count):
            out[at + i] = single[i]
    elif code == 1:
        double = carray(_pointer(address), (count,), np.float64)
        for i in range(count):
            out[at + i] = double[i]
    else:
        bits = carray(_pointer(address), (count,), np.uint16)
        if code == 2:
            for i in range(count):
                out[at + i] = _from_half(bits[i])
        else:
            for i in range(count):
                out[at + i] = _from_brain(bits[i])


@njit(inner=True, cache=True)
def _piece(ends, column):
    """Return the piece that holds this column."""
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if ends[middle] <= column:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _fill(rows, m, low, out):
    """Copy row m from column `low` on into `out`, and pad with zeros behind the last column."""
    ends = rows.ends
    count = max(0, min(out.size, ends[-1] - low))
    done, e = 0, _piece(ends, low)
    while done < count:
        begin = ends[e - 1] if e > 0 else 0
        n = min(ends[e] - low - done, count - done)
        step = rows.steps[m, e]
        _read(rows.pointers[m, e] + (low + done - begin) * step, step, rows.codes[m, e], out, u64(done), u64(n))
        done, e = done + n, e + 1
    for i in range(u64(count), u64(out.size)):
        out[i] = 0.0


@njit(inner=True, cache=True)
def _write(address, code, values, at, count):
    """Write values[at : at + count] to memory that begins at this address."""
    if code == 0:
        single = carray(_pointer(address), (count,), np.float32)
        for i in range(count):
            single[i] = values[at + i]
    elif code == 1:
        double = carray(_pointer(address), (count,), np.float64)
        for i in range(count):
            double[i] = values[at + i]
    else:
        bits = carray(_pointer(address), (count,), np.uint16)
        for i in range(count):
            near = _round_to_odd(values[at + i])
            bits[i] = _to_half(near) if code == 2 else _to_brain(near)


@njit(inner=True, cache=True)
def _store(rows, low, values):
    """Write these numbers to the first row from column `low` on, up to the end of the row."""
    ends = rows.ends
    done, e, count = 0, _piece(ends, low), min(values.size, ends[-1] - low)
    while done < count:
        begin = ends[e - 1] if e > 0 else 0
        n = min(ends[e] - low - done, count - done)
        step, code = rows.steps[0, e], rows.codes[0, e]
        address = rows.pointers[0, e] + (low + done - begin) * step
        if step == (4 if code == 0 else 8 if code == 1 else 2):
            _write(address, code, values, u64(done), u64(n))
        else:
            for i in range(n):
                _write(address + i * step, code, values, u64(done + i), u64(1))
        done, e = done + n, e + 1


@cache
def addresses(dtype: np.dtype) -> tuple[int, int]:
    """Return the addresses of `_fill` and `_store` for kernels that read rows as this dtype."""
    places = np.empty((1, 1), np.int64)
    table = typeof(Table(places, places, places[0], places.astype(np.uint8)))
    fill = _address_of(_fill, table, types.int64, types.int64, types.Array(from_dtype(dtype), 1, "C"))
    return fill, _address_of(_store, table, types.int64, types.Array(types.float64, 1, "C"))


def _address_of(kernel: Any, *arguments: Any) -> int:
    kernel.compile(arguments)
    compiled = kernel.overloads[arguments]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


@intrinsic
def _call(typing_context, address, arguments):
    """Call a kernel by its address: inlined into others, they would take twice as long to compile."""

    def generate(context, builder, signature, given):
        convention, kinds = context.call_conv, list(arguments)
        function = builder.inttoptr(given[0], convention.get_function_type(types.none, kinds).as_pointer())
        values = cgutils.unpack_tuple(builder, given[1])
        return convention.call_function(builder, function, types.none, kinds, values)[1]

    return types.none(address, arguments), generate


@njit(inner=True, cache=True)
def tile(rows, m, low, origin, scratch):
    """Return numbers of row m from column `low` on, about the origin, as many as the scratch holds.

    They are read in place, or copied to the scratch with zeros behind the last column. numba compiles one version with
    an origin and one without.
    """
    e, last = 0, len(rows.ends) - 1
    if last > 0:
        e = _piece(rows.ends, low)
    begin = rows.ends[e - 1] if e > 0 else 0
    size, left, step = scratch.size, rows.ends[e] - low, rows.steps[m, e]
    x = scratch
    if rows.fill == 0 or (
        step == scratch.itemsize and rows.codes[m, e] == (scratch.itemsize == 8) and (e == last or size <= left)
    ):
        x = carray(_pointer(rows.pointers[m, e] + (low - begin) * scratch.itemsize), (size,), scratch.dtype)
        if left < size:
            for i in range(u64(size)):
                scratch[i] = x[i] if i < u64(left) else 0.0
            x = scratch
    else:
        _call(rows.fill, (rows, m, low, scratch))
    if origin is None:
        return x
    else:
        # Behind the last column x is the scratch, and zero.
        for i in range(u64(min(size, origin.size - low))):
            scratch[i] = x[i] - origin[u64(low) + i]
        return scratch


@njit(inner=True, cache=True)
def _put(rows, low, values):
    """Write as many of these numbers as there are from column `low` of the first row on."""
    n, code = u64(min(values.size, rows.ends[-1] - low)), rows.codes[0, 0]
    if rows.store != 0:
        _call(rows.store, (rows, low, values))
    elif code == 0:
        single = carray(_pointer(rows.pointers[0, 0] + 4 * low), (n,), np.float32)
        for i in range(n):
            single[i] = values[i]
    else:
        double = carray(_pointer(rows.pointers[0, 0] + 8 * low), (n,), np.float64)
        for i in range(n):
            double[i] = values[i]


@njit(inner=True, cache=True, fastmath=SUMS)
def _dot(x, y):
    total = 0.0
    for i in range(u64(x.size)):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@njit(inner=True, cache=True, fastmath=SUMS)
def _square(x):
    total = 0.0
    for i in range(u64(x.size)):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


@intrinsic
def _strip_product(typing_context, x, at, weights, first):
    """Return the inner product of the strip x[at:] with the weights from `first` on, in the weights' precision.

    In LLVM's vectors, so that numbers are added in one order wherever this is inlined.
    """

    def generate(context, builder, signature, arguments):
        b, i64 = builder, ir.IntType(64)
        number, lanes = context.get_data_type(weights.dtype), 512 // weights.dtype.bitwidth

        def vector(n, index):
            data = context.make_array(signature.args[n])(context, b, arguments[n]).data
            place = b.gep(data, [b.add(arguments[n + 1], i64(index))])
            loaded = b.load(b.bitcast(place, ir.VectorType(data.type.pointee, lanes).as_pointer()), align=4)
            return loaded if data.type.pointee == number else b.fpext(loaded, ir.VectorType(number, lanes))

        sums = [b.fmul(vector(0, i), vector(2, i), flags=["contract"]) for i in range(0, 4 * lanes, lanes)]
        for n, i in enumerate(range(4 * lanes, STRIP, lanes)):
            product = b.fmul(vector(0, i), vector(2, i), flags=["contract"])
            sums[n % 4] = b.fadd(product, sums[n % 4], flags=["contract"])
        total = b.fadd(b.fadd(sums[0], sums[1]), b.fadd(sums[2], sums[3]))
        numbers = [b.extract_element(total, ir.IntType(32)(i)) for i in range(lanes)]
        numbers = [n if weights.dtype == types.float64 else b.fpext(n, ir.DoubleType()) for n in numbers]
        while len(numbers) > 1:
            numbers = [b.fadd(*numbers[i : i + 2]) for i in range(0, len(numbers), 2)]
        return numbers[0]

    return types.float64(x, types.int64, weights, types.int64), generate


@njit(cache=True, nogil=True)
def _probe_parts(rows, like, origin, weights, strips, out, first, last):
    """Compute squared norms of rows over units of columns, and the products of their strips, in one pass."""
    scratch, own, wide = np.empty(TILE, like.dtype), np.empty(TILE, like.dtype), np.empty(TILE, weights.dtype)
    width = rows.ends[-1]
    for i in range(first, last):
        m, unit = divmod(i, out.shape[1])
        total = 0.0
        for low in range(unit * UNIT, min((unit + 1) * UNIT, width), TILE):
            x = tile(rows, m, low, None, scratch)
            if origin is not None:
                for j in range(u64(TILE)):
                    number = x[j]
                    own[j] = number
                    wide[j] = number
                for j in range(u64(min(TILE, origin.size - low))):
                    about = origin[u64(low) + j]
                    own[j] -= about
                    wide[j] -= about
                for at in range(0, min(TILE, width - low), STRIP):
                    strips[m, (low + at) // STRIP] = _strip_product(wide, at, weights, at)
                total += _square(own)
            else:
                total += _square(x)
                for at in range(0, min(TILE, width - low), STRIP):
                    strips[m, (low + at) // STRIP] = _strip_product(x, at, weights, at)
        out[m, unit] = total


@njit(cache=True, nogil=True)
def add_probes(strips, across, out):
    """Add the strips' products to each row's probes; each tile has weights of its own."""
    per_tile = TILE // STRIP
    for m in range(len(strips)):
        for t in range(len(across)):
            product = 0.0
            for s in range(t * per_tile, min((t + 1) * per_tile, strips.shape[1])):
                product += strips[m, s]
            for probe in range(across.shape[1]):
                out[m, probe] += across[t, probe] * product


@njit(cache=True, nogil=True)
def _dot_parts(rows, others, like, origin, out, first, last):
    """Compute entries `first` to `last` of `out`: inner products of rows with others over units of columns."""
    left, right = np.empty(TILE, like.dtype), np.empty(TILE, like.dtype)
    width = rows.ends[-1]
    for i in range(first, last):
        m, unit = divmod(i, out.shape[1])
        other, total = others[m], 0.0
        for low in range(unit * UNIT, min((unit + 1) * UNIT, width), TILE):
            x = tile(rows, m, low, origin, left)
            total += _square(x) if other == m else _dot(x, tile(rows, other, low, origin, right))
        out[m, unit] = total


@njit(inner=True, cache=True, fastmath={"contract"})
def _axpy(weight, x, out):
    for i in range(u64(x.size)):
        out[i] += weight * np.float64(x[i])


@intrinsic
def _add_tiles(typing_context, tiles, weights, m, total, squares):
    """Add some rows' tiles to the sum, by their weights from the m-th on; write their squared norms, if wanted.

    CPUs predict the reads of a tile only after its first numbers, so each number is prefetched 4 or 8 KiB ahead: at the
    end of a tile, the next one's first numbers.
    """

    def generate(context, builder, signature, arguments):
        b, i64, wide = builder, ir.IntType(64), ir.VectorType(ir.DoubleType(), 8)

        def data(kind, array):
            return context.make_array(kind)(context, b, array).data

        def vector(array, index):
            return b.bitcast(b.gep(array, [index]), ir.VectorType(array.type.pointee, 8).as_pointer())

        out, first = data(total, arguments[3]), b.gep(data(weights, arguments[1]), [arguments[2]])
        rows = [data(tiles.dtype, b.extract_value(arguments[0], i)) for i in range(tiles.count)]
        by = [b.load(b.gep(first, [i64(i)])) for i in range(tiles.count)]
        by = [b.insert_element(ir.Constant(wide, ir.Undefined), w, i64(0)) for w in by]
        by = [b.shuffle_vector(w, w, ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)) for w in by]
        size, zero, norms = context.get_abi_sizeof(rows[0].type.pointee), ir.Constant(wide, [0.0] * 8), []
        if squares != types.none:
            norms = [cgutils.alloca_once_value(b, zero) for _ in rows]
        with cgutils.for_range_slice(b, i64(0), i64(TILE), i64(64 // size), i64) as (line, _):
            for row in rows:
                emit_prefetch(b, b.gep(row, [b.add(line, i64(PREFETCH_NUMBERS))]))
            for i in (b.add(line, i64(at)) for at in range(0, 64 // size, 8)):
                place = vector(out, i)
                added = b.load(place, align=8)
                for n, (row, w) in enumerate(zip(rows, by, strict=True)):
                    x = b.load(vector(row, i), align=size)
                    x = x if size == 8 else b.fpext(x, wide)
                    added = b.fadd(added, b.fmul(w, x, flags=["contract"]), flags=["contract"])
                    if norms:
                        square = b.fadd(b.load(norms[n]), b.fmul(x, x, flags=["contract"]), flags=["contract"])
                        b.store(square, norms[n])
                b.store(added, place, align=8)
        for n, norm in enumerate(norms):
            numbers = [b.extract_element(b.load(norm), ir.IntType(32)(i)) for i in range(8)]
            while len(numbers) > 1:
                numbers = [b.fadd(*numbers[i : i + 2]) for i in range(0, len(numbers), 2)]
            b.store(numbers[0], b.gep(data(squares, arguments[4]), [i64(n)]))
        return context.get_dummy_value()

    return types.void(tiles, weights, m, total, squares), generate


@njit(cache=True, nogil=True)
def _add_parts(sums, out):
    """Add the parts of each row's sum in their order; numba, unlike NumPy, warns of no overflow."""
    for m in range(len(out)):
        for part in range(sums.shape[1]):
            out[m] += sums[m, part]


@njit(cache=True, nogil=True)
def _add_grams(sums, out):
    """Add the sum of Gram matrices, without their padding."""
    for i in range(len(out)):
        for j in range(len(out)):
            total = 0.0
            for part in range(len(sums)):
                total += sums[part, i, j]
            out[i, j] += total


@njit(cache=True, nogil=True)
def _put_strip(rows, low, values):
    _put(rows, low, values)


@njit(cache=True, nogil=True)
def _fill_strip(rows, low, width, own, out):
    """Copy `width` columns of all rows from column `low` on, with zeros behind the last column and row."""
    M, e = len(rows.pointers), _piece(rows.ends, low)
    begin = rows.ends[e - 1] if e > 0 else 0
    lines = min(PREFETCH_LINES, width * own.itemsize // LINE_BYTES)
    for m in range(M):
        # Rows lie far from each other: without this, each would begin with a wait for memory.
        later = min(m + PREFETCH_LINES // lines, M - 1)
        address = rows.pointers[later, e] + (low - begin) * rows.steps[later, e]
        for i in range(lines):
            _prefetch(address + LINE_BYTES * i)
        x, to = tile(rows, m, low, None, own), out[m * width : (m + 1) * width]
        for i in range(u64(width)):
            to[i] = x[i]
    out[M * width :] = 0.0


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_strip(values, factors, out):
    """Add the strip's rows, times their factors, to `out`."""
    M, width = len(factors), u64(len(values) // len(factors))
    for low in range(u64(0), u64(len(out)), u64(STRIP)):
        count = min(u64(STRIP), u64(len(out)) - low)
        for m in range(u64(0), u64(M - M % 4), u64(4)):
            a, b, c, d = factors[m], factors[m + u64(1)], factors[m + u64(2)], factors[m + u64(3)]
            w = values[m * width + low : m * width + low + count]
            x = values[(m + u64(1)) * width + low : (m + u64(1)) * width + low + count]
            y = values[(m + u64(2)) * width + low : (m + u64(2)) * width + low + count]
            z = values[(m + u64(3)) * width + low : (m + u64(3)) * width + low + count]
            for i in range(count):
                out[low + i] += (a * w[i] + b * x[i]) + (c * y[i] + d * z[i])
        for m in range(u64(M - M % 4), u64(M)):
            for i in range(count):
                out[low + i] += factors[m] * values[m * width + low + i]


@njit(cache=True, nogil=True)
def _sum_part(rows, like, weights, rest, origin, out, squares, first, last):
    M = len(weights)
    scratch, total, four = np.empty((4, TILE), like.dtype), np.empty(TILE), np.empty(4)
    for t in range(first, last):
        low = t * TILE
        for i in range(u64(TILE)):
            total[i] = -0.0  # to which any number adds as itself, -0.0 too
        for m in range(0, M - 3, 4):
            a, b = tile(rows, m, low, None, scratch[0]), tile(rows, m + 1, low, None, scratch[1])
            c, d = tile(rows, m + 2, low, None, scratch[2]), tile(rows, m + 3, low, None, scratch[3])
            if squares is None:
                _add_tiles((a, b, c, d), weights, m, total, None)
            else:
                _add_tiles((a, b, c, d), weights, m, total, four)
                for i in range(4):
                    squares[m + i, t] = four[i]
        for m in range(M - M % 4, M):
            _axpy(weights[m], tile(rows, m, low, None, scratch[0]), total)
            if squares is not None:
                squares[m, t] = _square(tile(rows, m, low, None, scratch[0]))
        if origin is not None and rest != 0.0:
            _axpy(rest, origin[low : low + TILE], total)
        if origin is not None and squares is not None:
            for m in range(M):  # once more, from the cache
                squares[m, t] = _square(tile(rows, m, low, origin, scratch[0]))
        _put(out, low, total)


@njit(inner=True, cache=True, fastmath=SUMS)
def _square_of_products(x, y, out, i, j):
    """Add the 4 x 4 inner products of two groups of four rows of the strip."""
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = 0.0
    a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = 0.0
    for t in range(u64(STRIP)):
        x0, x1, x2, x3 = x[0, t], x[1, t], x[2, t], x[3, t]
        y0, y1, y2, y3 = y[0, t], y[1, t], y[2, t], y[3, t]
        a00, a01, a02, a03 = a00 + x0 * y0, a01 + x0 * y1, a02 + x0 * y2, a03 + x0 * y3
        a10, a11, a12, a13 = a10 + x1 * y0, a11 + x1 * y1, a12 + x1 * y2, a13 + x1 * y3
        a20, a21, a22, a23 = a20 + x2 * y0, a21 + x2 * y1, a22 + x2 * y2, a23 + x2 * y3
        a30, a31, a32, a33 = a30 + x3 * y0, a31 + x3 * y1, a32 + x3 * y2, a33 + x3 * y3
    for r, row in enumerate(((a00, a01, a02, a03), (a10, a11, a12, a13), (a20, a21, a22, a23), (a30, a31, a32, a33))):
        for c in range(SIDE):
            out[i + r, j + c] += row[c]


@njit(inner=True, cache=True)
def _gather(rows, first, last, low, origin, own, to):
    """Copy a strip of these rows to float64, about the origin: in float32 a far one would leave few digits.

    All rows in one call: numba counts references to the arrays of `rows` per call, which took longer than copying.
    """
    ends, pointers, steps = rows.ends, rows.pointers, rows.steps
    e = _piece(ends, low)
    begin = ends[e - 1] if e > 0 else 0
    in_place = rows.fill == 0 and low + STRIP <= ends[e]
    for m in range(first, last):
        step, line = steps[m, e], to[m - first]
        address = pointers[m, e] + (low - begin) * step
        after = address + STRIP * step  # the next strip, which comes after all other rows'
        for i in range(0, STRIP * min(step, 8), LINE_BYTES):
            _prefetch(after + i)
        if in_place:
            x = carray(_pointer(address), (STRIP,), own.dtype)
            for i in range(u64(STRIP)):
                line[i] = x[i]
        else:
            x = tile(rows, m, low, None, own)
            for i in range(u64(STRIP)):
                line[i] = x[i]
        if origin is not None:
            for i in range(u64(min(STRIP, origin.size - low))):
                line[i] -= origin[u64(low) + i]


@njit(cache=True, nogil=True)
def _gram(rows, own, origin, first, last, out, weights, products):
    """Add the inner products over these strips; SIDE rows at a time, so the last ones of `out` may be padding."""
    M, padded = len(rows.pointers), len(out)
    strip = np.zeros((padded, STRIP))
    flat = strip.reshape(-1)
    for s in range(first, last):
        _gather(rows, 0, M, s * STRIP, origin, own, strip)
        for m in range(len(products)):
            products[m, s] = _strip_product(flat, m * STRIP, weights, s * STRIP % TILE)
        for i in range(0, padded, SIDE):
            for j in range(0, i + 1, SIDE):
                _square_of_products(strip[i : i + SIDE], strip[j : j + SIDE], out, i, j)
    for i in range(padded):
        for j in range(i):
            out[j, i] = out[i, j]


@njit(cache=True, nogil=True)
def _gram_stripe(rows, own, origin, first, last, top, bottom, out, weights, products):
    """Add the inner products of rows `top` to `bottom` with all rows up to `bottom`, over columns `first` to `last`."""
    side = bottom - top
    mine, others = np.zeros((STRIPE_ROWS, STRIP)), np.zeros((STRIPE_ROWS, STRIP))
    flat = mine.reshape(-1)
    for low in range(first, last, STRIP):
        _gather(rows, top, bottom, low, origin, own, mine)
        for m in range(top, min(bottom, len(products))):
            products[m, low // STRIP] = _strip_product(flat, (m - top) * STRIP, weights, low % TILE)
        for left in range(0, top, STRIPE_ROWS):
            _gather(rows, left, left + STRIPE_ROWS, low, origin, own, others)
            for few in range(0, STRIPE_ROWS, CACHED_ROWS):
                for i in range(0, side, SIDE):
                    for j in range(few, few + CACHED_ROWS, SIDE):
                        _square_of_products(mine[i : i + SIDE], others[j : j + SIDE], out, i, left + j)
        for i in range(0, side, SIDE):
            for j in range(0, i + 1, SIDE):
                _square_of_products(mine[i : i + SIDE], mine[j : j + SIDE], out, i, top + j)
    for i in range(side):
        for j in range(i):
            out[j, top + i] = out[i, top + j]


MIN_FLOAT32_SQUARE = 1e-27  # of a block: below it, some of its float32 squares may have underflowed
UNROLLED = (8, 16, 32, 64)  # numbers of sub-blocks
PAD_CELLS = 16  # behind each sub-block's own, so that no vector wraps; they are folded now and then


@cache
def rotation_of(k: int, mixing: int) -> Any:
    """Return the kernel that adds units of blocks to clients' sketches and computes their squared norms."""
    n, L = mixing, k // mixing

    @njit(cache=True, nogil=True)
    def rotate(rows, unit, like, origin, words, out, norms, first, last):
        scratch, cells = np.empty(k, like.dtype), np.zeros(n * (L + PAD_CELLS), like.dtype)
        for i in range(first, last):
            part, m = divmod(i, len(norms))  # a part's words, and its origin, stay in cache for all rows
            begin, end, norm = unit * part, min(unit * (part + 1), len(words)), 0.0
            for block in range(begin, end):
                row = tile(rows, m, block * k, None, scratch)
                about, low = origin, block * k
                if origin is not None and low + k > origin.size:  # the last block too is read whole
                    last_one = np.zeros(k, origin.dtype)
                    last_one[: origin.size - low] = origin[low:]
                    about, low = last_one, 0
                square: float = _add_block(row, about, low, words[block], n, L, cells)
                if square < MIN_FLOAT32_SQUARE and like.itemsize == 4:
                    square = _square(tile(rows, m, block * k, origin, scratch))
                norm += square
                if block + 1 == end or (block + 1 - begin) % FOLD == 0:
                    _fold(cells, u64(n), u64(L), out[m, part])
            norms[m, part] = norm

    return rotate


@njit(inner=True, cache=True)
def _fold(cells, n, L, out):
    """Add the cells to the sketch and clear them: one addition per number, whatever the width of blocks."""
    scale = 1.0 / np.sqrt(n)
    padded = min(u64(PAD_CELLS), L)
    for c in range(n):
        to, at = c * L, c * (L + u64(PAD_CELLS))
        for i in range(padded):
            total = np.float64(cells[at + i])
            for j in range(i, u64(PAD_CELLS), L):
                total += np.float64(cells[at + L + j])
            out[to + i] += scale * total
        for i in range(padded, L):
            out[to + i] += scale * np.float64(cells[at + i])
    for i in range(u64(cells.size)):
        cells[i] = 0.0


@njit(inner=True, cache=True)
def _signed(x, word, bit):
    return -x if (word >> np.uint32(bit)) & np.uint32(1) else x


def _add_block_plainly(row, origin, low, words, n, L, cells):
    """Swap lanes, sign, mix by butterflies in place, sign again and add rotated; return the block's squared norm."""
    n, L = u64(n), u64(L)
    x, planes = np.empty(row.size, row.dtype), (u64(2) * n + u64(31)) // u64(32)
    for c in range(n):
        swap = u64(words[planes * L + c]) % min(L, u64(2**32) // L)
        for i in range(L):
            x[c * L + i] = row[c * L + (i ^ swap)]
        if origin is not None:
            for i in range(L):
                x[c * L + i] -= origin[u64(low) + c * L + (i ^ swap)]
    norm = _square(x)
    for c in range(n):
        for i in range(L):
            x[c * L + i] = _signed(x[c * L + i], words[(c >> u64(5)) * L + i], c & u64(31))
    h = L
    while h < u64(x.size):
        for at in range(u64(0), u64(x.size), u64(2) * h):
            for i in range(at, at + h):
                a, b = x[i], x[i + h]
                x[i], x[i + h] = a + b, a - b
        h *= u64(2)
    for c in range(n):
        offset, plane = u64(words[planes * L + c]) // (u64(2**32) // L), ((n + c) >> u64(5)) * L
        at, bit = c * (L + u64(PAD_CELLS)) + offset, (n + c) & u64(31)
        for i in range(L - offset):
            cells[at + i] += _signed(x[c * L + i], words[plane + i], bit)
        for i in range(L - offset, L):
            cells[at + i - L] += _signed(x[c * L + i], words[plane + i], bit)
    return norm


@intrinsic(prefer_literal=True)
def _add_block(typing_context, row, origin, low, words, n, L, cells):
    """Add a block to the cells, and return its squared norm about the origin.

    For most numbers of sub-blocks in vectors, unrolled: half of the butterfly stages on the way in, half on the way
    out. CPUs predict neither loads that are so far apart nor those of swapped lanes: the next block is prefetched line
    by line, in the order of addresses, a few lines between two stores; more at once would wait for each other.
    """
    signature, L = types.float64(row, origin, low, words, n, L, cells), L.literal_value

    def generate(context, builder, signature, arguments):
        N = n.literal_value
        if N not in UNROLLED:
            return context.compile_internal(builder, _add_block_plainly, signature, arguments)
        b, i32, i64 = builder, ir.IntType(32), ir.IntType(64)
        real = context.get_data_type(row.dtype)
        size = context.get_abi_sizeof(real)
        features = context.codegen().magic_tuple()[2]
        V = min(L, (64 if "+avx512f" in features else 32) // size)
        vector, bits = ir.VectorType(real, V), ir.VectorType(ir.IntType(8 * size), V)

        def splat(number):
            return ir.Constant(bits, [number] * V)

        def data(i):
            return context.make_array(signature.args[i])(context, b, arguments[i]).data

        def at(array, index, kind):
            return b.bitcast(b.gep(array, [index]), kind.as_pointer())

        def load(array, index):
            kind = array.type.pointee
            return b.load(at(array, index, ir.VectorType(kind, V)), align=context.get_abi_sizeof(kind))

        def signs_of(lane):
            """Return the words of V lanes: a bit for each of their signs."""
            planes = [load(w, b.add(lane, i64(plane * L))) for plane in range(reference.sign_planes(N))]
            return planes if size == 4 else [b.zext(word, bits) for word in planes]

        def signed(v, signs, i):
            sign = b.and_(b.shl(signs[i // 32], splat(8 * size - 1 - i % 32)), splat(1 << 8 * size - 1))
            return b.bitcast(b.xor(b.bitcast(v, bits), sign), vector)

        def ahead(array, count, lane):
            """Return the cache lines of a lane's share of a block's numbers: of the lane L + V later."""
            first = b.udiv(b.mul(b.add(lane, i64(L + V)), i64(count)), i64(L))
            per_line = LINE_BYTES // context.get_abi_sizeof(array.type.pointee)
            return [b.gep(array, [b.add(first, i64(i))]) for i in range(0, count * V // L, per_line)]

        def mixed(v):
            h = len(v) // 2
            while h:
                v = [b.fsub(v[i - h], a) if i & h else b.fadd(a, v[i + h]) for i, a in enumerate(v)]
                h //= 2
            return v

        def at_drawn(c):
            return b.gep(w, [i64(reference.sign_planes(N) * L + c)])

        def drawn(c):
            return b.zext(b.load(at_drawn(c)), i64)

        def centred(x, index):
            if origin == types.none:
                return load(x, index)
            about = b.gep(data(1), [arguments[2]])
            wide = ir.VectorType(max(real, about.type.pointee, key=context.get_abi_sizeof), V)
            x, about = (v if v.type == wide else b.fpext(v, wide) for v in (load(x, index), load(about, index)))
            return b.fsub(x, about) if wide == vector else b.fptrunc(b.fsub(x, about), vector)

        x, w, to = data(0), data(3), data(6)
        squares = cgutils.alloca_once_value(b, ir.Constant(vector, [0.0] * V))
        swapped = swapping(b, features, vector)
        with cgutils.for_range_slice(b, i64(0), i64(L), i64(V), i64) as (lane, _):
            later = ahead(x, N * L, lane) + ahead(w, reference.rotation_words(N * L, N), lane)
            if origin != types.none:
                later += ahead(b.gep(data(1), [arguments[2]]), N * L, lane)
            signs, half, few = signs_of(lane), [None] * N, 1 << (N.bit_length() - 1) // 2
            for rows in (range(q, N, few) for q in range(few)):
                v = []
                for c in rows:
                    jump = b.and_(drawn(c), i64((L - 1) & -V))
                    v.append(swapped(centred(x, b.add(b.xor(lane, jump), i64(c * L))), b.load(at_drawn(c))))
                square = b.fmul(v[0], v[0])
                for a in v[1:]:
                    square = b.fadd(square, b.fmul(a, a, flags=["contract"]), flags=["contract"])
                b.store(b.fadd(b.load(squares), square), squares)
                for c, a in zip(rows, mixed([signed(a, signs, c) for c, a in zip(rows, v, strict=True)]), strict=True):
                    half[c] = a
            for rows in (range(q, q + few) for q in range(0, N, few)):
                for c, a in zip(rows, mixed([half[c] for c in rows]), strict=True):
                    for line in later[c::N]:
                        emit_prefetch(b, line)
                    offset = b.lshr(drawn(c), i64(33 - L.bit_length()))
                    cell = b.add(b.and_(b.add(offset, lane), i64(L - 1)), i64(c * (L + PAD_CELLS)))
                    place = at(to, cell, vector)
                    b.store(b.fadd(b.load(place, align=size), signed(a, signs, N + c)), place, align=size)
        total, squares = ir.Constant(ir.DoubleType(), 0.0), b.load(squares)
        for i in range(V):
            square = b.extract_element(squares, i32(i))
            total = b.fadd(total, square if size == 8 else b.fpext(square, total.type))
        return total

    return signature, generate


def swapping(b, features, vector):
    """Return a function of a vector and a word, whose lowest bits are s: it moves lane l of the vector to l XOR s."""
    i32, V, size = ir.IntType(32), vector.count, 8 if isinstance(vector.element, ir.DoubleType) else 4
    wide = V * size == 64 and "+avx512f" in features

    def by_bits(v, word):
        """Swap lanes in log2(V) steps, on any CPU."""
        for j in range(V.bit_length() - 1):
            odd = b.trunc(b.lshr(word, i32(j)), ir.IntType(1))
            neighbours = ir.Constant(ir.VectorType(i32, V), [i ^ 1 << j for i in range(V)])
            v = b.select(odd, b.shuffle_vector(v, v, neighbours), v)
        return v

    def by_instruction(v, word):
        """Permute by the lowest bits of each place; AVX2 can do that with numbers of 32 bits only."""
        part = ir.IntType(8 * size) if wide else i32
        places = ir.VectorType(part, V if wide else 8)
        moved = vector if wide else ir.VectorType(ir.FloatType(), 8)
        kind = ("sf" if size == 4 else "df") + ".512"
        name = f"llvm.x86.avx512.permvar.{kind}" if wide else "llvm.x86.avx2.permps"
        word = b.zext(word, part) if part.width == 64 else b.mul(word, i32(places.count // V))
        one = b.insert_element(ir.Constant(places, ir.Undefined), word, i32(0))
        alike = b.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, places.count), [0] * places.count))
        function = b.module.declare_intrinsic(name, (), ir.FunctionType(moved, [moved, places]))
        v = b.call(function, [b.bitcast(v, moved), b.xor(alike, ir.Constant(places, list(range(places.count))))])
        return b.bitcast(v, vector)

    return by_instruction if wide or (V * size == 32 and "+avx2" in features) else by_bits
