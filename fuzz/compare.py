"""Compare the library's results with the definitions, in float64 on the clients that took part."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import bartizan as bz
from bartizan.kernels import reference as definitions
from bartizan.measure.geometry import Geometry
from bartizan.rules.coordinatewise import CoordinateWise
from fuzz.surfaces import require
from tests.support import oracle

DIGITS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-9}
SMALLEST = {"float16": 1e-7, "bfloat16": 1e-38, "float32": 1e-38, "float64": 0.0}


@dataclass(frozen=True)
class TookPart:
    """The clients that took part, in float64, and how they were sketched."""

    x: np.ndarray
    sizes: np.ndarray
    dtype: str
    sketch: Any = bz.Exact()
    seed: int = 0
    reference: np.ndarray | None = None
    trusted: np.ndarray | None = None
    rolls: tuple[int, ...] = (0,)
    """How many of the last columns the library may read first: entries have the order that most clients sent."""

    @property
    def tolerance(self):
        """Rounding error of each coordinate of the result."""
        largest = np.abs(np.vstack([self.x, *([] if self.reference is None else [self.reference])])).max(axis=0)
        return DIGITS[self.dtype] * largest + SMALLEST[self.dtype]

    def decision(self, rule, noise=0.0, roll=0):
        """Return the rule's decision on the geometry of the sketched clients."""
        M, exact = len(self.x), isinstance(self.sketch, bz.Exact)
        rows = np.vstack([self.x, *([] if self.trusted is None else [self.trusted])])
        rows = rows if self.reference is None else rows - self.reference
        noisy = rows + noise * np.abs(rows).max()
        rolled = np.roll(noisy, roll, axis=1)
        seen = rolled if exact else self.sketch(rolled, seed=self.seed)
        trusted = None if self.trusted is None else seen[M]
        geometry = Geometry.of(seen[:M], sizes=self.sizes, seed=self.seed, trusted=trusted)
        # Norms and inner products with the trusted update are exact under a projection, too, and rounded by themselves.
        rows = (noisy if exact else rows) / geometry.unit
        dots = None if trusted is None else rows @ rows[M]
        return rule.decide(replace(geometry, exact_squared_norms=(rows[:M] ** 2).sum(axis=1), trusted_dots=dots))

    def agrees(self, rule, weights, out, roll):
        """Return whether these are the rule's weights, and this its result."""
        found = self.decision(rule, roll=roll)
        if self._matches(found, weights, out, 1e-7):
            return True
        about = self.x if self.reference is None else self.x - self.reference
        if not np.ptp(about, axis=0).any():  # equal, or the oracle can't tell them apart beside such a reference
            return abs(weights.sum() - found.weights.sum()) <= 1e-7
        # Near a tie, or where few digits are left, rounding decides: the result may differ by as much as rounding moves
        # the oracle itself. Rows narrower than float64 are projected, and subtracted from a reference, in float32.
        exact = isinstance(self.sketch, bz.Exact)
        size = 1e-6 if not exact else 1e-12 if self.reference is None else 1e-7
        size = 1e-12 if self.dtype == "float64" else size
        rng, shape = np.random.default_rng(0), (len(self.x) + (self.trusted is not None), self.x.shape[1])
        others = [self.decision(rule, size * rng.normal(size=shape), roll).weights for _ in range(6)]
        if "Bucketing" not in repr(rule):  # which shuffles
            # Two pairs of equal mixtures are a tie that no noise breaks, but the order of the clients does.
            reverse = replace(self, x=self.x[::-1], sizes=self.sizes[::-1])
            others.append(reverse.decision(rule, roll=roll).weights[::-1])
        spread = max(np.abs(other - found.weights).max() for other in others)
        return spread > 1e-3 or self._matches(found, weights, out, 1e-7 + 10 * spread)

    def _matches(self, found, weights, out, tolerance):
        if np.abs(weights - found.weights).max() > tolerance:
            return False
        stage = found.coordinate_stage
        if stage is None:
            return True
        mixed, wanted = self.x[stage.used(len(self.x))], np.empty((1, self.x.shape[1]))
        if stage.mixing is not None:
            mixed = stage.mixing @ self.x
            if self.reference is not None:
                mixed += np.outer(1 - stage.mixing.sum(axis=1), self.reference)
        stage.kernel(definitions)(mixed, out=wanted)
        more = tolerance * np.ptp(self.x, axis=0) if tolerance > 1e-6 else 0.0
        return (np.abs(wanted[0] - out) <= self.tolerance + more).all()


def check(rule, kept, out, weights):
    """Require that `out` and `weights` are this rule's result for the clients that took part."""
    x, sizes, name = kept.x, kept.sizes, type(rule).__name__
    require(np.isfinite(out).all(), "the result is not finite where all that took part are")
    if weights is not None:
        convex = weights.min() >= 0 and weights.sum() < 1 + 1e-9
        require(convex, f"weights {weights} are negative or sum to more than 1")
        agrees = any(kept.agrees(rule, weights, out, roll) for roll in kept.rolls)
        require(agrees, f"{name}: not the weights of the clients' geometry")
        if not rule.ends_coordinate_wise():
            rest = 0.0 if kept.reference is None else (1 - weights.sum()) * kept.reference
            gap = np.abs(weights @ x + rest - out)
            require((gap <= kept.tolerance).all(), "the update is not the weighted sum of the clients")
    if isinstance(rule, bz.Mean):
        require(np.allclose(weights, sizes / sizes.sum(), rtol=1e-12), "the mean's weights are not the sizes' shares")
    elif isinstance(rule, CoordinateWise):
        gap = np.abs(oracle.coordinate_wise(rule, x, sizes) - out)
        require((gap <= kept.tolerance).all(), f"not the {rule!r} of each coordinate")
