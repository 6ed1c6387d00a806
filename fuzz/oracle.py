"""The definitions, in NumPy and float64 on the clean clients alone: what the library's answers are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import bartizan as bz
from bartizan.geometry import Geometry
from bartizan.rules.base import Decision
from bartizan.rules.coordinatewise import CoordinateWise, Median, TrimmedMean
from fuzz.surface import require

DIGITS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-9}
SMALLEST = {"float16": 1e-7, "bfloat16": 1e-38, "float32": 1e-38, "float64": 0.0}


@dataclass(frozen=True)
class Kept:
    """The clients who took part, in float64, and how they were looked at."""

    x: np.ndarray
    sizes: np.ndarray
    dtype: str
    sketch: Any = bz.Exact()
    seed: int = 0
    reference: np.ndarray | None = None
    trusted: np.ndarray | None = None
    turns: tuple[int, ...] = (0,)
    """How many of the last columns the library may read first: entries have the order that most clients gave them."""

    @property
    def tolerance(self) -> np.ndarray:
        """Rounding of each coordinate of the answer."""
        largest = np.abs(self.x).max(axis=0)
        if self.reference is not None:
            largest = np.maximum(largest, np.abs(self.reference))
        return DIGITS[self.dtype] * largest + SMALLEST[self.dtype]

    def decision(self, rule: Any, noise: np.ndarray | float = 0.0, turned: int = 0) -> Decision:
        """What the rule makes of the geometry of their sketches alone, taken by a call of the sketch."""
        rows = self.x if self.trusted is None else np.vstack([self.x, self.trusted])
        rows = rows if self.reference is None else rows - self.reference
        rows = rows + noise * np.abs(rows).max()
        read = np.roll(rows, turned, axis=1)
        seen = read if isinstance(self.sketch, bz.Exact) else self.sketch(read, seed=self.seed)
        M = len(self.x)
        geometry = Geometry.of(
            seen[:M], sizes=self.sizes, seed=self.seed, trusted=None if self.trusted is None else seen[M]
        )
        # Norms, and what a trusted update has in common with each, are exact under a projection, too.
        dots = None if self.trusted is None else rows @ rows[M]
        geometry = replace(geometry, exact_squared_norms=(rows[:M] ** 2).sum(axis=1), trusted_dots=dots)
        return rule.decide(geometry)  # type: ignore[no-any-return]

    def agrees(self, rule: Any, weights: np.ndarray, out: np.ndarray) -> bool:
        """Whether these are the rule's weights, and this is what they make of the clients."""
        return any(self._agrees(rule, weights, out, turned) for turned in self.turns)

    def _agrees(self, rule: Any, weights: np.ndarray, out: np.ndarray, turned: int) -> bool:
        found = self.decision(rule, turned=turned)
        if self._like(found, weights, out, 1e-7):
            return True
        # Near a tie, or where few digits are left, rounding decides: by so much as it moves the oracle itself.
        # Narrow rows are mixed by a projection, and parted from a reference, in float32.
        exact = isinstance(self.sketch, bz.Exact)
        size = 1e-6 if not exact else 1e-12 if self.reference is None else 1e-7
        size = 1e-12 if self.dtype == "float64" else size
        rows = len(self.x) + (self.trusted is not None)
        rng = np.random.default_rng(0)
        others = [self.decision(rule, size * rng.normal(size=(rows, self.x.shape[1])), turned) for _ in range(6)]
        spread = max(float(np.abs(other.weights - found.weights).max()) for other in others)
        return spread > 1e-3 or self._like(found, weights, out, 1e-7 + 10 * spread)

    def _like(self, found: Decision, weights: np.ndarray, out: np.ndarray, apart: float) -> bool:
        if np.abs(weights - found.weights).max() > apart:
            return False
        if found.coordinate_stage is None:
            return True
        mixed = found.coordinate_stage.mixing @ self.x
        if self.reference is not None:
            mixed += np.outer(1 - found.coordinate_stage.mixing.sum(axis=1), self.reference)
        more = apart * np.ptp(self.x, axis=0) if apart > 1e-6 else 0.0
        return bool((np.abs(found.coordinate_stage.reduce(mixed) - out) <= self.tolerance + more).all())


