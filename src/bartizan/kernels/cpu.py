"""Kernels for host memory in numba, on all cores; `reference` defines what each of them computes.

Rows are read in place, a tile at a time; a tile that spans several arrays, or is of another format, is copied
to cache. Sums of float64 rows are float64; the mixing of narrower ones is float32, and a block's sketches are
then added up in float64. Loops run over flat buffers with unsigned indices: numba then emits no wrap-around checks and
LLVM vectorises them. All are in one file because numba's cache checks only the file that a kernel is in, not what it
calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from bartizan._util.jit import carray, cgutils, from_dtype, intrinsic, ir, llvm, njit, typeof, types, u64
from bartizan._util.threads import n_threads, share
from bartizan._util.types import Array, Floats
from bartizan.kernels import compiling, reference
from bartizan.kernels import random_matrices as dense
from bartizan.kernels.rows import FOLD, UNIT, Rows, Table, unit_of

compiling.register()

# Reordering sums is all we allow: NaN and Inf must come through.
SUMS = {"reassoc", "contract", "nsz"}
# Numbers below which waking a second thread costs more than it saves.
SMALL = 2**17
TILE = 4096
STRIP = 256
SIDE = 4
STRIPE = 128  # rows whose products with others are summed in cache
FEW = 16  # rows of a stripe that stay in the first cache
MANY = 256  # rows from which on that is worth it
BAND = 256  # strips of rows that are walked together
PART, FEWEST, MOST = 32, 4, 64  # strips of a part of few rows; how many parts there are at least and at most


# A client may send the largest numbers there are: its norm quarantines it, without NumPy's warnings.
IGNORE_OVERFLOW = np.errstate(over="ignore", invalid="ignore")


@IGNORE_OVERFLOW
def gram(rows: Rows, origin: Array | None, out: Floats) -> None:
    if len(rows) > MANY:
        return _gram_of_many(rows, origin, out)
    threads, about = _threads(rows), _only_read(origin)
    n_strips = -(-rows.width // STRIP)
    # Rows are cut alike for any number of threads, so that their products are the same to the bit.
    parts = max(FEWEST, min(MOST, n_strips // PART)) if rows.width * len(rows) >= SMALL else 1
    sums = np.zeros((parts, *[len(rows) + -len(rows) % SIDE] * 2))

    def task(part: int) -> None:
        first, last = n_strips * part // parts, n_strips * (part + 1) // parts
        _gram(rows.table, np.empty(STRIP, rows.dtype), about, first, last, sums[part])

    share(task, parts, threads)
    out += sums.sum(axis=0)[: len(rows), : len(rows)]


def _gram_of_many(rows: Rows, origin: Array | None, out: Floats) -> None:
    """A stripe of rows with all before them is one task: of so many rows a strip is larger than the caches.

    Rows are read once a stripe. Long ones are walked a band at a time, so that a band comes from memory or disk once.
    """
    about, n_stripes, band = _only_read(origin), -(-len(rows) // STRIPE), STRIP * BAND

    @IGNORE_OVERFLOW
    def add(low: int, i: int) -> None:
        top = STRIPE * (n_stripes - 1 - i)  # the last ones are the longest
        high, bottom = min(low + band, rows.width), min(top + STRIPE, len(rows))
        sums = np.zeros((STRIPE, top + STRIPE))
        _gram_stripe(rows.table, np.empty(STRIP, rows.dtype), about, low, high, top, bottom, sums)
        sums = sums[: bottom - top, :bottom]
        out[top:bottom, :bottom] += sums
        out[:top, top:bottom] += sums[:, :top].T

    for low in range(0, rows.width, band):
        share(partial(add, low), n_stripes, _threads(rows))


def squared_norms(rows: Rows, origin: Array | None, out: Floats) -> None:
    _dots(rows, range(len(rows)), origin, out)


def dots(rows: Rows, origin: Array | None, out: Floats) -> None:
    _dots(rows, [len(rows) - 1] * len(rows), origin, out)


@IGNORE_OVERFLOW
def _dots(rows: Rows, others: Sequence[int], origin: Array | None, out: Floats) -> None:
    threads, about = _threads(rows), _only_read(origin)
    n_tiles = -(-rows.width // TILE)
    unit = UNIT // TILE
    parts = -(-n_tiles // unit)
    sums, like = np.empty((len(rows), parts)), np.empty(0, rows.dtype)

    def task(i: int) -> None:
        m, part = divmod(i, parts)
        first, last = unit * part, min(unit * (part + 1), n_tiles)
        sums[m, part] = _dot_part(rows.table, m, others[m], first, last, like, about)

    share(task, len(rows) * parts, threads)
    for part in range(parts):
        out += sums[:, part]


def weighted_sum(rows: Rows, weights: Floats, rest: float, origin: Array | None, out: Rows) -> None:
    threads, about = _threads(rows), _only_read(origin)
    n_tiles, like = -(-rows.width // TILE), np.empty(0, rows.dtype)
    parts = max(1, min(n_tiles, 8 * threads)) if threads > 1 else 1  # so that all threads are busy to the end

    def task(part: int) -> None:
        first, last = n_tiles * part // parts, n_tiles * (part + 1) // parts
        _sum_part(rows.table, first, last, like, weights, rest, about, out.table)

    share(task, parts, threads)


def copied(rows: Rows, out: Array) -> None:
    share(lambda m: _fill(rows.table, m, 0, out[m]), len(rows), _threads(rows))


@IGNORE_OVERFLOW
def rotated(rows: Rows, origin: Array | None, start: int, key: Array, mixing: int, out: Floats, norms: Floats) -> None:
    threads, k = _threads(rows), out.shape[1]
    about, like = _only_read(origin), np.empty(0, rows.dtype)
    words = rotation_words(key, start // k, -(-rows.width // k), k, mixing)
    unit = unit_of(k) // k
    parts = -(-len(words) // unit)
    at_once = parts == 1 and unit == FOLD  # one fold, or a sum of several
    sums, squares = np.zeros((0 if at_once else len(rows), parts, k)), np.empty((len(rows), parts))
    rotate = rotation_of(k, mixing)

    def task(i: int) -> None:
        m, part = divmod(i, parts)
        first, last = unit * part, min(unit * (part + 1), len(words))
        into = out[m] if at_once else sums[m, part]
        squares[m, part] = rotate(rows.table, m, first, last, like, about, words, into)

    share(task, len(rows) * parts, threads)
    for part in range(parts):
        if not at_once:
            out += sums[:, part]
        norms += squares[:, part]


def rotation_words(key: Array, block: int, n_blocks: int, k: int, mixing: int) -> Array:
    """The random words of these blocks, (n_blocks, words a block)."""
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
    """The block turned on its side, (w, M): the dense sketches add one coordinate of all clients at a time."""
    return np.ascontiguousarray(reference.centred(rows, origin).T)


def _threads(rows: Rows) -> int:
    return n_threads() if rows.width * len(rows) >= SMALL else 1


def _only_read(origin: Array | None) -> Array | None:
    """The origin as numba sees it: of one type, whether or not its owner may write to it."""
    if origin is not None:
        origin = origin.view()
        origin.flags.writeable = False
    return origin


@intrinsic
def _pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@cache
def has_half_conversion(triple: str, cpu: str, features: str) -> bool:
    """Whether LLVM has an instruction of this target for float16, or would call a function that need not be there."""
    code = "define float @f(half %x) {\n %y = fpext half %x to float\n ret float %y\n}"
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    return "hfsf2" not in (text := machine.emit_assembly(llvm.parse_assembly(code))) and "h2f" not in text


def half_to_float(bits):
    """A float16 as float32, by integer operations."""
    size = np.uint32(bits) & np.uint32(0x7FFF)
    sign = (np.uint32(bits) & np.uint32(0x8000)) << np.uint32(16)
    wide = np.uint32((size << np.uint32(13)) + np.uint32(112 << 23))
    if size >= np.uint32(0x7C00):  # Inf and NaN
        wide = np.uint32(wide + np.uint32(112 << 23))
    if size < np.uint32(0x400):  # subnormal
        wide = np.float32(np.float32(size) * np.float32(2.0**-24)).view(np.uint32)
    return np.uint32(sign | wide).view(np.float32)


def float_to_half(number):
    """The nearest float16, ties to even, by integer operations."""
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
    """The nearest bfloat16, ties to even."""
    bits = np.float32(number).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    return rounded if number == number else np.uint16(0x7FC0)


@njit(inner=True, cache=True)
def _odd(number):
    """A float32 next to this float64, its last bit set if it is not the same: to be rounded once more as if at once."""
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
    """out[at : at + count] = the numbers from this address on."""
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
    """The piece that holds this column."""
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
    """Put the numbers of row m from column `low` on together, with zeros behind the last column."""
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
    """The numbers from this address on = values[at : at + count]."""
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
            near = _odd(values[at + i])
            bits[i] = _to_half(near) if code == 2 else _to_brain(near)


@njit(inner=True, cache=True)
def _store(rows, low, values):
    """Write as many of these numbers as there are columns from column `low` of the first row on."""
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
    """Where `_fill` and `_store` are, for kernels that read rows as this dtype."""
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
    """As many numbers of row m as the scratch holds, from column `low` on and about the origin: in place, or put
    together there with zeros behind the last column. numba compiles one version with an origin and one without.
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


