"""Aggregate integer entries, such as a layer's batch counter, by their weighted median."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.updates.layout import Entry, Path, on_host

WIDTH = 4096  # values of an entry that are sorted at a time


def medians(entries: Sequence[Entry], rows: Sequence[Sequence[Array]], weights: Floats) -> dict[Path, Array]:
    """The weighted median of the rows for each entry, as flat arrays."""
    out = {}
    for i, entry in enumerate(entries):
        arrays = [np.asarray(on_host(row[i])).reshape(-1) for row in rows]
        out[entry.path] = np.empty(entry.size, arrays[0].dtype)
        for low in range(0, entry.size, WIDTH):
            columns = np.stack([array[low : low + WIDTH] for array in arrays])
            out[entry.path][low : low + WIDTH] = weighted_median(columns, weights)
    return out


def weighted_median(values: Array, weights: Floats) -> Array:
    """The weighted lower median of each column; equal weights where all are 0."""
    weights = weights if weights.sum() > 0 else np.ones(len(values))
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 * (1 - 1e-12)
    return np.take_along_axis(values, np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0), axis=0)[0]
