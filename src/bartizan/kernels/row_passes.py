"""Kernels of rounds with many clients in numba: passes over rows of sketches, and stripes of products of rows.

Every sum is cut by the number of rows alone and added up in their order, so that no bit depends on the threads. All are
in one file because numba's cache checks only the file that a kernel is in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bartizan._util.jit import intrinsic, ir, njit, types, u64
from bartizan._util.threads import n_threads, share
from bartizan._util.types import Floats

# Reordering sums is all we allow.
SUMS = {"reassoc", "contract", "nsz"}
MIN_PART_ROWS, MAX_PARTS = 64, 64  # rows of a part of a pass, and how many parts there are at most
STRIPE_ROWS = 256  # of a product, that one thread packs and multiplies at a time
PANEL_STEPS = 256  # terms of a product that are added up in registers
PANEL_ROWS, LANES = 8, 8  # rows of a panel, and numbers of a vector; a panel has two vectors of columns
PANEL_COLUMNS = 2 * LANES
THREADS_FROM_NUMBERS = 2**17  # read in a pass, below which waking other threads costs more than it saves

loop = njit(cache=True, nogil=True, error_model="numpy")
summing = njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
part = njit(inner=True, cache=True, error_model="numpy")
NOTHING = np.empty(0)


def _share_parts(numbers: int, rows: int, task: Callable[[int, int, int], None]) -> int:
    """Call task(part, first, last) for parts of the rows; return how many parts there are."""
    size = max(MIN_PART_ROWS, -(-rows // MAX_PARTS))
    parts = -(-rows // size)
    threads = n_threads() if numbers >= THREADS_FROM_NUMBERS else 1
    share(lambda i: task(i, size * i, min(size * (i + 1), rows)), parts, threads)
    return parts


@part
def _difference(x, centre, point):
    """Subtract twice, in this order: what clients share goes first, and takes no digits of the rest with it."""
    return (x - centre) - point


@summing
def _squares(X, centre, point, direction, first, last, squares, along):
    along_too = len(direction) > 0
    for i in range(first, last):
        row, square, product = X[i], 0.0, 0.0
        if along_too:
            for t in range(u64(len(point))):
                d = _difference(row[t], centre[t], point[t])
                square += d * d
                product += d * direction[t]
            along[i] = product
        else:
            for t in range(u64(len(point))):
                d = _difference(row[t], centre[t], point[t])
                square += d * d
        squares[i] = square


def squares(X: Floats, centre: Floats, point: Floats, direction: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the rows' squared distances to `centre` + `point`, and their products with a direction from there."""
    out, along = np.empty(len(X)), NOTHING if direction is None else np.empty(len(X))
    toward = NOTHING if direction is None else direction
    _share_parts(X.size, len(X), lambda _, a, b: _squares(X, centre, point, toward, a, b, out, along))
    return out, along


@part
def _axpy(weight, row, centre, out):
    for t in range(u64(len(out))):
        out[t] += weight * (row[t] - centre[t])


@loop
def _weighted(X, centre, weights, first, last, out):
    for i in range(first, last):
        if weights[i] != 0.0:
            _axpy(weights[i], X[i], centre, out)


def weighted(X: Floats, centre: Floats, weights: Floats) -> Floats:
    """Return the weighted sum of the rows' differences from `centre`; rows of weight 0 are not read."""
    sums = np.zeros((MAX_PARTS, X.shape[1]))
    parts = _share_parts(X.size, len(X), lambda i, a, b: _weighted(X, centre, weights, a, b, sums[i]))
    return sums[:parts].sum(axis=0)


@loop
def add_listed(rows, columns, values, X, centre, out):
    """Add `values[e]` times row `columns[e]` of X, about the centre, to row `rows[e]` of `out`, for each e."""
    for e in range(len(rows)):
        _axpy(values[e], X[columns[e]], centre, out[rows[e]])