@njit(cache=True, nogil=True)
def _dot_part(rows, m, other, first, last, like, origin):
    """The inner product of two rows over these tiles."""
    total = 0.0
    left, right = np.empty(TILE, like.dtype), np.empty(TILE, like.dtype)
    for t in range(first, last):
        x = tile(rows, m, t * TILE, origin, left)
        total += _square(x) if other == m else _dot(x, tile(rows, other, t * TILE, origin, right))
    return total


@njit(inner=True, cache=True, fastmath={"contract"})
def _axpy(weight, x, out):
    for i in range(u64(x.size)):
        out[i] += weight * np.float64(x[i])


@njit(inner=True, cache=True, fastmath={"contract"})
def _axpy2(v, x, w, y, out):
    for i in range(u64(out.size)):
        out[i] = out[i] + v * np.float64(x[i]) + w * np.float64(y[i])


@njit(cache=True, nogil=True)
def _sum_part(rows, first, last, like, weights, rest, origin, out):
    M = len(weights)
    one, two, total = np.empty(TILE, like.dtype), np.empty(TILE, like.dtype), np.empty(TILE)
    for t in range(first, last):
        low = t * TILE
        for i in range(u64(TILE)):
            total[i] = -0.0  # to which any number adds as itself, -0.0 too
        for m in range(0, M - 1, 2):
            _axpy2(weights[m], tile(rows, m, low, None, one), weights[m + 1], tile(rows, m + 1, low, None, two), total)
        if M % 2:
            _axpy(weights[M - 1], tile(rows, M - 1, low, None, one), total)
        if origin is not None and rest != 0.0:
            _axpy(rest, origin[low : low + TILE], total)
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


