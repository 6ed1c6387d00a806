"""Sorting networks, reduced to the comparators that the wanted order statistics need."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from bartizan._util.types import Array

MEDIAN, TRIMMED_MEAN, MEAMED = 0, 1, 2
"""Reductions of the values of a column."""
BOTH, LEAST, LARGEST = 0, 1, 2
"""Outputs of a comparator (i, j, kind): the smaller of its two values to row i, the larger to row j, or only one."""
GROUP_ROWS = 128  # that are sorted by themselves before they are merged with others: they fit the first cache

_EXACT, _SUMMED, _UNUSED = 0, 1, 2  # how a rank is used: as it is; as one of a set that is added up; not at all


@lru_cache(maxsize=32)
def comparators(kind: int, M: int, f: int, by_sizes: bool = False) -> Array:
    """Return comparators (i, j, which outputs are needed), (n, 3), that sort the ranks which a reduction reads.

    The median reads the one or two middle ranks; the trimmed mean adds up ranks f to M - f; MeaMed too, and reads the
    others and the middle ones. By sizes, the middle may be anywhere, and the median and MeaMed read all ranks.
    """
    middle = range((M - 1) // 2, M // 2 + 1)
    if kind == TRIMMED_MEAN:
        return _needed(M, range(f, M - f))
    if by_sizes:
        return _needed(M, range(0), range(M))
    if kind == MEDIAN:
        return _needed(M, middle)
    return _needed(M, range(f, M - f), range(f), middle, range(M - f, M))


def _needed(M: int, summed: range, *exact: range) -> Array:
    """Return the comparators of Batcher's network that matter if these ranks are added up, and the `exact` ones read.

    From the last to the first: one that orders two unused values, or two that are added up anyway, is left out.
    """
    use = np.full(M, _UNUSED, dtype=np.int8)
    use[summed.start : summed.stop] = _SUMMED
    for ranks in exact:
        use[ranks.start : ranks.stop] = _EXACT
    kept = [np.empty((0, 4), dtype=np.int32)]
    for i, j, merged in reversed(_batcher(M)):
        matters = (use[i] != use[j]) | (use[i] == _EXACT)
        i, j = i[matters], j[matters]
        kind = np.where(use[j] == _UNUSED, LEAST, np.where(use[i] == _UNUSED, LARGEST, BOTH))
        use[i] = use[j] = _EXACT
        size = max(merged, GROUP_ROWS)
        kept.append(np.stack([i, j, kind, i // size * size + size], axis=1).astype(np.int32))
    comparators = np.concatenate(kept[::-1])
    # Merges of different rows commute. One that ends further up comes later, so each follows those of its own rows.
    comparators = comparators[np.argsort(comparators[:, 3], kind="stable"), :3].copy()
    comparators.flags.writeable = False
    return comparators


def _batcher(M: int) -> list[tuple[Array, Array, int]]:
    """Return Batcher's odd-even merge sort (Knuth, volume 3, section 5.2.2): steps of comparators that share no row.

    A step is part of a merge of `merged` rows. The network of the next power of two, without comparators beyond row M:
    the rows there would hold infinity, which stays where it is.
    """
    steps, p = [], 1
    while p < M:
        k = p
        while k:
            i = (np.arange(k % p, M - k, 2 * k)[:, None] + np.arange(k)).ravel()
            i = i[(i // (2 * p) == (i + k) // (2 * p)) & (i + k < M)]
            steps.append((i, i + k, 2 * p))
            k //= 2
        p *= 2
    return steps
