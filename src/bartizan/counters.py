"""Integer entries, such as how many batches a layer has seen: no sum of clients makes sense of them, a median does."""

from __future__ import annotations

import numpy as np

from bartizan.types import Array, Floats


def weighted_median(values: Array, weights: Floats) -> Array:
    """Down each column the smallest value that half of the weight does not exceed; all alike where none has weight."""
    weights = weights if weights.sum() > 0 else np.ones(len(values))
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 * (1 - 1e-12)
    return np.take_along_axis(values, np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0), axis=0)[0]
