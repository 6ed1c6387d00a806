"""The loops between the Gram matrix and the weights, in numba: M x M numbers, one thread, a few passes.

What each computes is said where it is called, in `geometry` and the rules, and once more in NumPy in
`tests/definitions.py`; here is only how. All of it decides between clients, so nothing is reordered except sums that
carry a bound of their error. The kernels stand in one file: numba's cache looks only at the file a kernel stands in.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba import uint64 as u64

from bartizan.types import Array, Floats

# Reordering sums is all we allow.
SUMS = {"reassoc", "contract", "nsz"}


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def _distances(inner, out):
    """One pass for the distances and the medoid: a row's median is sought only if enough of it lies below the least."""
    M = u64(len(out))
    squares, row = np.empty(M), np.empty(M)
    for i in range(M):
        squares[i] = inner[i, i]
    medoid, least = u64(0), np.inf
    for i in range(M):
        products, own = inner[i], squares[i]
        below = 0
        for j in range(M):
            d = squares[j] + own - 2.0 * products[j]
            d = d if d > 0.0 else 0.0
            row[j] = d
            below += d < least
        out[i] = row
        if below >= (M + u64(1)) // u64(2):
            median = _median(row)
            if median < least:
                medoid, least = i, median
    return medoid, least


def distances(inner: Floats, n_clients: int) -> tuple[Floats, int, float]:
    """Squared distances of the first `n_clients` points, the medoid among them, and its median squared distance."""
    out = np.empty((n_clients, n_clients))
    medoid, least = _distances(inner, out)
    return out, int(medoid), float(least)


@njit(cache=True)
def _recentred(gram, centre, n_clients, out):
    M, N = u64(n_clients), u64(len(gram))
    about = gram[centre].copy()
    own = about[centre]
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


@njit(cache=True, fastmath=SUMS)
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


@njit(cache=True)
def _nearest(D, n, sizes, out):
    M = u64(len(D))
    scratch = np.empty(M)
    for i in range(M):
        row, to = D[i], out[i]
        for j in range(M):
            scratch[j] = row[j]
        farthest = _select(scratch, n - 1)
        total, room = sizes[i], n - 1
        for j in range(M):
            closer = row[j] < farthest and j != i
            to[j] = sizes[j] if closer else 0.0
            total += to[j]
            room -= closer
        for j in range(M):
            if room == 0:
                break
            if row[j] == farthest and j != i:
                to[j] = sizes[j]
                total += sizes[j]
                room -= 1
        to[i] = sizes[i]
        for j in range(M):
            to[j] /= total


def nearest(D: Floats, n: int, sizes: Floats) -> Floats:
    """The shares of each client's n nearest by their sizes: itself first, then by distance, ties to the lower index."""
    out = np.empty_like(D)
    _nearest(D, n, sizes, out)
    return out


@njit(cache=True, fastmath=SUMS)
def _dot(x, y, n):
    total = 0.0
    for i in range(u64(n)):
        total += x[i] * y[i]
    return total


@njit(cache=True)
def _times(C, w, out):
    for i in range(len(w)):
        out[i] = _dot(C[i], w, len(w))


@njit(cache=True, fastmath=SUMS)
def _least_summed_distance(D, shares):
    best, least = u64(0), np.inf
    for i in range(u64(len(D))):
        row, total = D[i], 0.0
        for j in range(u64(len(row))):
            total += np.sqrt(row[j]) * shares[j]
        if total < least:
            best, least = i, total
    return best


@njit(cache=True)
def _weiszfeld(C, D, shares, tolerance, max_steps):
    M = len(shares)
    w, Cw, step, Cstep = np.zeros(M), np.empty(M), np.empty(M), np.empty(M)
    distances, scratch, here = np.empty(M), np.empty(M), np.empty(M, np.bool_)
    start = _least_summed_distance(D, shares)
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


def weiszfeld(inner: Floats, D: Floats, shares: Floats, tolerance: float, max_steps: int) -> Floats:
    """Weights of the geometric median; a step's length comes from the products that the next step needs anyway."""
    return _weiszfeld(inner, D, shares, tolerance, max_steps)


@njit(cache=True)
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


def correntropy(
    inner: Floats, start: int, shares: Floats, width: float, tolerance: float, max_steps: int
) -> Floats:
    """Weights of the fixed point that the Gaussian kernel reaches from client `start`."""
    return _correntropy(inner, start, shares, width, tolerance, max_steps)


@njit(cache=True)
def _plus(high, low, x):
    """A sum in twice the digits, `high` + `low`, and x: `high` is the sum rounded once, whatever the order."""
    s = high + x
    part = s - high
    low += (high - (s - part)) + (x - part)
    high = s + low
    return high, low - (high - s)


@njit(cache=True)
def _pack(D, mask, keys):
    for i in range(u64(len(D))):
        bits, to = D[i].view(np.int64), keys[i]
        for j in range(u64(len(to))):
            to[j] = (bits[j] & ~mask) | np.int64(j)


@njit(cache=True)
def _unpack(D, keys, mask, unsure):
    """From keys to clients, and whose distances the keys had too few digits to tell apart."""
    for i in range(u64(len(D))):
        row, order, before = D[i], keys[i], -1.0
        for at in range(u64(len(row))):
            order[at] &= mask
            d = row[order[at]]
            unsure[i] |= d < before
            before = d


def by_distance(D: Floats) -> Array:
    """Each row's clients by their distance, ties to the lower index.

    Sorted by keys, the distance's bits with the index in the last of them: NumPy sorts numbers much faster than it
    sorts indices. Where those last bits mattered, it sorts indices.
    """
    mask = (1 << len(D).bit_length()) - 1
    keys, unsure = np.empty(D.shape, np.int64), np.zeros(len(D), np.bool_)
    _pack(D, mask, keys)
    keys.sort(axis=1)
    _unpack(D, keys, mask, unsure)
    if unsure.any():
        keys[unsure] = np.argsort(D[unsure], axis=1, kind="stable")
    return keys


@njit(cache=True)
def _counted(remaining, f):
    """How many neighbours count in Bulyan's Krum among those that remain, and the client itself."""
    return min(max(remaining - f - 2, f, 1), remaining - 1) + 1


@njit(cache=True)
def _repeated_krum(D, order, f, selected):
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
        left[chosen] = False
        n_left, best = 0, -1
        fewer = _counted(M - s - 1, f)
        for i in alive[: M - s]:
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
    """Who is selected, in turn: scores are running sums in twice the digits, so O(M^2) once each row is sorted.

    What a giant added to a sum it takes digits away from for good: one that has shrunk by 2^30 is taken anew.
    """
    selected = np.empty(n_selected, np.int64)
    _repeated_krum(D, by_distance(D), f, selected)
    return selected
