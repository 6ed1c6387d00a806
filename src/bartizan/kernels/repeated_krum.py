"""Bulyan's selection in about M^2 steps, with the decisions of exact sums."""

from __future__ import annotations

import numpy as np
from numba import njit
from numba import uint64 as u64

from bartizan._util.types import Array, Floats


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
    """When one leaves, each other's sum loses it if it counted, and the farthest that counted if it did not."""
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
    """Who is selected, in turn: scores are running sums in twice the digits, so O(M^2) once each row is sorted.

    A giant that was once in a sum took digits from it: a sum that has shrunk by 2^30 is taken anew.
    """
    selected = np.empty(n_selected, np.int64)
    _repeated_krum(D, by_distance(D), f, selected)
    return selected
