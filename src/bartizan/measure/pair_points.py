"""Clients as points by their inner products: what rules ask of few clients, in M x M matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from bartizan._util.types import Floats
from bartizan.measure.row_points import RowPoints, check_matrices
from bartizan.updates.columns import inner_products

Distances: TypeAlias = tuple[Floats, int, float]
"""Squared distances of all pairs, the medoid, and its median squared distance to the clients."""


@dataclass(frozen=True, eq=False)
class MeasuredPoints:
    """Clients with measured inner products about the origin; those about the medoid are computed on demand."""

    products: Floats  # about the origin: of the clients, and of a trusted update the last
    distances: Distances
    centre: int
    about_centre: Floats | None = None  # from a second pass, where digits were short

    @classmethod
    def of(cls, points: RowPoints) -> MeasuredPoints:
        """Make the inner products of all pairs, for rules that ask for them."""
        from bartizan.kernels import weigh

        M, m, rows = points.n_clients, points.medoid, points.rows
        check_matrices(M, rows.shape[1])
        about_origin = rows - points.origin if points.origin.any() else rows
        G = inner_products(about_origin if points.about_origin is None else points.about_origin)
        again = None if about_origin is rows else inner_products(rows - rows[m])
        return cls(G, weigh.distances(G if again is None else again, M), m, again)

    @property
    def n_clients(self) -> int:
        return len(self.distances[0])

    @cached_property
    def inner(self) -> Floats:
        from bartizan.kernels import weigh

        M, m, G = self.n_clients, self.centre, self.products
        if self.about_centre is None:
            return weigh.recentred(G, m, M)
        inner = np.insert(np.insert(self.about_centre, M, 0.0, axis=0), M, 0.0, axis=1)
        # From the medoid m the origin lies at -m, and <x - m, -m> = |m|^2 - <x, m>: of these, digits are plenty.
        inner[M, :] = inner[:, M] = np.insert(G[m, m] - G[m], M, G[m, m])
        return inner

    @property
    def gram(self) -> Floats:
        return self.products[: self.n_clients, : self.n_clients]

    @property
    def measured(self) -> Floats:
        """The clients' inner products about one point, without another matrix."""
        M, products = self.n_clients, self.products if self.about_centre is None else self.about_centre
        return products[:M, :M]


@dataclass(frozen=True, eq=False)
class MixedPoints:
    """Mixtures A x of other points, computed on demand; what a row of A lacks of sum 1 is at the origin."""

    points: MeasuredPoints | MixedPoints
    mixing: Floats

    @property
    def n_clients(self) -> int:
        return len(self.mixing)

    @cached_property
    def inner(self) -> Floats:
        from bartizan.kernels import weigh

        n, M, given = self.n_clients, self.points.n_clients, self.points.inner
        B = np.zeros((n + len(given) - M, len(given)))
        B[:n, :M] = self.mixing
        B[:n, M] = 1 - self.mixing.sum(axis=1)
        for other in range(len(given) - M):
            B[n + other, M + other] = 1.0
        return weigh.sandwich(B, given)

    @cached_property
    def gram(self) -> Floats:
        from bartizan.kernels import weigh

        return weigh.sandwich(np.ascontiguousarray(self.mixing), np.ascontiguousarray(self.points.gram))

    @property
    def measured(self) -> Floats:
        return self.inner[: self.n_clients, : self.n_clients]

    @cached_property
    def distances(self) -> Distances:
        from bartizan.kernels import weigh

        return weigh.distances(self.inner, self.n_clients)
