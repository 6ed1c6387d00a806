"""Order statistics of columns in numba: a strip of columns is sorted by a network, and the wanted ranks are averaged.

A strip is a flat buffer of M rows of `width` numbers. Comparators run over a tile of columns at a time, a vector of
minima and a vector of maxima, so that its rows stay in cache. With sizes a second buffer holds the row that
each value came from, and moves along; of equal values the one from the lower row comes first.
"""

from __future__ import annotations

import numpy as np

from bartizan._util.jit import cgutils, intrinsic, ir, njit, types, u64
from bartizan.kernels.sorting_networks import BOTH, LEAST, MEAMED, MEDIAN, TRIMMED_MEAN

LANES = 16  # columns of one vector of LLVM's, which splits it where the CPU has narrower ones
TILE = 64  # columns that a comparator is applied to at a time
AVERAGED_COLUMNS = 64  # whose ranks are averaged at a time, after the sort
MIXED_COLUMNS = 256  # at a time
HALF_WITHIN = 1e-12  # shares of the sizes that differ from one half by less are one half
# No division here is by zero, and none is checked for it.
loop = njit(cache=True, nogil=True, error_model="numpy")


def _vectors(context, builder, array_type, array, places):
    """Pointers to LANES numbers of the array at these places."""
    number = context.get_data_type(array_type.dtype)
    data = context.make_array(array_type)(context, builder, array).data
    vector = ir.VectorType(number, LANES).as_pointer()
    return [builder.bitcast(builder.gep(data, [place]), vector) for place in places]


def _exchange(kind):
    """Write the smaller of two numbers to place i, the larger to place j, or only one of them; LANES of each."""

    @intrinsic
    def exchange(typing_context, values, i, j):
        def generate(context, builder, signature, arguments):
            at = _vectors(context, builder, signature.args[0], arguments[0], arguments[1:])
            align = signature.args[0].dtype.bitwidth // 8
            a, b = (builder.load(place, align=align) for place in at)
            # One comparison for both: -0.0 and 0.0 are neither lost nor doubled.
            less = builder.fcmp_ordered("<", a, b)
            if kind in (BOTH, LEAST):
                builder.store(builder.select(less, a, b), at[0], align=align)
            if kind != LEAST:
                builder.store(builder.select(less, b, a), at[1], align=align)
            return context.get_dummy_value()

        return types.void(values, i, j), generate

    return exchange


_exchange_both, _keep_least, _keep_largest = (_exchange(kind) for kind in range(3))


@intrinsic
def _exchange_pairs(typing_context, values, owners, i, j):
    """Exchange two values and their owners unless they are in order, by value and then by owner; LANES of each."""

    def generate(context, builder, signature, arguments):
        places, align = arguments[2:], signature.args[0].dtype.bitwidth // 8
        at = _vectors(context, builder, signature.args[0], arguments[0], places)
        by = _vectors(context, builder, signature.args[1], arguments[1], places)
        a, b, s, t = (builder.load(place, align=align) for place in (*at, *by))
        same = builder.and_(builder.fcmp_ordered("==", a, b), builder.fcmp_ordered("<", s, t))
        less = builder.or_(builder.fcmp_ordered("<", a, b), same)
        for first, second, to in ((a, b, at), (s, t, by)):
            builder.store(builder.select(less, first, second), to[0], align=align)
            builder.store(builder.select(less, second, first), to[1], align=align)
        return context.get_dummy_value()

    return types.void(values, owners, i, j), generate


@loop
def _sort(values, width, comparators):
    for first in range(u64(0), width, u64(TILE)):
        for n in range(u64(len(comparators))):
            i, j = u64(comparators[n, 0]) * width + first, u64(comparators[n, 1]) * width + first
            kind = comparators[n, 2]
            if kind == BOTH:
                for c in range(u64(0), u64(TILE), u64(LANES)):
                    _exchange_both(values, i + c, j + c)
            elif kind == LEAST:
                for c in range(u64(0), u64(TILE), u64(LANES)):
                    _keep_least(values, i + c, j + c)
            else:
                for c in range(u64(0), u64(TILE), u64(LANES)):
                    _keep_largest(values, i + c, j + c)


@loop
def _sort_pairs(values, owners, width, comparators):
    for first in range(u64(0), width, u64(TILE)):
        for n in range(u64(len(comparators))):
            i, j = u64(comparators[n, 0]) * width + first, u64(comparators[n, 1]) * width + first
            for c in range(u64(0), u64(TILE), u64(LANES)):
                _exchange_pairs(values, owners, i + c, j + c)