@njit(inner=True, cache=True, forceinline=True)
def _gather(rows, m, low, origin, own, to):
    """A strip of row m in float64, about the origin: in float32 a far one would leave few digits of small numbers."""
    x = tile(rows, m, low, None, own)
    for i in range(u64(STRIP)):
        to[i] = x[i]
    if origin is not None:
        for i in range(u64(min(STRIP, origin.size - low))):
            to[i] -= origin[u64(low) + i]


@njit(cache=True, nogil=True)
def _gram(rows, own, origin, first, last, out):
    """Add the inner products over these strips; SIDE rows at a time, so the last ones of `out` may be padding."""
    M, padded = len(rows.pointers), len(out)
    strip = np.zeros((padded, STRIP))
    for s in range(first, last):
        for m in range(M):
            _gather(rows, m, s * STRIP, origin, own, strip[m])
        for i in range(0, padded, SIDE):
            for j in range(0, i + 1, SIDE):
                _square_of_products(strip[i : i + SIDE], strip[j : j + SIDE], out, i, j)
    for i in range(padded):
        for j in range(i):
            out[j, i] = out[i, j]


@njit(cache=True, nogil=True)
def _gram_stripe(rows, own, origin, first, last, top, bottom, out):
    """The inner products of rows `top` to `bottom` with these and all before them, over columns `first` to `last`."""
    side = bottom - top
    mine, others = np.zeros((STRIPE, STRIP)), np.zeros((STRIPE, STRIP))
    for low in range(first, last, STRIP):
        for m in range(top, bottom):
            _gather(rows, m, low, origin, own, mine[m - top])
        for left in range(0, top, STRIPE):
            for m in range(left, left + STRIPE):
                _gather(rows, m, low, origin, own, others[m - left])
            for few in range(0, STRIPE, FEW):
                for i in range(0, side, SIDE):
                    for j in range(few, few + FEW, SIDE):
                        _square_of_products(mine[i : i + SIDE], others[j : j + SIDE], out, i, left + j)
        for i in range(0, side, SIDE):
            for j in range(0, i + 1, SIDE):
                _square_of_products(mine[i : i + SIDE], mine[j : j + SIDE], out, i, top + j)
    for i in range(side):
        for j in range(i):
            out[j, top + i] = out[i, top + j]