@intrinsic
def _add_panel(typing_context, rows, columns, steps, out):
    """Add the products of packed rows and columns to a tile of PANEL_ROWS x PANEL_COLUMNS, one step after the other."""

    def generate(context, builder, signature, arguments):
        b, i64, wide = builder, ir.IntType(64), ir.VectorType(ir.DoubleType(), LANES)
        x, y, to = (
            context.make_array(kind)(context, b, arguments[i]).data for i, kind in ((0, rows), (1, columns), (3, out))
        )

        def vector(array, index):
            return b.bitcast(b.gep(array, [index]), wide.as_pointer())

        before, inside, after = b.block, b.append_basic_block("steps"), b.append_basic_block("done")
        b.branch(inside)
        b.position_at_end(inside)
        step = b.phi(i64)
        step.add_incoming(i64(0), before)
        tile = [[b.phi(wide) for _ in range(0, PANEL_COLUMNS, LANES)] for _ in range(PANEL_ROWS)]
        right = [
            b.load(vector(y, b.add(b.mul(step, i64(PANEL_COLUMNS)), i64(at))), align=8)
            for at in range(0, PANEL_COLUMNS, LANES)
        ]
        added = []
        for r, sums in enumerate(tile):
            left = b.load(b.gep(x, [b.add(b.mul(step, i64(PANEL_ROWS)), i64(r))]))
            left = b.insert_element(ir.Constant(wide, ir.Undefined), left, i64(0))
            left = b.shuffle_vector(left, left, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))
            pairs = zip(sums, right, strict=True)
            added.append([b.fadd(s, b.fmul(left, one, flags=["contract"]), flags=["contract"]) for s, one in pairs])
        following = b.add(step, i64(1))
        step.add_incoming(following, inside)
        for sums, more in zip(tile, added, strict=True):
            for s, one in zip(sums, more, strict=True):
                s.add_incoming(ir.Constant(wide, [0.0] * LANES), before)
                s.add_incoming(one, inside)
        b.cbranch(b.icmp_unsigned("<", following, arguments[2]), inside, after)
        b.position_at_end(after)
        for r, more in enumerate(added):
            for at, one in enumerate(more):
                b.store(one, vector(to, i64(r * PANEL_COLUMNS + at * LANES)), align=8)
        return context.get_dummy_value()

    return types.void(rows, columns, steps, out), generate


