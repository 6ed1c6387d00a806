"""The definitions, in NumPy and float64 on the clean clients alone: what the library's answers are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

import bartizan as bz
from fuzz.surface import require

DIGITS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-9}
SMALLEST = {"float16": 1e-7, "bfloat16": 1e-38, "float32": 1e-38, "float64": 0.0}


def check(rule: Any, x: np.ndarray, sizes: np.ndarray, out: np.ndarray, weights: Any, dtype: str, exact: bool) -> None:
    """`out` is what this rule makes of the rows of x; with a projection, what its weights make of them."""
    require(np.isfinite(out).all(), "the result is not finite where all that took part are")
    tolerance = DIGITS[dtype] * np.abs(x).max(axis=0) + SMALLEST[dtype]
    if weights is not None:
        require(weights.min() >= 0 and abs(weights.sum() - 1) < 1e-9, f"weights {weights} are no shares of 1")
        require(
            (np.abs(weights @ x - out) <= tolerance).all(), "the update is not what the weights make of the clients"
        )
    if isinstance(rule, bz.Mean):
        require(np.allclose(weights, sizes / sizes.sum(), rtol=1e-12), "the mean's weights are not the sizes' shares")
    elif isinstance(rule, bz.coordinatewise.Median):
        require((np.abs(median(x, sizes) - out) <= tolerance).all(), "not the median of each coordinate")
    elif isinstance(rule, bz.coordinatewise.TrimmedMean):
        f = rule.n_byzantine
        want = np.sort(x, axis=0)[f : len(x) - f].mean(axis=0)
        require((np.abs(want - out) <= tolerance).all(), "not the trimmed mean of each coordinate")
    elif exact and type(rule) is bz.Krum:
        scores = krum_scores(x, rule.n_byzantine)
        chosen = int(weights.argmax())
        require(weights[chosen] == 1.0, "Krum trusts one client")
        require(scores[chosen] <= scores.min() + slack(x), "Krum chose one whose score is not the least")
    elif exact and isinstance(rule, bz.GeometricMedian):
        require(no_better(x, sizes / sizes.sum(), weights), "there is a better geometric median than the answer")


def slack(x: np.ndarray) -> float:
    """Rounding of squared distances, whose digits an outlier eats."""
    return float(1e-9 * (x**2).sum(axis=1).max() * len(x))


def median(x: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Half of the sizes lie on either side, coordinate by coordinate: a loop, as the definition has it."""
    if (sizes == sizes[0]).all():
        return np.median(x, axis=0)
    found = np.empty(x.shape[1])
    for j, column in enumerate(x.T):
        order = np.argsort(column, kind="stable")
        below = np.cumsum(sizes[order]) / sizes.sum()
        low = order[np.searchsorted(below, 0.5 - 1e-12)]
        high = order[np.searchsorted(below, 0.5 + 1e-12)]
        found[j] = (column[low] + column[high]) / 2
    return found


def krum_scores(x: np.ndarray, f: int) -> np.ndarray:
    squared = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    return np.sort(squared, axis=1)[:, : len(x) - f - 1].sum(axis=1)


def no_better(x: np.ndarray, shares: np.ndarray, weights: np.ndarray) -> bool:
    """Convex: who is no worse than all clients, their mean, and small steps down the slope is the least."""
    x = x / max(np.abs(x).max(), 1e-300)
    z = weights @ x

    def cost(points: np.ndarray) -> np.ndarray:
        return np.sqrt(((x[None] - points[:, None]) ** 2).sum(axis=2)) @ shares

    away = np.sqrt(((x - z) ** 2).sum(axis=1))
    apart = away > 1e-9
    slope = ((shares / np.where(apart, away, 1.0) * apart)[:, None] * (z - x)).sum(axis=0)
    steps = z - np.array([1e-1, 1e-2, 1e-3])[:, None] * slope
    others = cost(np.concatenate([x, (shares @ x)[None], steps]))
    return bool(cost(z[None])[0] <= others.min() * (1 + 1e-6) + 1e-9)