LANES = 128  # mixed at a time, at most
GROUP = 16  # blocks whose float32 squares are summed before they are widened
FAINT = 1e-27  # a group's sum of squares below which float32 may have lost some of them
ONE = np.uint32(1)


@njit(inner=True, cache=True)
def _signed(x, word, bit):
    return -x if (word >> bit) & ONE else x


@njit(inner=True, cache=True)
def _summed(squares, rows, m, first, last, scratch, origin):
    """The sum of a group's squares, which are cleared; taken anew in float64 where float32 has lost some."""
    total = 0.0
    for i in range(u64(squares.size)):
        total += np.float64(squares[i])
        squares[i] = 0.0
    if total < FAINT and squares.itemsize == 4:
        total = 0.0
        for b in range(first, last):
            total += _square(tile(rows, m, b * scratch.size, origin, scratch))
    return total


@njit(inner=True, cache=True)
def _folded(cells, n, L, out):
    """Add the cells to the sketch, and clear them."""
    scale = 1.0 / np.sqrt(n)
    for c in range(n):
        to, at = c * L, u64(2) * c * L
        for i in range(L):
            out[to + i] += scale * (np.float64(cells[at + i]) + np.float64(cells[at + L + i]))
    for i in range(u64(cells.size)):
        cells[i] = 0.0


@cache
def rotation_of(k: int, mixing: int) -> Any:
    """The kernel that adds what some blocks contribute to one client's sketch, and gives their squared norm.

    Made for one k: with strides that the compiler knows it need not check at run time whether arrays overlap. Each
    sub-block has 2L cells, so that no rotation wraps; they are folded now and then.
    """
    L = k // mixing
    return (
        _rotation_of_32(u64(L), u64(min(L, LANES)))
        if mixing == 32
        else _rotation_of_any(u64(mixing), u64(L), u64(min(L, LANES)))
    )


