"""Kernels of the weigh stage in numba: M x M numbers, from the Gram matrix to the weights.

`reference` defines what each of them computes, except for the iterated weights, which their rules define. They decide
between clients, so only sums whose rounding decides nothing are reordered. All are in one file because numba's cache
checks only the file that a kernel is in.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

import numpy as np

from bartizan._util.jit import njit, u64
from bartizan._util.threads import n_threads, share
from bartizan._util.types import Array, Floats

# Reordering sums is all we allow.
SUMS = {"reassoc", "contract", "nsz"}
THREADS_FROM_CLIENTS = 512  # below it, waking other threads costs more than it saves
STRIPE_ROWS = 64  # that a thread multiplies at once: they stay in its cache
MAX_BLAS_PRODUCTS = 2**18  # up to which BLAS too stays on one thread
EQUAL_WITHIN = 2.0**-49  # relative difference of two numbers that are taken for equal
MAX_SPARSE_SHARE = 0.2  # of a matrix's entries that differ from the common row, for the sparse product to be faster
PANEL_COLUMNS, PANEL_ROWS = 128, 8  # of such a product: summed at once, and then written at once
OUT_OF_GRAPH = 2**30  # more than any degree: subtracted from that of a vertex which is taken out of the graph
# No division here is by zero, and none is checked for it.
loop = njit(cache=True, nogil=True, error_model="numpy")
summing = njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)
# The same for what only other kernels call.
part = njit(inner=True, cache=True, error_model="numpy")
summing_part = njit(inner=True, cache=True, error_model="numpy", fastmath=SUMS)


def _share_rows(n: int, task: Callable[[int, int], None]) -> None:
    """Call task(first, last) for stripes of n rows, on all cores if there are many."""
    threads = n_threads() if n >= THREADS_FROM_CLIENTS else 1
    share(lambda i: task(STRIPE_ROWS * i, min(STRIPE_ROWS * (i + 1), n)), -(-n // STRIPE_ROWS), threads)


@part
def _median(values, x):
    """Return NumPy's median, by Hoare's selection in the scratch x; numba's own takes a second to compile."""
    for i in range(u64(len(x))):
        x[i] = values[i]
    middle, low, high = len(x) // 2, 0, len(x) - 1
    while low < high:
        pivot, i, j = x[middle], low, high
        while i <= j:
            while x[i] < pivot:
                i += 1
            while pivot < x[j]:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i, j = i + 1, j - 1
        if j < middle:
            low = i
        if middle < i:
            high = j
    if len(x) % 2:
        return x[middle]
    below = x[0]
    for i in range(u64(middle)):
        below = max(below, x[i])
    return (below + x[middle]) / 2.0


@loop
def median(values):
    """Return the median of finite numbers: NumPy's takes longer for few than all else that a rule does."""
    return _median(values, np.empty(len(values)))


@loop
def _distances(inner, first, last, out):
    """Compute the distances of some rows and the medoid among them.

    A row's median is computed only if at least half of the row lies below the least median so far.
    """
    M = len(out)
    squares, row = np.empty(M), np.empty(M)
    for i in range(M):
        squares[i] = inner[i, i]
    medoid, least = first, np.inf
    for i in range(first, last):
        products, own, to = inner[i], squares[i], out[i]
        below = 0
        for j in range(u64(M)):
            d = squares[j] + own - 2.0 * products[j]
            d = d if d > 0.0 else 0.0
            to[j] = d
            below += d < least
        if below >= (M + 1) // 2:
            median = _median(to, row)
            if median < least:
                medoid, least = i, median
    return medoid, least


