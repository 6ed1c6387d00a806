"""The loops between the Gram matrix and the weights, in numba: M x M numbers, a few passes.

What each computes is said in `weigh_reference`; here is only how. They decide between clients, so nothing is reordered
but sums whose rounding decides nothing. Each file of kernels stands alone: numba's cache looks at no other.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np
from numba import njit
from numba import uint64 as u64

from bartizan._util.threads import n_threads, share
from bartizan._util.types import Floats

# Reordering sums is all we allow.
SUMS = {"reassoc", "contract", "nsz"}
# Clients from which on it pays to wake other threads.
MANY = 512
# No division here is by zero, and none is checked for it.
loop = njit(cache=True, nogil=True, error_model="numpy")
summing = njit(cache=True, error_model="numpy", fastmath=SUMS)


@loop
def _select(x, k):
    """The k-th smallest of x, which is left with nothing larger before it and nothing smaller behind it."""
    low, high = 0, len(x) - 1
    while low < high:
        a, b, c = x[low], x[(low + high) >> 1], x[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while x[i] < pivot:
                i += 1
            while x[j] > pivot:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return x[k]


@loop
def _median(x):
    """The median of x, which is left in another order."""
    k = len(x) // 2
    upper = _select(x, k)
    if len(x) % 2:
        return upper
    lower = x[0]
    for i in range(1, k):
        lower = max(lower, x[i])
    return (lower + upper) / 2


@loop
def _distances(inner, first, last, out):
    """One pass over rows for their distances and the medoid among them: a row's median is sought only if enough of it
    lies below the least so far.
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
            to[j] = row[j] = d
            below += d < least
        if below >= (M + 1) // 2:
            median = _median(row)
            if median < least:
                medoid, least = i, median
    return medoid, least