def _rotation_of_32(L: Any, H: Any) -> Any:
    """32 sub-blocks: three of five butterfly stages on the way in, eight at a time, and two on the way out."""

    @njit(cache=True, nogil=True, fastmath={"contract"})
    def rotate(rows, m, first, last, like, origin, words, out):
        scratch, x = np.empty(out.size, like.dtype), np.empty(u64(32) * H, like.dtype)
        cells, squares = np.zeros(u64(2) * u64(32) * L, like.dtype), np.zeros(H, like.dtype)
        norm, since = 0.0, first
        for block in range(first, last):
            w = words[block]
            row = tile(rows, m, block * out.size, origin, scratch)
            for lane in range(u64(0), L, H):
                for c in range(u64(4)):
                    at, step, to, hop = c * L + lane, u64(4) * L, c * H, u64(4) * H
                    bit = np.uint32(c)
                    for i in range(H):
                        word = w[lane + i] >> bit
                        a0 = row[at + i]
                        a1 = row[at + step + i]
                        a2 = row[at + u64(2) * step + i]
                        a3 = row[at + u64(3) * step + i]
                        a4 = row[at + u64(4) * step + i]
                        a5 = row[at + u64(5) * step + i]
                        a6 = row[at + u64(6) * step + i]
                        a7 = row[at + u64(7) * step + i]
                        squares[i] += ((a0 * a0 + a1 * a1) + (a2 * a2 + a3 * a3)) + (
                            (a4 * a4 + a5 * a5) + (a6 * a6 + a7 * a7)
                        )
                        a0 = _signed(a0, word, np.uint32(0))
                        a1 = _signed(a1, word, np.uint32(4))
                        a2 = _signed(a2, word, np.uint32(8))
                        a3 = _signed(a3, word, np.uint32(12))
                        a4 = _signed(a4, word, np.uint32(16))
                        a5 = _signed(a5, word, np.uint32(20))
                        a6 = _signed(a6, word, np.uint32(24))
                        a7 = _signed(a7, word, np.uint32(28))
                        b0, b1, b2, b3 = a0 + a4, a1 + a5, a2 + a6, a3 + a7
                        b4, b5, b6, b7 = a0 - a4, a1 - a5, a2 - a6, a3 - a7
                        a0, a1, a2, a3 = b0 + b2, b1 + b3, b0 - b2, b1 - b3
                        a4, a5, a6, a7 = b4 + b6, b5 + b7, b4 - b6, b5 - b7
                        x[to + i] = a0 + a1
                        x[to + hop + i] = a0 - a1
                        x[to + u64(2) * hop + i] = a2 + a3
                        x[to + u64(3) * hop + i] = a2 - a3
                        x[to + u64(4) * hop + i] = a4 + a5
                        x[to + u64(5) * hop + i] = a4 - a5
                        x[to + u64(6) * hop + i] = a6 + a7
                        x[to + u64(7) * hop + i] = a6 - a7
                for c in range(u64(0), u64(32), u64(4)):
                    at, c1, c2, c3 = c * H, c + u64(1), c + u64(2), c + u64(3)
                    to0 = u64(2) * c * L + u64(w[u64(2) * L + c]) % L + lane
                    to1 = u64(2) * c1 * L + u64(w[u64(2) * L + c1]) % L + lane
                    to2 = u64(2) * c2 * L + u64(w[u64(2) * L + c2]) % L + lane
                    to3 = u64(2) * c3 * L + u64(w[u64(2) * L + c3]) % L + lane
                    bit = np.uint32(c)
                    for i in range(H):
                        word = w[L + lane + i] >> bit
                        a0, a1, a2, a3 = x[at + i], x[at + H + i], x[at + u64(2) * H + i], x[at + u64(3) * H + i]
                        b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
                        cells[to0 + i] += _signed(b0 + b1, word, np.uint32(0))
                        cells[to1 + i] += _signed(b0 - b1, word, np.uint32(1))
                        cells[to2 + i] += _signed(b2 + b3, word, np.uint32(2))
                        cells[to3 + i] += _signed(b2 - b3, word, np.uint32(3))
            if block + 1 == last or block + 1 - since == GROUP:
                norm += _summed(squares, rows, m, since, block + 1, scratch, origin)
                since = block + 1
            if block + 1 == last or (block + 1 - first) % FOLD == 0:
                _folded(cells, u64(32), L, out)
        return norm

    return rotate


def _rotation_of_any(n: Any, L: Any, H: Any) -> Any:
    """Any power of two of sub-blocks: signs, all butterfly stages in place, signs again, and the rotated addition."""
    planes = u64(reference.sign_planes(int(n)))

    @njit(cache=True, nogil=True, fastmath={"contract"})
    def rotate(rows, m, first, last, like, origin, words, out):
        scratch, x = np.empty(out.size, like.dtype), np.empty(n * H, like.dtype)
        cells, squares = np.zeros(u64(2) * n * L, like.dtype), np.zeros(H, like.dtype)
        norm, since = 0.0, first
        for block in range(first, last):
            w = words[block]
            row = tile(rows, m, block * out.size, origin, scratch)
            for lane in range(u64(0), L, H):
                for c in range(n):
                    at, to, bit = c * L + lane, c * H, np.uint32(c & u64(31))
                    plane = (c >> u64(5)) * L
                    for i in range(H):
                        a = row[at + i]
                        squares[i] += a * a
                        x[to + i] = _signed(a, w[plane + lane + i], bit)
                h = H
                while h < n * H:
                    for at in range(u64(0), n * H, u64(2) * h):
                        for i in range(at, at + h):
                            a, b = x[i], x[i + h]
                            x[i], x[i + h] = a + b, a - b
                    h *= u64(2)
                for c in range(n):
                    at, to = c * H, u64(2) * c * L + u64(w[planes * L + c]) % L + lane
                    plane, bit = ((n + c) >> u64(5)) * L, np.uint32((n + c) & u64(31))
                    for i in range(H):
                        cells[to + i] += _signed(x[at + i], w[plane + lane + i], bit)
            if block + 1 == last or block + 1 - since == GROUP:
                norm += _summed(squares, rows, m, since, block + 1, scratch, origin)
                since = block + 1
            if block + 1 == last or (block + 1 - first) % FOLD == 0:
                _folded(cells, n, L, out)
        return norm

    return rotate
