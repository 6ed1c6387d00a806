"""The iterated rules for many clients, in passes over the rows of their sketches: O(M k) per step, no M x M matrix.

`kernels.weigh` has the same iterations on inner products. Here points are differences from the medoid.
"""

from __future__ import annotations

import numpy as np

from bartizan._util.types import Floats
from bartizan.measure.row_points import RowPoints

COINCIDE = 1e-14  # squared distance, in parts of the median one, of clients that are one point
NEARBY = 0.05  # distance, in median ones, from which on a client is tested for being the median
CANCELLED = 0.25  # part of a squared distance that is left, below which it is computed anew


def geometric_median(rows: RowPoints, shares: Floats, tolerance: float, max_steps: int) -> tuple[Floats, bool]:
    """Return the weights of the geometric median, and whether it was reached: `weigh.weiszfeld` on rows."""
    from bartizan.kernels import weigh

    start = rows.medoid
    centre, tested = rows.rows[start], {start}
    vertex = Vertex(rows, centre, shares, start)
    if vertex.is_median:
        return vertex.weights(), True
    scale, image = vertex.scale, np.zeros_like(centre)
    squares, along = rows.squares(centre, image, vertex.force)
    length = float(vertex.force @ vertex.force)
    a = weigh.least_along(squares, along, length, shares, scale, 1 / vertex.pull)
    step = vertex.force
    for _ in range(max_steps):
        point = image + a * step
        moved_squares = squares - a * (2 * along - a * length)
        if (moved_squares < CANCELLED * squares).any():
            moved_squares = rows.squares(centre, point)[0]
        nearest = int(moved_squares.argmin())
        scale = float(np.sqrt(np.median(moved_squares)))
        if moved_squares[nearest] <= (NEARBY * scale) ** 2 and nearest not in tested:
            tested.add(nearest)
            vertex = Vertex(rows, centre, shares, nearest)
            if vertex.is_median:
                return vertex.weights(), True
        distances = np.sqrt(np.maximum(moved_squares, 1e-20 * scale * scale + 1e-300))
        weights = shares / distances
        weights /= weights.sum()
        step, image = rows.weighted(centre, weights) - image, image
        image = image + step
        length = float(step @ step)
        if length <= 1e-28 * scale * scale:
            return weights, True
        squares, along = rows.squares(centre, image, step)
        a = weigh.least_along(squares, along, length, shares, scale, 0.0)
        gone = image + a * step - point
        if a == 0 or gone @ gone <= (tolerance * scale) ** 2:
            return weights, True
    return weights, False


class Vertex:
    """A client, those that coincide with it, and the pull of all others: it is the median if they hold against it."""

    def __init__(self, rows: RowPoints, centre: Floats, shares: Floats, client: int) -> None:
        self.rows, self.centre, self.shares, self.point = rows, centre, shares, rows.rows[client] - centre
        self.squares = rows.squares(centre, self.point)[0]
        self.distances = np.sqrt(self.squares)
        self.scale = float(np.median(self.distances))
        away = float(self.point @ self.point)
        self.here = self.squares <= COINCIDE * (self.scale**2 + 2 * away)
        pulls = np.where(self.here, 0.0, np.divide(shares, self.distances, where=~self.here, out=np.zeros_like(shares)))
        self.pull, self.mass = float(pulls.sum()), float(shares[self.here].sum())
        self.force = rows.weighted(centre, pulls) - self.pull * self.point
        self.strength = float(np.sqrt(self.force @ self.force))
        self.is_median = self.strength <= self.mass * (1 + 1e-13)

    def weights(self) -> Floats:
        """Return the weights of the median here; of two points that are as good, and what lies between, of both."""
        chosen = self.here
        if self.strength >= self.mass * (1 - 1e-12):
            other = self._as_good()
            chosen = chosen if other is None else chosen | other
        weights = np.where(chosen, self.shares, 0.0)
        weights /= weights.sum()
        return weights

    def _as_good(self) -> np.ndarray | None:
        """Return the clients at the next point along the force, if the sum of distances is no greater there."""
        along = self.rows.squares(self.centre, self.point, self.force / self.strength)[1]
        ahead = ~self.here & (along > 0) & (self.squares - along**2 <= 1e-8 * self.squares)
        if not ahead.any():
            return None
        nearest = int(np.where(ahead, along, np.inf).argmin())
        squares = self.rows.squared_distances_from(nearest)
        more = float((self.shares * (np.sqrt(squares) - self.distances)).sum())
        return squares <= COINCIDE * self.scale**2 if more <= 1e-12 * self.scale else None


def correntropy(
    rows: RowPoints, start: Floats, shares: Floats, width: float, tolerance: float, max_steps: int
) -> tuple[Floats, bool]:
    """Return the weights of the Gaussian kernel's fixed point from weights `start`: `weigh.correntropy` on rows."""
    centre, weights = rows.centre, start
    point = rows.weighted(centre, start)
    for _ in range(max_steps):
        squares = rows.squares(centre, point)[0]
        weights = shares * np.exp((squares.min() - squares) / width / width / 2)
        weights /= weights.sum()
        there = rows.weighted(centre, weights)
        moved, point = np.linalg.norm(there - point), there
        if moved <= tolerance * width:
            return weights, True
    return weights, False