@loop
def _pack(X, centre, first, last, low, high, width, scale, out):
    """Pack rows, about the centre, into panels of `width` rows, step by step, with zeros for those that are missing."""
    steps = u64(high - low)
    for group in range(-(-(last - first) // width)):
        panel = out[group]
        for r in range(width):
            m = first + group * width + r
            if m < last:
                row, factor = X[m], scale[m] if len(scale) else 1.0
                for t in range(steps):
                    panel[t * u64(width) + u64(r)] = factor * (row[u64(low) + t] - centre[u64(low) + t])
            else:
                for t in range(steps):
                    panel[t * u64(width) + u64(r)] = 0.0


@loop
def _pack_columns(X, centre, first, last, low, high, width, scale, out):
    """The same for columns `first` to `last`, of which rows `low` to `high` are the steps."""
    for group in range(-(-(last - first) // width)):
        panel, left = out[group], first + group * width
        count = u64(min(width, last - left))
        for t in range(u64(high - low)):
            row, factor = X[u64(low) + t], scale[u64(low) + t] if len(scale) else 1.0
            for r in range(count):
                panel[t * u64(width) + r] = factor * (row[u64(left) + r] - centre[u64(left) + r])
            for r in range(count, u64(width)):
                panel[t * u64(width) + r] = 0.0


@loop
def _add_stripe(mine, others, n_rows, n_columns, left, steps, tile, out):
    """Add the products of the packed rows with one panel of columns, from column `left` of `out` on."""
    columns = u64(min(PANEL_COLUMNS, n_columns - left))
    for group in range(-(-n_rows // PANEL_ROWS)):
        _add_panel(mine[group], others, u64(steps), tile)
        for r in range(min(PANEL_ROWS, n_rows - group * PANEL_ROWS)):
            to = out[group * PANEL_ROWS + r]
            for c in range(columns):
                to[u64(left) + c] += tile[u64(r * PANEL_COLUMNS) + c]


@loop
def _row_stripe(A, X, centre, first, last, before, out):
    """Compute the products of rows `first` to `last` of A with the first `before` rows of X, all about the centre."""
    mine = np.empty((STRIPE_ROWS // PANEL_ROWS, PANEL_STEPS * PANEL_ROWS))
    others, tile, nothing = np.empty((1, PANEL_STEPS * PANEL_COLUMNS)), np.empty(PANEL_ROWS * PANEL_COLUMNS), centre[:0]
    for low in range(0, X.shape[1], PANEL_STEPS):
        high = min(low + PANEL_STEPS, X.shape[1])
        _pack(A, centre, first, last, low, high, PANEL_ROWS, nothing, mine)
        for left in range(0, before, PANEL_COLUMNS):
            _pack(X, centre, left, min(left + PANEL_COLUMNS, before), low, high, PANEL_COLUMNS, nothing, others)
            _add_stripe(mine, others, last - first, before, left, high - low, tile, out)


def products(A: Floats, X: Floats, centre: Floats) -> Floats:
    """Return the inner products of the rows of A with those of X, all about the centre."""
    out = np.zeros((len(A), len(X)))
    size = min(STRIPE_ROWS, max(PANEL_ROWS, -(-len(A) // n_threads())))  # each sum is the same however rows are cut

    def task(i: int) -> None:
        first, last = size * i, min(size * (i + 1), len(A))
        _row_stripe(A, X, centre, first, last, len(X), out[first:last])

    share(task, -(-len(A) // size), n_threads() if out.size * X.shape[1] >= THREADS_FROM_NUMBERS else 1)
    return out


def own_products(X: Floats, centre: Floats) -> Floats:
    """Return each row's product with itself as `products` sums it, so that equal rows have distance 0."""
    out = np.empty(len(X))

    def task(_: int, first: int, last: int) -> None:
        for low in range(first, last, PANEL_COLUMNS):
            high = min(low + PANEL_COLUMNS, last)
            some = np.zeros((high - low, high - low))
            _row_stripe(X, X[low:high], centre, low, high, high - low, some)
            out[low:high] = some.diagonal()

    _share_parts(X.size, len(X), task)
    return out


@loop
def _column_stripe(A, X, centre, scale, first, last, before, by_column, out):
    """Compute rows `first` to `last` of A S (X - centre), or of X' S X with columns of X for rows of A."""
    mine = np.empty((STRIPE_ROWS // PANEL_ROWS, PANEL_STEPS * PANEL_ROWS))
    others, tile, nothing = np.empty((1, PANEL_STEPS * PANEL_COLUMNS)), np.empty(PANEL_ROWS * PANEL_COLUMNS), centre[:0]
    zero = np.zeros(A.shape[1])
    for low in range(0, len(X), PANEL_STEPS):
        high = min(low + PANEL_STEPS, len(X))
        if by_column:
            _pack_columns(A, centre, first, last, low, high, PANEL_ROWS, scale, mine)
        else:
            _pack(A, zero, first, last, low, high, PANEL_ROWS, nothing, mine)
        for left in range(0, before, PANEL_COLUMNS):
            right = min(left + PANEL_COLUMNS, before)
            _pack_columns(X, centre, left, right, low, high, PANEL_COLUMNS, nothing, others)
            _add_stripe(mine, others, last - first, before, left, high - low, tile, out)


def mixtures(A: Floats, X: Floats, centre: Floats) -> Floats:
    """Return A (X - centre), for a few rows of A."""
    out = np.zeros((len(A), X.shape[1]))
    size = min(STRIPE_ROWS, max(PANEL_ROWS, -(-len(A) // n_threads())))

    def task(i: int) -> None:
        first, last = size * i, min(size * (i + 1), len(A))
        _column_stripe(A, X, centre, NOTHING, first, last, X.shape[1], False, out[first:last])

    share(task, -(-len(A) // size), n_threads() if A.size * X.shape[1] >= THREADS_FROM_NUMBERS else 1)
    return out


def scatter(X: Floats, centre: Floats, weights: Floats) -> Floats:
    """Return the weighted sum of the outer products of the rows' differences from `centre`, (k, k)."""
    k = X.shape[1]
    out = np.zeros((k, k))
    size = min(STRIPE_ROWS, max(PANEL_COLUMNS, -(-k // (4 * n_threads()))))
    n_stripes = -(-k // size)

    def task(i: int) -> None:
        first = size * (n_stripes - 1 - i)  # the last ones are the longest
        last = min(first + size, k)
        _column_stripe(X, X, centre, weights, first, last, last, True, out[first:last])

    share(task, n_stripes, n_threads() if X.size >= THREADS_FROM_NUMBERS else 1)
    lower = np.tril(out)
    return lower + np.tril(lower, -1).T


@loop
def _as_distances(mine, squares, out):
    for i in range(len(mine)):
        to, own = out[i], mine[i]
        for j in range(u64(len(squares))):
            d = squares[j] + own - 2.0 * to[j]
            to[j] = d if d > 0.0 else 0.0


def distances(A: Floats, X: Floats, centre: Floats, own: Floats, squares: Floats) -> Floats:
    """Return squared distances of the rows of A to those of X, whose products with themselves are given."""
    out = products(A, X, centre)
    _as_distances(own, squares, out)
    return out