def distances(inner: Floats, n_clients: int) -> tuple[Floats, int, float]:
    """Squared distances of the first `n_clients` points, the medoid among them, and its median squared distance."""
    out = np.empty((n_clients, n_clients))
    parts = 1 if n_clients < MANY else n_threads()
    found = [(0, np.inf)] * parts

    def task(part: int) -> None:
        found[part] = _distances(inner, n_clients * part // parts, n_clients * (part + 1) // parts, out)

    share(task, parts, parts)
    medoid, least = min(found, key=itemgetter(1))  # the first, if several are as near
    return out, int(medoid), float(least)


@loop
def _recentred(gram, centre, n_clients, out):
    M, N = u64(n_clients), u64(len(gram))
    about, own = gram[centre], gram[centre, centre]
    for i in range(N):
        row, to = gram[i], out[i + u64(i >= M)]
        a = about[i]
        # Of clients with a large common part each difference is exact; both orders, so that it is symmetric.
        for j in range(M):
            to[j] = (((row[j] - about[j]) + (own - a)) + ((row[j] - a) + (own - about[j]))) / 2.0
        for j in range(M, N):
            to[j + u64(1)] = (((row[j] - about[j]) + (own - a)) + ((row[j] - a) + (own - about[j]))) / 2.0
        to[M] = own - a
        out[M, i + u64(i >= M)] = own - a
    out[M, M] = own


def recentred(gram: Floats, centre: int, n_clients: int) -> Floats:
    """Inner products about row `centre`, with the origin as the row after the clients."""
    out = np.empty((len(gram) + 1, len(gram) + 1))
    _recentred(gram, centre, n_clients, out)
    return out


@summing
def _capped_sums(D, cap, out):
    for i in range(u64(len(D))):
        row, total = D[i], 0.0
        for j in range(u64(len(row))):
            total += min(row[j], cap)
        out[i] = total


def capped_sums(D: Floats, cap: float) -> Floats:
    """Each row's sum of min(d, cap)."""
    out = np.empty(len(D))
    _capped_sums(D, cap, out)
    return out


@summing
def _nearest(D, border, n, sizes, out):
    M = len(D)
    for i in range(M):
        row, to, last = D[i], out[i], border[i]
        near = 0
        for j in range(u64(M)):
            to[j] = sizes[j] if row[j] <= last else 0.0
            near += row[j] <= last
        j = M
        while near > n:  # several at the border: the last of them have no place, the client itself always has
            j -= 1
            if row[j] == last and j != i:
                to[j] = 0.0
                near -= 1
        total = 0.0
        for j in range(u64(M)):
            total += to[j]
        for j in range(u64(M)):
            to[j] /= total


def nearest(D: Floats, n: int, sizes: Floats) -> Floats:
    """The shares of each client's n nearest by their sizes: itself first, then by distance, ties to the lower index."""
    out = np.empty_like(D)
    _nearest(D, np.partition(D, n - 1, axis=1)[:, n - 1].copy(), n, sizes, out)
    return out


@summing
def _dot(x, y, n):
    total = 0.0
    for i in range(u64(n)):
        total += x[i] * y[i]
    return total


@loop
def _times(C, w, out):
    for i in range(len(w)):
        out[i] = _dot(C[i], w, len(w))


@summing
def _distance_sums(C, D, shares, pivot, out):
    """Each client's distances to all, by shares, less those of the pivot; of a pair the root is taken once.

    The difference of two distances is that of their squares over their sum: no client's own length is left in it, so a
    giant takes no digits from the others.
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


@loop
def _weiszfeld(C, D, pivot, shares, tolerance, max_steps):
    M = len(shares)
    w, Cw, step, Cstep = np.zeros(M), np.empty(M), np.empty(M), np.empty(M)
    distances, scratch, here = np.empty(M), np.empty(M), np.empty(M, np.bool_)
    _distance_sums(C, D, shares, pivot, scratch)
    start = 0
    for i in range(M):
        start = i if scratch[i] < scratch[start] else start
    w[start] = 1.0
    for i in range(M):
        Cw[i] = C[start, i]
    for _ in range(max_steps):
        square = _dot(w, Cw, M)
        for i in range(M):
            distances[i] = np.sqrt(max(C[i, i] - 2.0 * Cw[i] + square, 0.0))
            scratch[i] = distances[i]
        scale = _median(scratch)
        pull = met = 0.0
        for i in range(M):
            here[i] = distances[i] <= 1e-8 * scale
            if here[i]:
                step[i] = 0.0
                met += shares[i]
            else:
                step[i] = shares[i] / distances[i]
                pull += step[i]
        if pull == 0.0:
            for i in range(M):
                w[i] = shares[i] / met if here[i] else 0.0
            return w
        if met > 0.0:
            for i in range(M):
                scratch[i] = step[i] - (pull * shares[i] / met if here[i] else 0.0)
            _times(C, scratch, Cstep)
            force = np.sqrt(max(_dot(scratch, Cstep, M), 0.0))
            stay = min(1.0, met / force) if force > 0.0 else 1.0
            for i in range(M):
                step[i] = stay * shares[i] / met if here[i] else (1.0 - stay) * step[i] / pull
        else:
            for i in range(M):
                step[i] /= pull
        _times(C, step, Cstep)
        moved = 0.0
        for i in range(M):
            moved += (step[i] - w[i]) * (Cstep[i] - Cw[i])
        w, step, Cw, Cstep = step, w, Cstep, Cw
        if np.sqrt(max(moved, 0.0)) <= tolerance * scale:
            break
    return w


def weiszfeld(inner: Floats, D: Floats, pivot: int, shares: Floats, tolerance: float, max_steps: int) -> Floats:
    """Weights of the geometric median, begun at the client of least summed distance; `pivot` is any client that is not
    far from most. A step's length comes from the products that the next step needs anyway.
    """
    return _weiszfeld(inner, D, pivot, shares, tolerance, max_steps)


@loop
def _correntropy(C, start, shares, width, tolerance, max_steps):
    M = len(shares)
    w, Cw, step, Cstep = np.zeros(M), np.empty(M), np.empty(M), np.empty(M)
    squares = np.empty(M)
    w[start] = 1.0
    for i in range(M):
        Cw[i] = C[start, i]
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
        _times(C, step, Cstep)
        moved = 0.0
        for i in range(M):
            moved += (step[i] - w[i]) * (Cstep[i] - Cw[i])
        w, step, Cw, Cstep = step, w, Cstep, Cw
        if np.sqrt(max(moved, 0.0)) <= tolerance * width:
            break
    return w


def correntropy(inner: Floats, start: int, shares: Floats, width: float, tolerance: float, max_steps: int) -> Floats:
    """Weights of the fixed point that the Gaussian kernel reaches from client `start`."""
    return _correntropy(inner, start, shares, width, tolerance, max_steps)