@loop
def _halfway(a, b):
    """The mean of two numbers, also where their sum overflows."""
    sum = a + b
    return 0.5 * sum if abs(sum) < np.inf else 0.5 * a + 0.5 * b


@loop
def _middle(values, M, width, start, stop, out):
    """The middle value of sorted columns, or the mean of the two middle ones."""
    low, high = u64((M - 1) // 2) * width, u64(M // 2) * width
    for c in range(start, stop):
        out[c] = _halfway(np.float64(values[low + c]), np.float64(values[high + c]))


@loop
def _weighted_middle(values, weights, M, width, start, stop, half, below, upper, out):
    """The value with half of the sizes on either side, or the mean of two such values."""
    least, most = half * (1.0 - 2.0 * HALF_WITHIN), half * (1.0 + 2.0 * HALF_WITHIN)
    for i in range(stop - start):
        below[i] = 0.0
    for m in range(u64(M)):
        row, own = m * width + start, m * u64(AVERAGED_COLUMNS)
        for i in range(stop - start):
            value = np.float64(values[row + i])
            out[start + i] = value if below[i] < least else out[start + i]
            upper[i] = value if below[i] <= most else upper[i]
            below[i] += weights[own + i]
    for i in range(stop - start):
        out[start + i] = _halfway(out[start + i], upper[i])


@loop
def _first_kept(values, M, width, start, stop, kind, f, centre, first):
    """Find the first rank that is kept per column. MeaMed keeps M - f ranks: rank s is out if M - f + s is closer."""
    for i in range(stop - start):
        first[i] = f if kind == TRIMMED_MEAN else 0
    if kind == MEAMED:
        for s in range(f):
            left, right = u64(s) * width, u64(M - f + s) * width
            for c in range(start, stop):
                low, high = np.float64(values[left + c]), np.float64(values[right + c])
                first[c - start] += centre[c] - low > high - centre[c]


@loop
def reduce(values, width, comparators, kind, f, out):
    """Write the median, trimmed mean or MeaMed of each column to `out`; the values are moved. Rows have equal sizes."""
    M, width = values.size // width, u64(width)
    n = np.int32(M - 2 * f if kind == TRIMMED_MEAN else M - f)
    first, total = np.empty(AVERAGED_COLUMNS, np.int32), np.empty(AVERAGED_COLUMNS)
    _sort(values, width, comparators)
    for start in range(u64(0), width, u64(AVERAGED_COLUMNS)):
        stop = min(start + u64(AVERAGED_COLUMNS), width)
        if kind != TRIMMED_MEAN:
            _middle(values, M, width, start, stop, out)
        if kind != MEDIAN:
            _first_kept(values, M, width, start, stop, kind, f, out, first)
            for i in range(stop - start):
                total[i] = 0.0
            for m in range(M):
                row = u64(m) * width + start
                for i in range(stop - start):
                    total[i] += np.float64(values[row + i]) if 0 <= m - first[i] < n else 0.0
            for i in range(stop - start):
                out[start + i] = total[i] / n


@loop
def reduce_by_sizes(values, owners, sizes, width, comparators, kind, f, out):
    """Reduce like `reduce` with one size per row; rows are in the order of their sizes, and `owners` is scratch."""
    M, width, half = len(sizes), u64(width), 0.5 * sizes.sum()
    n = np.int32(M - 2 * f if kind == TRIMMED_MEAN else M - f)
    first, total = np.empty(AVERAGED_COLUMNS, np.int32), np.empty(AVERAGED_COLUMNS)
    weight, weights = np.empty(AVERAGED_COLUMNS), np.empty(u64(M) * u64(AVERAGED_COLUMNS))
    for m in range(u64(M)):
        for c in range(m * width, (m + u64(1)) * width):
            owners[c] = m
    _sort_pairs(values, owners, width, comparators)
    for start in range(u64(0), width, u64(AVERAGED_COLUMNS)):
        stop = min(start + u64(AVERAGED_COLUMNS), width)
        for m in range(u64(M)):
            row, own = m * width + start, m * u64(AVERAGED_COLUMNS)
            for i in range(stop - start):
                weights[own + i] = sizes[u64(owners[row + i])]
        if kind != TRIMMED_MEAN:
            _weighted_middle(values, weights, M, width, start, stop, half, weight, total, out)
        if kind != MEDIAN:
            _first_kept(values, M, width, start, stop, kind, f, out, first)
            for i in range(stop - start):
                total[i] = weight[i] = 0.0
            for m in range(M):
                row, own = u64(m) * width + start, u64(m) * u64(AVERAGED_COLUMNS)
                for i in range(stop - start):
                    own_weight = weights[own + i] if 0 <= m - first[i] < n else 0.0
                    total[i] += own_weight * np.float64(values[row + i])
                    weight[i] += own_weight
            for i in range(stop - start):
                out[start + i] = total[i] / weight[i]


@intrinsic
def _add_products(typing_context, factors, values, at, width, out, to):
    """Add four rows times 4 x 4 factors to four rows of `out`, from these places on; LANES columns of each."""

    def generate(context, builder, signature, arguments):
        factors, values, at, width, out, to = arguments
        factors = cgutils.unpack_tuple(builder, factors, 16)

        def rows(k, array, first):
            places = [first]
            for _ in range(3):
                places.append(builder.add(places[-1], width))
            return _vectors(context, builder, signature.args[k], array, places)

        x = [builder.load(place, align=8) for place in rows(1, values, at)]
        ones = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        for i, place in enumerate(rows(4, out, to)):
            total = builder.load(place, align=8)
            for factor, vector in zip(factors[4 * i : 4 * i + 4], x, strict=True):
                single = builder.insert_element(ir.Constant(vector.type, ir.Undefined), factor, ir.IntType(32)(0))
                spread = builder.shuffle_vector(single, single, ones)
                total = builder.fadd(total, builder.fmul(spread, vector, flags=["contract"]), flags=["contract"])
            builder.store(total, place, align=8)
        return context.get_dummy_value()

    return types.void(factors, values, at, width, out, to), generate


@loop
def _four(A, r, m):
    """Load four numbers of row r from column m on, with zeros behind the last."""
    R, M = A.shape
    return (
        A[r, m] if r < R else 0.0,
        A[r, m + 1] if r < R and m + 1 < M else 0.0,
        A[r, m + 2] if r < R and m + 2 < M else 0.0,
        A[r, m + 3] if r < R and m + 3 < M else 0.0,
    )


@loop
def mix(A, values, width, out):
    """Write A @ values to `out`, both strips of float64 whose rows are filled up to a multiple of four."""
    width = u64(width)
    for i in range(u64(out.size)):
        out[i] = 0.0
    for tile in range(u64(0), width, u64(MIXED_COLUMNS)):
        stop = min(tile + u64(MIXED_COLUMNS), width)
        for r in range(0, A.shape[0], 4):
            for m in range(0, A.shape[1], 4):
                factors = _four(A, r, m) + _four(A, r + 1, m) + _four(A, r + 2, m) + _four(A, r + 3, m)
                mixes = False
                for factor in factors:
                    mixes |= factor != 0.0
                if mixes:
                    at, to = u64(m) * width, u64(r) * width
                    for c in range(tile, stop, u64(LANES)):
                        _add_products(factors, values, at + c, width, out, to + c)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def mix_alike(shared, ends, columns, factors, values, width, out):
    """Write mixtures of which each is that of the `shared` factors, plus some rows times factors of its own.

    The own ones of mixture r are those from `ends[r]` to `ends[r + 1]`.
    """
    width, common = u64(width), np.empty(MIXED_COLUMNS)
    for tile in range(u64(0), width, u64(MIXED_COLUMNS)):
        count = min(u64(MIXED_COLUMNS), width - tile)
        common[:] = 0.0
        for m in range(len(shared)):
            if shared[m] != 0.0:
                x = values[u64(m) * width + tile : u64(m) * width + tile + count]
                for i in range(count):
                    common[i] += shared[m] * x[i]
        for r in range(len(ends) - 1):
            to = out[u64(r) * width + tile : u64(r) * width + tile + count]
            for i in range(count):
                to[i] = common[i]
            for j in range(ends[r], ends[r + 1] - 3, 4):
                a, b, c, d = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
                at = u64(columns[j]) * width + tile
                w = values[at : at + count]
                at = u64(columns[j + 1]) * width + tile
                x = values[at : at + count]
                at = u64(columns[j + 2]) * width + tile
                y = values[at : at + count]
                at = u64(columns[j + 3]) * width + tile
                z = values[at : at + count]
                for i in range(count):
                    to[i] += (a * w[i] + b * x[i]) + (c * y[i] + d * z[i])
            for j in range(ends[r + 1] - (ends[r + 1] - ends[r]) % 4, ends[r + 1]):
                at = u64(columns[j]) * width + tile
                x = values[at : at + count]
                for i in range(count):
                    to[i] += factors[j] * x[i]