def check(rule: Any, kept: Kept, out: np.ndarray, weights: Any) -> None:
    """`out` is what this rule makes of those who were kept, by its definition where that is short enough to be here."""
    x, sizes, tolerance = kept.x, kept.sizes, kept.tolerance
    require(np.isfinite(out).all(), "the result is not finite where all that took part are")
    if weights is not None:
        require(weights.min() >= 0 and weights.sum() < 1 + 1e-9, f"weights {weights} are no shares of 1")
        require(kept.agrees(rule, weights, out), f"{type(rule).__name__}: not the weights of the clients' geometry")
        if not finishes_by_coordinate(rule):
            rest = 0.0 if kept.reference is None else (1 - weights.sum()) * kept.reference
            gap = np.abs(weights @ x + rest - out)
            require((gap <= tolerance).all(), "the update is not what the weights make of the clients")
    exact = isinstance(kept.sketch, bz.Exact)
    if isinstance(rule, bz.Mean):
        require(np.allclose(weights, sizes / sizes.sum(), rtol=1e-12), "the mean's weights are not the sizes' shares")
    elif isinstance(rule, CoordinateWise):
        require(
            (np.abs(by_coordinate(rule, x, sizes) - out) <= tolerance).all(), f"not the {rule!r} of each coordinate"
        )
    elif exact and type(rule) is bz.Krum:
        scores = krum_scores(x, rule.n_byzantine)
        chosen = int(weights.argmax())
        require(weights[chosen] == 1.0, "Krum trusts one client")
        require(scores[chosen] <= scores.min() + slack(x), "Krum chose one whose score is not the least")
    elif exact and type(rule) is bz.MultiKrum:
        scores, chosen = krum_scores(x, rule.n_byzantine), weights > 0
        require(chosen.sum() == (rule.n_selected or len(x) - rule.n_byzantine), "MultiKrum trusts as many as it says")
        require(np.allclose(weights[chosen], sizes[chosen] / sizes[chosen].sum()), "MultiKrum's weights are no shares")
        worst = scores[chosen].max()
        require(worst <= np.sort(scores)[chosen.sum() - 1] + slack(x), "MultiKrum chose one whose score is too large")
    elif isinstance(rule, bz.CGE):  # which takes exact norms under a projection, too
        y = x if kept.reference is None else x - kept.reference
        norms, chosen = np.sqrt((y**2).sum(axis=1)), weights > 0
        require(chosen.sum() == len(x) - rule.n_byzantine, "CGE trusts as many as it says")
        shortest = np.sort(norms)[chosen.sum() - 1]
        require(norms[chosen].max() <= shortest + 1e-5 * norms.max(), "CGE chose one that is too long")
    elif exact and isinstance(rule, bz.GeometricMedian):
        require(no_better(x, sizes / sizes.sum(), weights), "there is a better geometric median than the answer")


def finishes_by_coordinate(rule: Any) -> bool:
    """Whether the answer is no weighted sum of the clients."""
    return bool(getattr(rule, "trim", False)) or isinstance(getattr(rule, "rule", None), CoordinateWise)


def by_coordinate(rule: Any, x: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    if isinstance(rule, Median):
        return median(x, sizes)
    f, M = rule.n_byzantine, len(x)
    if isinstance(rule, TrimmedMean):
        order = np.argsort(x, axis=0, kind="stable")[f : M - f]
    else:  # MeaMed: those nearest to the median
        order = np.argsort(np.abs(x - median(x, sizes)), axis=0, kind="stable")[: M - f]
    return (np.take_along_axis(x, order, axis=0) * sizes[order]).sum(axis=0) / sizes[order].sum(axis=0)


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
