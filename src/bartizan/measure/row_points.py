"""Clients as points with coordinates: what rules ask of many clients in passes over rows, without an M x M matrix.

As in `geometry`, the common part of all clients is subtracted as a client near the middle. With coordinates a
difference is formed before it is squared, so a distant client takes no digits from the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bartizan._util.seeds import generator_of
from bartizan._util.types import Array, Floats
from bartizan.measure.measurements import STRIPE_BYTES, Measurements
from bartizan.measure.mixing import MixingMatrix, check_memory

MEDOID_DRAW = 2**31  # its place in the round's randomness, behind those of shuffles
START_CANDIDATES, CANDIDATES = 8, 64  # for the first point in the middle, and for the client in the middle
MIDDLE_STEPS, MIDDLE_TOLERANCE = 30, 1e-3  # of the search for the middle, in median distances
MEDOID_STEPS = 6  # from the best client to a better one near it
PAIRS_PER_SECOND = 2e10  # products of two numbers, on two cores
SLOW = 60.0  # seconds from which on a warning says how long it will take
MATRICES = 8  # of M x M numbers that a rule holds at its peak


@dataclass(frozen=True, eq=False)
class RowPoints:
    """Points of `n_clients` clients, one row each; a trusted update has the last row."""

    rows: Floats
    n_clients: int
    origin: Floats
    """Coordinates of the origin, zeros unless the rows were measured about a client."""
    seed: int = 0
    about_origin: Floats | None = None
    """The same rows about the origin where `rows` are about a client; None where they are the same."""

    @classmethod
    def of(cls, measured: Measurements) -> RowPoints:
        rows = measured.sketches
        return cls(rows, len(measured.clients), np.zeros(rows.shape[1]), measured.seed)

    def seen_again(self, rows: Floats) -> RowPoints:
        """Return the same points by their rows about the medoid, which have more digits."""
        return RowPoints(rows, self.n_clients, -self.rows[self.medoid], self.seed, self.rows)

    @property
    def clients(self) -> Floats:
        return self.rows[: self.n_clients]

    @cached_property
    def _middle(self) -> tuple[int, float]:
        """The medoid and its median squared distance to the clients.

        The clients nearest to the geometric median are compared by their median distances to all clients, then those
        nearest to the best. Less than half of the clients can't move the geometric median far, nor make a far client's
        median distance small. Where clients are spread about one point this is the medoid of all pairs; else a client
        nearly as close to the others.
        """
        M = self.n_clients
        if M <= CANDIDATES:
            every = np.arange(M)
            return self._closest(every, self._closest(every, 0)[0])
        drawn = generator_of(self.seed, MEDOID_DRAW).choice(M, START_CANDIDATES, replace=False)
        start = self._closest(drawn, self._closest(drawn, drawn[0])[0])[0]
        centre = self.rows[start]
        point, last = np.zeros_like(centre), np.inf
        for _ in range(MIDDLE_STEPS):
            distances = np.sqrt(self.squares(centre, point)[0])
            scale = float(np.median(distances))
            if not 0 < scale < np.inf or last <= MIDDLE_TOLERANCE * scale:
                break
            pulls = 1 / np.maximum(distances, 0.01 * scale)
            there = self.weighted(centre, pulls / pulls.sum())
            last, point = float(np.linalg.norm(there - point)), there
        else:
            distances = self.squares(centre, point)[0]
        best, spread = start, np.inf
        for _ in range(MEDOID_STEPS):
            nearest = np.sort(np.argsort(distances, kind="stable")[:CANDIDATES])
            found, least = self._closest(nearest, start)
            if least >= spread:
                break
            best, start, spread, distances = found, found, least, self.squared_distances_from(found)
        return best, spread

    def _closest(self, candidates: Array, about: int) -> tuple[int, float]:
        """Return the candidate with the least median squared distance to all clients, and that distance.

        Distances are computed about the client `about`. Even about a distant client they are accurate enough to find
        a closer one.
        """
        from bartizan.kernels import row_passes

        X, centre = self.clients, self.rows[about]
        own = row_passes.own_products(X, centre)
        medians = np.median(row_passes.distances(X[candidates], X, centre, own[candidates], own), axis=1)
        best = int(medians.argmin())
        return int(candidates[best]), float(medians[best])

    @property
    def medoid(self) -> int:
        return self._middle[0]

    @property
    def spread(self) -> float:
        return self._middle[1]

    @property
    def centre(self) -> Floats:
        return self.rows[self.medoid]

    def squares(self, centre: Floats, point: Floats, direction: Floats | None = None) -> tuple[Floats, Floats]:
        """Return the clients' squared distances to `centre` + `point`, and products with a direction from there."""
        from bartizan.kernels import row_passes

        return row_passes.squares(self.clients, centre, point, direction)

    def weighted(self, centre: Floats, weights: Floats) -> Floats:
        """Return the clients' weighted sum, about the centre."""
        from bartizan.kernels import row_passes

        return row_passes.weighted(self.clients, centre, weights)

    def squared_distances_from(self, client: int) -> Floats:
        return self.squares(self.rows[client], np.zeros_like(self.origin))[0]

    @property
    def trusted_squared_distances(self) -> Floats:
        return self.squared_distances_from(-1)

    def squares_to_mean(self, weights: Floats) -> Floats:
        """Return squared distances to the weighted mean; the weight that is missing to 1 is on the origin."""
        heaviest = int(weights.argmax())
        centre = self.rows[heaviest if weights[heaviest] > 0.5 else self.medoid]
        mean, rest = self.weighted(centre, weights), 1 - weights.sum()
        if abs(rest) > 1e-12:
            mean += rest * (self.origin - centre)
        return self.squares(centre, mean)[0]

    def squared_distances_between(self, some: Array, others: Array) -> Floats:
        """Return the squared distances of some clients to others."""
        from bartizan.kernels import row_passes

        A, X, centre = self.rows[some], self.rows[others], self.centre
        own = (row_passes.own_products(A, centre), row_passes.own_products(X, centre))
        return row_passes.distances(A, X, centre, *own)

    @cached_property
    def squared_norms(self) -> Floats:
        """Squared norms of the sketches."""
        if self.about_origin is not None:
            first = RowPoints(self.about_origin, self.n_clients, zeros := np.zeros_like(self.origin))
            return first.squares(zeros, zeros)[0]
        return self.squares(self.origin, np.zeros_like(self.origin))[0]

    def stripes(self, what: str = "distances") -> Iterator[tuple[int, Floats]]:
        """Pass over the M x M squared distances, some rows at a time: (first row, these rows)."""
        from bartizan.kernels import row_passes

        X, centre, M = self.clients, self.centre, self.n_clients
        warn_if_slow(M, X.shape[1], what)
        own = row_passes.own_products(X, centre)
        size = stripe_rows(M)
        for first in range(0, M, size):
            some = slice(first, min(first + size, M))
            yield first, row_passes.distances(X[some], X, centre, own[some], own)

    def cosine_stripes(self) -> Iterator[tuple[int, Floats]]:
        """Pass over 1 minus the M x M cosines about the origin, some rows at a time, rounded to 12 digits."""
        from bartizan.kernels import row_passes

        X, origin, M = self.clients, self.origin, self.n_clients
        if self.about_origin is not None:
            X, origin = self.about_origin[:M], np.zeros_like(origin)
        warn_if_slow(M, X.shape[1], "cosines")
        norms = np.sqrt(row_passes.own_products(X, origin))
        for first in range(0, M, size := stripe_rows(M)):
            some = slice(first, min(first + size, M))
            lengths = np.outer(norms[some], norms)
            cosines = row_passes.products(X[some], X, origin)
            np.divide(cosines, lengths, out=cosines, where=lengths > 0)
            yield first, (1 - cosines.clip(-1, 1)).round(12)

    def mixed(self, mixing: MixingMatrix | Floats) -> RowPoints:
        """Return the points A x; what a row of A lacks of sum 1 lies at the origin."""
        from bartizan.kernels import row_passes

        centre, n = self.centre, len(mixing)
        out = np.empty((n + len(self.rows) - self.n_clients, len(centre)))
        if isinstance(mixing, MixingMatrix):
            mixing.mix(self.clients, centre, out[:n])
            rest = 1 - mixing.sums
        else:
            for first in range(0, n, size := stripe_rows(self.n_clients)):
                some = slice(first, min(first + size, n))
                out[some] = row_passes.mixtures(np.ascontiguousarray(mixing[some]), self.clients, centre)
            rest = 1 - mixing.sum(axis=1)
        # From the centre, the origin lies at `origin` - `centre`.
        away, whole = self.origin - centre, np.abs(rest) <= 1e-12
        for row in np.flatnonzero(~whole):
            out[row] += rest[row] * away
        out[n:] = self.rows[self.n_clients :] - centre
        return RowPoints(out, n, away, self.seed)


def stripe_rows(n_clients: int) -> int:
    """Return how many rows of n_clients numbers are computed at a time."""
    return max(16, STRIPE_BYTES // (8 * n_clients) // 16 * 16)


def warn_if_slow(n_clients: int, k: int, what: str) -> None:
    """Warn, before they are computed, that all pairs of clients take long."""
    seconds = float(n_clients) ** 2 * k / PAIRS_PER_SECOND
    if seconds > SLOW:
        warnings.warn(
            f"The {what} of all pairs of {n_clients:,} clients in {k:,} dimensions will take about "
            f"{seconds / 60:.0f} minutes. GeometricMedian, MCA and CenteredClipping take seconds; a sketch of fewer "
            "dimensions takes less, in proportion.",
            RuntimeWarning,
            stacklevel=4,
        )


def check_matrices(n_clients: int, k: int) -> None:
    """Raise MemoryBudgetError where M x M numbers do not fit into free memory; warn where they take long."""
    check_memory(8 * n_clients**2 * MATRICES, f"A rule that works on matrices of all pairs of {n_clients:,} clients")
    warn_if_slow(n_clients, k, "inner products")