def distances(inner: Floats, n_clients: int) -> tuple[Floats, int, float]:
    """Return squared distances of the first `n_clients` points, their medoid, and its median squared distance."""
    out = np.empty((n_clients, n_clients))
    if n_clients < THREADS_FROM_CLIENTS:
        return out, *_distances(inner, 0, n_clients, out)
    parts = n_threads()
    found = [(0, np.inf)] * parts

    def task(part: int) -> None:
        found[part] = _distances(inner, n_clients * part // parts, n_clients * (part + 1) // parts, out)

    share(task, parts, parts)
    medoid, least = min(found, key=itemgetter(1))  # the first, if several are as near
    return out, int(medoid), float(least)


@loop
def distances_to_mean(products, squares, weights, medoid, out):
    """Compute the distances of the first points to the weighted mean of all, from inner products about any point.

    `squares` has the squared distances of all points; where it lacks the last one's, they follow from the products.
    """
    M, centre, total = len(weights), medoid, 0.0
    for i in range(M):
        total += weights[i]
        if weights[i] > 0.5:
            centre = i
    about, known, along, square = products[centre], squares.shape[1] == M, np.empty(M), 0.0
    for i in range(M):
        along[i] = _dot(products[i], weights, M) - total * about[i]
    own = along[centre]
    for i in range(M):
        along[i] -= own
        square += weights[i] * along[i]
    for i in range(len(out)):
        apart = squares[centre, i] if known else products[i, i] - 2.0 * about[i] + about[centre]
        out[i] = np.sqrt(max(apart - 2.0 * along[i] + square, 0.0))


@loop
def ordinary(gram, squared_norms, least_norm, most_norm, least_ratio, most_ratio):
    """Return whether all squared norms, exact and in the Gram matrix, are inside these limits; False for NaN."""
    for i in range(u64(len(squared_norms))):
        norm, shown = squared_norms[i], gram[i, i]
        if not (least_norm <= norm <= most_norm and least_ratio * norm <= shown <= most_ratio * norm):
            return False
    return True


@loop
def _recentred(gram, centre, n_clients, first, last, out):
    M, N = u64(n_clients), u64(len(gram))
    about, own = gram[centre], gram[centre, centre]
    for i in range(u64(first), u64(last)):
        row, to = gram[i], out[i + u64(i >= M)]
        a = about[i]
        # Of clients with a large common part each difference is exact; both orders, so that it is symmetric.
        for j in range(M):
            to[j] = (((row[j] - about[j]) + (own - a)) + ((row[j] - a) + (own - about[j]))) / 2.0
        for j in range(M, N):
            to[j + u64(1)] = (((row[j] - about[j]) + (own - a)) + ((row[j] - a) + (own - about[j]))) / 2.0
        to[M] = own - a
        out[M, i + u64(i >= M)] = own - a


def recentred(gram: Floats, centre: int, n_clients: int) -> Floats:
    """Return inner products about row `centre`, with the origin as the row after the clients."""
    out = np.empty((len(gram) + 1, len(gram) + 1))
    _share_rows(len(gram), lambda first, last: _recentred(gram, centre, n_clients, first, last, out))
    out[n_clients, n_clients] = gram[centre, centre]
    return out


@summing
def _nearest(D, border, n, sizes, first, top, out):
    M = D.shape[1]
    for i in range(first, first + len(border)):
        row, to, last, own = D[i], out[i], border[i - first], top + i
        near = 0
        for j in range(u64(M)):
            to[j] = sizes[j] if row[j] <= last else 0.0
            near += row[j] <= last
        j = M
        while near > n:  # several at the border: the last of them have no place, the client itself always has
            j -= 1
            if row[j] == last and j != own:
                to[j] = 0.0
                near -= 1
        total = 0.0
        for j in range(u64(M)):
            total += to[j]
        for j in range(u64(M)):
            to[j] /= total


def nearest(D: Floats, n: int, sizes: Floats, top: int = 0) -> Floats:
    """Return, per client, the shares by size of its n nearest: itself, then by distance, ties to the lower index.

    D may be some rows of the matrix, from client `top` on.
    """
    out = np.empty_like(D)

    def task(first: int, last: int) -> None:
        _nearest(D, np.partition(D[first:last], n - 1, axis=1)[:, n - 1].copy(), n, sizes, first, top, out)

    _share_rows(len(D), task)
    return out


def nearest_sums(D: Floats, n: int) -> Floats:
    """Return each row's sum of its n least numbers, added in ascending order: equal rows have equal sums to the bit."""
    if len(D) <= STRIPE_ROWS:
        return np.sort(D, axis=1)[:, :n].sum(axis=1)
    out = np.empty(len(D))

    def task(first: int, last: int) -> None:
        out[first:last] = np.sort(D[first:last], axis=1)[:, :n].sum(axis=1)

    _share_rows(len(D), task)
    return out


@summing_part
def _dot(x, y, n):
    total = 0.0
    for i in range(u64(n)):
        total += x[i] * y[i]
    return total


@part
def _times(C, w, out):
    for i in range(len(w)):
        out[i] = _dot(C[i], w, len(w))


@part
def _moved(C, w, Cw, step, Cstep):
    """Return the distance between the means of weights w and `step`; write C step into `Cstep`."""
    _times(C, step, Cstep)
    square = 0.0
    for i in range(len(w)):
        square += (step[i] - w[i]) * (Cstep[i] - Cw[i])
    return np.sqrt(max(square, 0.0))


@summing
def _distance_sums(C, D, shares, pivot, out):
    """Sum each client's distances to all, by shares, less those of the pivot; one square root per pair.

    The difference of two distances is that of their squares over their sum. It does not contain a client's own length,
    so a giant takes no digits from the others.
    """
    M, about = len(shares), C[pivot]
    squares, roots = np.empty(M), np.empty(M)
    for i in range(u64(M)):
        squares[i], roots[i] = C[i, i] - about[pivot], np.sqrt(D[pivot, i])
        out[i] = -shares[i] * roots[i]
    for i in range(u64(M)):
        products, row, own, to_pivot, share, total = C[i], D[i], squares[i], roots[i], shares[i], 0.0
        for j in range(i):
            root = np.sqrt(row[j])
            mine, other = root + roots[j], root + to_pivot
            gain, loss = own - 2.0 * (products[j] - about[j]), squares[j] - 2.0 * (products[j] - about[i])
            total += shares[j] * (gain / mine if mine > 0.0 else 0.0)
            out[j] += share * (loss / other if other > 0.0 else 0.0)
        out[i] += total


@summing_part
def _slope(squares, along, length, shares, floor, a):
    """Return the first and second derivative by a of the sum of distances along a line."""
    first = second = 0.0
    for i in range(u64(len(shares))):
        d = np.sqrt(max(squares[i] - a * (2.0 * along[i] - a * length), 0.0) + floor)
        r = (a * length - along[i]) / d
        first += shares[i] * r
        second += shares[i] * (length - r * r) / d
    return first, second


@part
def _least_along(squares, along, length, shares, scale, a):
    """Return the a at which the sum of distances along a line is least: Newton's method in a bracket."""
    low, high, unit, floor = -np.inf, np.inf, scale / np.sqrt(length), 1e-20 * scale * scale + 1e-300
    for _ in range(64):
        first, second = _slope(squares, along, length, shares, floor, a)
        if abs(first) <= 2e-15 * np.sqrt(length):
            break
        if first > 0.0:
            high = a
        else:
            low = a
        step = -first / second if second > 0.0 else -np.sign(first) * np.inf
        farthest = 8.0 * (abs(a) + unit)
        step = min(max(step, -farthest), farthest)
        if not low < a + step < high and high - low < np.inf:
            step = (low + high) / 2.0 - a
        a += step
        if abs(step) <= 1e-8 * unit:
            break
    return a


@loop
def least_along(squares, along, length, shares, scale, a):
    """Return the a at which the sum of distances to a + `along` is least, from squared distances at a = 0."""
    return _least_along(squares, along, length, shares, scale, a)


@loop
def weiszfeld(C, D, pivot, shares, tolerance, max_steps):
    """Return the weights of the geometric median, and whether it was reached; `pivot` is a client near most others.

    This is Weiszfeld's iteration, with a search along the line through its last two images.
    A step multiplies the error by a matrix of trace 1 and no negative eigenvalue, so at most one direction converges
    more slowly than by halves. The difference v of two images u soon points along it, and the least sum of distances
    there is found at z: where the iteration alone takes millions of steps, this takes ten. About the start, whose
    weight is then not multiplied by any rounding, K v = C v - (C v)_start for a v of sum 0; no K is formed.
    """
    M = len(shares)
    sums, u, Ku, v, Kv = np.empty(M), np.zeros(M), np.zeros(M), np.zeros(M), np.empty(M)
    z, Kz, distances, squares, along = np.empty(M), np.empty(M), np.empty(M), np.empty(M), np.empty(M)
    _distance_sums(C, D, shares, pivot, sums)
    start = u64(0)  # if any client is the median it is the one of least summed distance
    for i in range(u64(M)):
        start = i if sums[i] < sums[start] else start  # type: ignore[assignment]
    from_start = D[start]
    for i in range(u64(M)):
        distances[i] = np.sqrt(from_start[i])
    scale = _median(distances, along)
    pull = met = 0.0
    for i in range(u64(M)):
        squares[i] = from_start[i]
        # Clients that coincide up to the rounding of inner products are one vertex.
        if squares[i] <= 1e-14 * (scale * scale + abs(C[i, i]) + abs(C[start, start])):
            squares[i], u[i] = 0.0, shares[i]
            met += shares[i]
        else:
            v[i] = shares[i] / distances[i]
            pull += v[i]
    for i in range(u64(M)):
        u[i] /= met
        v[i] -= pull * u[i]
    _times(C, v, Kv)
    force = np.sqrt(max(_dot(v, Kv, M), 0.0))
    if force <= met * (1.0 + 1e-13):
        # It stays there (Vardi and Zhang). On a line two vertices may be as good, and what lies between them.
        total = 0.0
        for i in range(u64(M)):
            u[i] = shares[i] if u[i] > 0.0 or sums[i] <= sums[start] + 1e-12 * scale else 0.0
            total += u[i]
        for i in range(u64(M)):
            u[i] /= total
        return u, True
    for i in range(u64(M)):
        along[i] = Kv[i] - Kv[start]
    a = _least_along(squares, along, force * force, shares, scale, 1.0 / pull)
    for i in range(u64(M)):
        z[i], Kz[i] = u[i] + a * v[i], a * along[i]
    for _ in range(max_steps):
        own, pull = _dot(z, Kz, M), 0.0
        for i in range(u64(M)):
            distances[i] = np.sqrt(max(from_start[i] - 2.0 * Kz[i] + own, 1e-20 * scale * scale + 1e-300))
            v[i] = shares[i] / distances[i]
            pull += v[i]
        scale = _median(distances, along)
        for i in range(u64(M)):
            v[i] = v[i] / pull - u[i]
            u[i] += v[i]
        _times(C, v, Kv)
        at_start = Kv[start]
        for i in range(u64(M)):
            Kv[i] -= at_start
        length, about = _dot(v, Kv, M), _dot(u, Kv, M)
        if length <= 1e-28 * scale * scale:
            return u, True
        for i in range(u64(M)):
            Ku[i] += Kv[i]
            along[i] = Kv[i] - about
        own = _dot(u, Ku, M)
        for i in range(u64(M)):
            squares[i] = from_start[i] - 2.0 * Ku[i] + own
        a = _least_along(squares, along, length, shares, scale, 0.0)
        moved = 0.0
        for i in range(u64(M)):
            to, Kto = u[i] + a * v[i], Ku[i] + a * Kv[i]
            moved += (to - z[i]) * (Kto - Kz[i])
            z[i], Kz[i] = to, Kto
        # Flat up to rounding, or near enough.
        if a == 0.0 or moved <= tolerance * scale * tolerance * scale:
            return u, True
    return u, False


@loop
def correntropy(C, start, shares, width, tolerance, max_steps):
    """Return the weights of the Gaussian kernel's fixed point from weights `start`, and whether it was reached."""
    M = len(shares)
    w, Cw, step, Cstep = start.copy(), np.empty(M), np.empty(M), np.empty(M)
    squares = np.empty(M)
    _times(C, w, Cw)
    for _ in range(max_steps):
        square, nearest = _dot(w, Cw, M), np.inf
        for i in range(M):
            squares[i] = max(C[i, i] - 2.0 * Cw[i] + square, 0.0)
            nearest = min(nearest, squares[i])
        total = 0.0
        for i in range(M):
            step[i] = shares[i] * np.exp((nearest - squares[i]) / width / width / 2.0)
            total += step[i]
        for i in range(M):
            step[i] /= total
        moved = _moved(C, w, Cw, step, Cstep)
        w, step, Cw, Cstep = step, w, Cstep, Cw
        if moved <= tolerance * width:
            return w, True
    return w, False


@part
def _plus(high, low, x):
    """Add x to the sum `high` + `low` in twice the digits: `high` is the sum rounded once, in whatever order."""
    s = high + x
    part = s - high
    low += (high - (s - part)) + (x - part)
    high = s + low
    return high, low - (high - s)


@loop
def _pack(D, mask, keys):
    for i in range(u64(len(D))):
        bits, to = D[i].view(np.int64), keys[i]
        for j in range(u64(len(to))):
            to[j] = (bits[j] & ~mask) | np.int64(j)


@loop
def _unpack(D, keys, mask, unsure):
    """Turn keys into clients, and mark rows whose keys had too few digits to tell two distances apart."""
    for i in range(u64(len(D))):
        row, order, before = D[i], keys[i], -1.0
        for at in range(u64(len(row))):
            order[at] &= mask
            d = row[order[at]]
            unsure[i] |= d < before
            before = d


def by_distance(D: Floats) -> Array:
    """Sort each row's clients by distance, ties to the lower index.

    A key holds a distance's bits, the last of them replaced by the index: NumPy sorts numbers much faster than indices.
    Rows in which those last bits matter are sorted by indices.
    """
    mask = (1 << len(D).bit_length()) - 1
    keys, unsure = np.empty(D.shape, np.int64), np.zeros(len(D), np.bool_)

    def task(first: int, last: int) -> None:
        some, own = D[first:last], keys[first:last]
        _pack(some, mask, own)
        own.sort(axis=1)
        _unpack(some, own, mask, unsure[first:last])

    _share_rows(len(D), task)
    if unsure.any():
        keys[unsure] = np.argsort(D[unsure], axis=1, kind="stable")
    return keys


@part
def _counted(remaining, f):
    """Return how many neighbours count in Bulyan's Krum when `remaining` clients are left, plus the client itself."""
    return min(max(remaining - f - 2, f, 1), remaining - 1) + 1


@loop
def _repeated_krum(D, order, f, selected):
    """Remove the selected client and update every remaining score in O(1)."""
    M = len(D)
    alive, left = np.arange(M), np.ones(M, np.bool_)
    high, low, most = np.zeros(M), np.zeros(M), np.empty(M)
    # The farthest that counts: its place in the order, its distance, and who it is.
    place, border, who = np.empty(M, np.int64), np.empty(M), np.empty(M, np.int64)
    count = _counted(M, f)
    for i in range(M):
        place[i], who[i] = count - 1, order[i, count - 1]
        border[i] = D[i, who[i]]
    for j in range(M):
        row = D[j]
        for i in range(M):
            near = row[i] < border[i] or (row[i] == border[i] and j <= who[i])
            high[i], low[i] = _plus(high[i], low[i], row[i] if near else 0.0)
    best = 0
    for i in range(M):
        most[i] = high[i]
        best = i if high[i] < high[best] else best
    for s in range(len(selected)):
        selected[s] = chosen = best
        if s + 1 == len(selected):
            break
        left[chosen] = False
        n_left, best = 0, -1
        fewer = _counted(M - s - 1, f)
        for turn in range(M - s):
            i = alive[turn]
            if i == chosen:
                continue
            alive[n_left] = i
            n_left += 1
            d, change = D[chosen, i], 0.0
            if d < border[i] or (d == border[i] and chosen <= who[i]):
                change = -d
                step = 1 if fewer == count else 0
            else:
                step = -1 if fewer < count else 0
            if step != 0:
                at = place[i]
                if step < 0:  # the farthest that counted goes
                    while not left[order[i, at]]:
                        at -= 1
                    change = -D[i, order[i, at]]
                    at -= 1
                else:  # the next takes the place of the chosen
                    at += 1
                    while not left[order[i, at]]:
                        at += 1
                    high[i], low[i] = _plus(high[i], low[i], D[i, order[i, at]])
                place[i], who[i] = at, order[i, at]
                border[i] = D[i, who[i]]
            high[i], low[i] = _plus(high[i], low[i], change)
            most[i] = max(most[i], high[i])
            if high[i] < 2.0**-30 * most[i]:
                high[i], low[i] = 0.0, 0.0
                for at in range(place[i] + 1):
                    if left[order[i, at]]:
                        high[i], low[i] = _plus(high[i], low[i], D[i, order[i, at]])
                most[i] = high[i]
            if best < 0 or high[i] < high[best]:
                best = i
        count = fewer


def repeated_krum(D: Floats, f: int, n_selected: int) -> Array:
    """Return the selected clients in turn, in O(M^2) once each row is sorted: scores are sums in twice the digits.

    A giant that was once in a sum took digits from it: a sum that has shrunk by 2^30 is computed anew.
    """
    selected = np.empty(n_selected, np.int64)
    _repeated_krum(D, by_distance(D), f, selected)
    return selected


@part
def _change_degrees(degrees, far, vertex, step):
    """Remove a vertex from the graph (step -1) or restore it (1). A removed vertex has a negative degree."""
    neighbours = far[vertex]
    for i in range(u64(len(degrees))):
        degrees[i] += step * neighbours[i]
    degrees[vertex] += step * OUT_OF_GRAPH


@loop
def _vertex_cover(far, most, max_passes, cover):
    """Search depth first; the removed vertices are the state, `branches` and `sizes` the points to return to."""
    M = len(far)
    degrees = np.zeros(M, np.int32)
    for i in range(M):
        degrees += far[i]
    branches, sizes = np.empty(most, np.int64), np.empty(most, np.int64)
    size, depth, passes = 0, 0, 0
    while passes < max_passes:
        passes += 1
        ends, highest = 0, 0  # twice the number of edges, and the highest degree
        for i in range(u64(M)):
            degree = max(degrees[i], 0)
            ends += degree
            highest = max(highest, degree)
        if ends == 0:
            return size, passes
        if ends <= 2 * (most - size) * highest:
            vertex = 0
            while degrees[vertex] != highest:
                vertex += 1
            if highest > 2:
                branches[depth], sizes[depth] = vertex, size
                depth += 1
            else:  # paths and cycles: the neighbour of an end is always right; a cycle may be cut anywhere
                end = 0
                while end < M and degrees[end] != 1:
                    end += 1
                if end < M:
                    vertex = 0
                    while not far[end, vertex] or degrees[vertex] < 0:
                        vertex += 1
            cover[size] = vertex
            size += 1
            passes += 2  # it may have to be put back
            _change_degrees(degrees, far, vertex, -1)
            continue
        # That many edges can't be touched by so few vertices: back to a vertex that may stay, without its neighbours.
        while True:
            if depth == 0:
                return -1, passes
            depth -= 1
            vertex = branches[depth]
            while size > sizes[depth]:
                size -= 1
                _change_degrees(degrees, far, cover[size], 1)
            if degrees[vertex] <= most - size:
                break
        for i in range(M):
            if far[vertex, i] and degrees[i] > 0:
                cover[size] = i
                size += 1
                passes += 2
                _change_degrees(degrees, far, i, -1)
    return -1, max_passes + 1


def vertex_cover(far: Array, most: int, max_passes: int) -> tuple[Array | None, int]:
    """Return at most `most` vertices that touch every edge of the graph `far`, or None; and the passes over vertices.

    The passes are more than `max_passes` if the search was given up. It branches on the vertex of highest degree: the
    cover holds it or all its neighbours.
    """
    cover = np.empty(most, np.int64)
    size, passes = _vertex_cover(far.view(np.uint8), most, max_passes, cover)
    return None if size < 0 else cover[:size], passes


@summing_part
def _tile(X, Y, i, j, out):
    """Compute the 4 x 4 inner products of four rows of X and four of Y."""
    x0, x1, x2, x3 = X[i], X[i + 1], X[i + 2], X[i + 3]
    y0, y1, y2, y3 = Y[j], Y[j + 1], Y[j + 2], Y[j + 3]
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = 0.0
    a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = 0.0
    for t in range(u64(len(x0))):
        p0, p1, p2, p3 = x0[t], x1[t], x2[t], x3[t]
        q0, q1, q2, q3 = y0[t], y1[t], y2[t], y3[t]
        a00, a01, a02, a03 = a00 + p0 * q0, a01 + p0 * q1, a02 + p0 * q2, a03 + p0 * q3
        a10, a11, a12, a13 = a10 + p1 * q0, a11 + p1 * q1, a12 + p1 * q2, a13 + p1 * q3
        a20, a21, a22, a23 = a20 + p2 * q0, a21 + p2 * q1, a22 + p2 * q2, a23 + p2 * q3
        a30, a31, a32, a33 = a30 + p3 * q0, a31 + p3 * q1, a32 + p3 * q2, a33 + p3 * q3
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3] = a00, a01, a02, a03
    out[i + 1, j], out[i + 1, j + 1], out[i + 1, j + 2], out[i + 1, j + 3] = a10, a11, a12, a13
    out[i + 2, j], out[i + 2, j + 1], out[i + 2, j + 2], out[i + 2, j + 3] = a20, a21, a22, a23
    out[i + 3, j], out[i + 3, j + 1], out[i + 3, j + 2], out[i + 3, j + 3] = a30, a31, a32, a33


