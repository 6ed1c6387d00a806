"""The first measurements of clients, and whether later ones are of the same numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.measure.geometry import norm_limit
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import PROBABILITY_OF_ERROR, Projection, Sketch, StreamingSketch
from bartizan.updates import Updates
from bartizan.updates.layout import Layout

DEVIATIONS = 16  # of a probe: rounding errors of a sum make larger ones with a probability below 1e-6
FLOAT32_SUMS = 16 * 2.0**-24  # relative error of a sketch that is summed in float32, an upper bound for whole folds
NO_SQUARE = 1e-150  # lengths below have no square


@dataclass(frozen=True, eq=False)
class Witness:
    """The measurements of clients by one sketch at their first reading: linear in the updates, about the reference.

    Exact rules take secret `Probes` in the same reading. Projections need none: the sketch of the result must be the
    weighted sum of the clients' sketches. Who knows the seed of a projection can change a file in its null space. That
    shows in the norm of the result, as it does in a client's own, and is bounded as there. A round compares with the
    sketch of its recheck too, whose seed nobody knows.
    """

    sketch: StreamingSketch
    measured: Measurements

    @cached_property
    def place(self) -> dict[int, int]:
        """The row of each client."""
        return {client: row for row, client in enumerate(self.measured.clients)}

    @property
    def seed(self) -> int:
        return self.measured.seed

    def with_more(self, other: Witness) -> Witness:
        """Return a witness for the clients of both, which were measured by the same sketch and seed."""
        return replace(self, measured=Measurements.joined([self.measured, other.measured]))

    def agrees(
        self, clients: Sequence[int], factors: Floats, found: Measurements, rounding: float, layout: Layout
    ) -> bool:
        """Return whether this is a measurement of the clients' sum with these factors, up to rounding.

        `rounding` is a bound of the distance between the exact sum and its rounded numbers. What moves the sum by more
        than 16 times that, or twice for projections, and 16 times the sketches' own errors, is found, but with a small
        probability: four probes all miss a change of c times as much in one coordinate with one below (1 / c)^4.
        """
        rows = [self.place[client] for client in clients]
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = factors @ self.measured.sketches[rows]
            lengths = np.abs(factors) @ np.sqrt(self.measured.squared_norms[rows])
            off = float(_distance(self.sketch, found.sketches[0] - wanted))
            length = float(np.sqrt(found.squared_norms[0]))
            # A projection keeps the norm of rounding errors, which are half of `rounding` at most.
            errors = 2 if isinstance(self.sketch, Projection) else DEVIATIONS
            slack = errors * rounding + DEVIATIONS * _accuracy(layout) * (lengths + length)
            if not off <= slack:  # True for NaN
                return False
        if not isinstance(self.sketch, Projection) or length <= 64 * slack:
            return length < np.inf
        least, most = self.sketch.norm_ratio_range(PROBABILITY_OF_ERROR)
        shown = float(found.sketches[0] @ found.sketches[0]) / length**2
        return 0.99 * least <= shown <= 1.01 * most

    def moved(self, layout: Layout, client: int, about: Measurements) -> list[int]:
        """Clients whose sketches about one of them are not what they were, up to the digits that are short.

        Sketches about a client are those about the reference minus its own. Where most differ, the file that has
        changed is that client's.
        """
        rows, row = [self.place[one] for one in about.clients], self.place[client]
        sketches, norms = self.measured.sketches, self.measured.squared_norms
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(norms[rows])
            off = _distance(self.sketch, about.sketches[: len(rows)] - (sketches[rows] - sketches[row]))
            slack = DEVIATIONS * _accuracy(layout) * (lengths + np.sqrt(norms[row])) + NO_SQUARE
            usable = norms[rows] <= norm_limit(layout.widest)
            moved = usable & ~(off <= slack)
        if (client in about.clients and moved[about.clients.index(client)]) or 2 * moved.sum() > usable.sum():
            return [client]
        return [about.clients[at] for at in np.flatnonzero(moved)]


def _distance(sketch: Sketch, difference: Array) -> Array:
    """The distance between sketches: of projections the norm, of probes, which have no common scale, the largest."""
    if isinstance(sketch, Projection):
        return np.asarray(np.linalg.norm(difference, axis=-1))
    return np.abs(difference).max(axis=-1, initial=0.0)


def _accuracy(layout: Layout) -> float:
    """A bound of the relative error of sketches and probes."""
    return max(FLOAT32_SUMS if layout.widest == np.float32 else 0.0, 2.0**-53 * (16 + math.sqrt(layout.dim)))


def rounding_of_sum(clients: Updates, length: float) -> float:
    """Return the distance that rounding to the coarsest dtype can move a result; tiny numbers lose all digits."""
    unit, least = 0.0, 0.0
    for entry in clients.layout.float_entries:
        if entry.dtype == "bfloat16":
            unit, least = max(unit, 2.0**-8), max(least, 2.0**-133)
        else:
            info = np.finfo(entry.dtype)
            unit, least = max(unit, float(info.eps)), max(least, float(info.smallest_subnormal))
    return unit * length + least * float(np.sqrt(clients.layout.dim))