@loop
def _row_products(X, Y, first, last, lower, out):
    """Compute rows `first` to `last` of X Y', of a symmetric product only the tiles below the diagonal."""
    n, m = len(X), len(Y)
    if n < 4 or m < 4:
        for i in range(first, last):
            for j in range(m):
                out[i, j] = 0.0
                for t in range(X.shape[1]):
                    out[i, j] += X[i, t] * Y[j, t]
        return
    # The last tile of an odd size overlaps the one before.
    for j in range(0, min(m, last + 3) if lower else m, 4):
        for i in range(first, last, 4):
            if not lower or j <= i + 3:
                _tile(X, Y, min(i, n - 4), min(j, m - 4), out)


@loop
def _mirror(out):
    """Copy what lies below the diagonal above it, in squares that fit the cache."""
    M = len(out)
    for top in range(0, M, 32):
        for left in range(0, top + 1, 32):
            for j in range(left, min(left + 32, M)):
                for i in range(max(top, j + 1), min(top + 32, M)):
                    out[j, i] = out[i, j]


def _multiplied(X: Floats, Y: Floats, lower: bool = False) -> Floats:
    """Return X Y', computed on all cores if the product is large.

    BLAS is not used then: its threads spin while they wait for each other, which took 100 times longer where other
    processes used the cores. Ours share nothing, and take stripes of rows as they come.
    """
    if X.size * len(Y) <= MAX_BLAS_PRODUCTS:
        return X @ Y.T
    out = np.empty((len(X), len(Y)))
    n_stripes = -(-len(X) // STRIPE_ROWS)

    def task(i: int) -> None:
        first = STRIPE_ROWS * (n_stripes - 1 - i)  # of a symmetric product the last ones are the longest
        _row_products(X, Y, first, min(first + STRIPE_ROWS, len(X)), lower, out)

    share(task, n_stripes, n_threads() if n_stripes > 5 else 1)
    return out


@loop
def _common_row(B, scale, row, votes):
    """Find, per column, the number that more than half of the scaled rows have; 0 if there is none.

    First the majority vote of Boyer and Moore, then scales by which rows agree with it, then a count of those that do.
    """
    n, m = len(B), u64(B.shape[1])
    for i in range(n):
        numbers, to = B[i], scale[i]
        for j in range(m):
            x = numbers[j] * to
            same = abs(x - row[j]) <= EQUAL_WITHIN * row[j]
            row[j] = x if votes[j] == 0 else row[j]
            votes[j] += 1 if same or votes[j] == 0 else -1
    for j in range(m):
        votes[j] = 0
    for i in range(n):
        numbers, at, most = B[i], u64(0), 0.0
        for j in range(m):
            if row[j] > 0.0 and numbers[j] > most:
                at, most = j, numbers[j]  # type: ignore[assignment]
        if most * scale[i] > 0.001:  # next to the largest of its row, so that no product overflows
            scale[i] = row[at] / most
        to = scale[i]
        for j in range(m):
            votes[j] += abs(numbers[j] * to - row[j]) <= EQUAL_WITHIN * row[j]
    for j in range(m):
        row[j] = row[j] if 2 * votes[j] > n else 0.0


@loop
def _differences(B, scale, row, starts, columns, values):
    """Store the differences of scaled rows from the common one, compressed; only their lengths if there is no room."""
    n, m, at = len(B), u64(B.shape[1]), 0
    for i in range(n):
        starts[i] = at
        for j in range(m):
            x = B[i, j] * scale[i]
            if abs(x - row[j]) > EQUAL_WITHIN * row[j]:
                if at < len(columns):
                    columns[at], values[at] = j, x - row[j]
                at += 1
    starts[n] = at


@summing
def _sparse_products(starts, columns, values, X, low, high, first, out):
    """Compute columns `low` to `high` of V X, for the compressed rows V from `first` on, as rows of `out`."""
    n, width, sums = len(starts) - 1, u64(high - low), np.empty((PANEL_ROWS, PANEL_COLUMNS))
    for top in range(first, n, PANEL_ROWS):
        rows = min(PANEL_ROWS, n - top)
        for r in range(rows):
            total = sums[r]
            for c in range(u64(PANEL_COLUMNS)):
                total[c] = 0.0
            at, end = starts[top + r], starts[top + r + 1]
            while at + 4 <= end:
                v0, v1, v2, v3 = values[at], values[at + 1], values[at + 2], values[at + 3]
                x0, x1 = X[columns[at]][low:high], X[columns[at + 1]][low:high]
                x2, x3 = X[columns[at + 2]][low:high], X[columns[at + 3]][low:high]
                for c in range(width):
                    total[c] += (v0 * x0[c] + v1 * x1[c]) + (v2 * x2[c] + v3 * x3[c])
                at += 4
            while at < end:
                value, x = values[at], X[columns[at]][low:high]
                for c in range(width):
                    total[c] += value * x[c]
                at += 1
        for c in range(width):
            to = out[u64(low) + c]
            for r in range(u64(rows)):
                to[u64(top) + r] = sums[r, c]


@loop
def _framed(P, scale, framed, out):
    """Add the common row's part to P, whose upper half is given, and scale by rows, in squares that fit the cache."""
    M = len(out)
    for top in range(0, M, 32):
        for left in range(0, top + 1, 32):
            for i in range(top, min(top + 32, M)):
                for j in range(left, min(left + 32, i + 1)):
                    x = P[j, i]
                    if framed:
                        x += (P[i, M] + P[j, M]) + P[M, M]
                    out[i, j] = out[j, i] = scale[i] * scale[j] * x


def _sparse_sandwich(B: Floats, S: Floats) -> Floats | None:
    """Return B S B' if most entries of B are zero, or equal in most rows up to one factor per row; else None.

    B = R (1 b' + V) for a diagonal R, a common row b and a sparse V. A client that most rows leave out is not in b, so
    a giant takes no digits from the rows without it.
    """
    n, largest = len(B), B.max(axis=1)
    scale = 1 / np.where(largest > 0, largest, 1.0)
    row, starts = np.zeros(B.shape[1]), np.empty(n + 2, np.int64)
    _common_row(B, scale, row, np.zeros(B.shape[1], np.int64))
    _differences(B, scale, row, starts[:-1], np.empty(0, np.int64), np.empty(0))
    count, common = int(starts[n]), np.flatnonzero(row)
    if count > MAX_SPARSE_SHARE * B.size:
        return None
    columns, values = np.empty(count + len(common), np.int64), np.empty(count + len(common))
    _differences(B, scale, row, starts[:-1], columns, values)
    columns[count:], values[count:] = common, row[common]
    starts[n + 1] = len(columns)
    if not len(common):
        starts = starts[:-1]
    rows = len(starts) - 1

    def multiplied(X: Floats, lower: bool) -> Floats:
        out = np.empty((X.shape[1], rows))

        def task(i: int) -> None:
            low = PANEL_COLUMNS * i
            high = min(low + PANEL_COLUMNS, X.shape[1])
            _sparse_products(starts, columns, values, X, low, high, low if lower else 0, out)

        share(task, -(-X.shape[1] // PANEL_COLUMNS), n_threads())
        return out

    out = np.empty((n, n))
    _framed(multiplied(multiplied(S, False), True), 1 / scale, len(common) > 0, out)
    return out


def sandwich(B: Floats, S: Floats) -> Floats:
    """Return B S B' for a symmetric S, symmetric to the last bit."""
    if B.size * len(S) > MAX_BLAS_PRODUCTS:
        sparse = _sparse_sandwich(B, S)
        if sparse is not None:
            return sparse
    out = _multiplied(_multiplied(B, S), B, lower=True)
    _mirror(out)
    return out


@part
def _covariance_times(inner, weights, x, shifted, out):
    """Write inner products of the points, about their weighted mean, times x to `out`."""
    M, total, mean = len(x), 0.0, 0.0
    for i in range(M):
        total += x[i]
    for i in range(M):
        shifted[i] = x[i] - weights[i] * total
    _times(inner, shifted, out)
    for i in range(M):
        mean += weights[i] * out[i]
    for i in range(M):
        out[i] -= mean


@part
def _top_of_tridiagonal(a, b, n, low, pivots, s):
    """Return the largest eigenvalue of a tridiagonal matrix, at least `low`, and write its eigenvector to `s`."""
    high = low
    for i in range(n):
        high = max(high, a[i] + (b[i - 1] if i > 0 else 0.0) + (b[i] if i + 1 < n else 0.0))
    high += 1e-15 * high
    while high - low > 1e-15 * high:  # bisection: all pivots are negative above the largest eigenvalue alone
        x = low + (high - low) / 2.0
        d = a[0] - x
        for i in range(1, n):
            if not d < 0.0:
                break
            d = a[i] - x - b[i - 1] * b[i - 1] / d
        if x <= low or x >= high:
            break
        low, high = (low, x) if d < 0.0 else (x, high)
    pivots[0] = a[0] - high
    for i in range(1, n):
        pivots[i] = a[i] - high - b[i - 1] * b[i - 1] / pivots[i - 1]
    for i in range(n):
        s[i] = 1.0
    for _ in range(3):  # inverse iteration
        for i in range(1, n):
            s[i] -= b[i - 1] / pivots[i - 1] * s[i - 1]
        s[n - 1] /= pivots[n - 1]
        for i in range(n - 2, -1, -1):
            s[i] = (s[i] - b[i] * s[i + 1]) / pivots[i]
        length = np.sqrt(_dot(s, s, n))
        for i in range(n):
            s[i] /= length
    return high


@loop
def principal_direction(inner, weights, tolerance, out):
    """Return the top eigenvalue of the weighted covariance; write the points' coordinates along its eigenvector.

    Lanczos's iteration with full orthogonalisation: the other eigenvectors, which take LAPACK most of its time, are not
    computed. It ends once the residual is at most `tolerance` times the eigenvalue.
    """
    M = len(weights)
    Q, a, b = np.empty((M + 1, M)), np.empty(M), np.empty(M)
    pivots, s, x, shifted, root = np.empty(M), np.empty(M), np.empty(M), np.empty(M), np.sqrt(weights)
    seed = np.uint32(1)
    for i in range(M):
        seed = np.uint32(seed * np.uint32(1664525) + np.uint32(1013904223))
        Q[0, i] = root[i] * (np.float64(seed) / 2.0**32 - 0.5)
    length, top, check, unit = np.sqrt(_dot(Q[0], Q[0], M)), 0.0, 8, 0.0
    for i in range(M):
        Q[0, i] /= length
    n = 0
    while n < M:
        q, after = Q[n], Q[n + 1]
        for i in range(M):
            x[i] = root[i] * q[i]
        _covariance_times(inner, weights, x, shifted, after)
        if n == 0:  # a power of two, so that no square underflows
            for i in range(M):
                unit = max(unit, abs(after[i]))
            if not unit > 0.0:
                return 0.0
            unit = 2.0 ** np.floor(np.log2(unit))
        for i in range(M):
            after[i] *= root[i] / unit
        a[n] = _dot(q, after, M)
        for _ in range(2):
            for k in range(n, -1, -1):
                along = _dot(Q[k], after, M)
                for i in range(u64(M)):
                    after[i] -= along * Q[k, i]
        b[n] = np.sqrt(_dot(after, after, M))
        n += 1
        last = n == M or not b[n - 1] > 1e-14 * a[:n].max()
        if n == check or last:
            top, check = _top_of_tridiagonal(a, b, n, max(top, a[:n].max(), 0.0), pivots, s), n + max(4, n // 4)
            if last or b[n - 1] * abs(s[n - 1]) <= tolerance * top:
                break
        for i in range(u64(M)):
            after[i] /= b[n - 1]
    if not top > 0.0:
        return 0.0
    top *= unit
    for i in range(M):
        x[i] = 0.0
    for k in range(n):
        for i in range(u64(M)):
            x[i] += s[k] * Q[k, i]
    for i in range(M):
        x[i] *= root[i]
    _covariance_times(inner, weights, x, shifted, out)
    for i in range(M):
        out[i] /= np.sqrt(top)
    return top
