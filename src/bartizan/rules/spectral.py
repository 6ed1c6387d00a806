"""Rules that filter clients along the principal direction of their differences."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np

from bartizan._util.types import Floats
from bartizan.measure.geometry import Geometry
from bartizan.measure.row_points import RowPoints
from bartizan.rules.base import Bounded, Rule, averaged, positive

TOLERANCE = 1e-13  # of an eigenvalue


def principal_direction(inner: Floats, weights: Floats) -> tuple[float, Floats]:
    """Return the top eigenvalue of the weighted covariance, and each client's coordinate along its eigenvector.

    With y_i = x_i - sum_j w_j x_j, the covariance sum_i w_i y_i y_i' shares its spectrum with the M x M matrix
    sqrt(w_i w_j) <y_i, y_j>, and <y_i, v> follows from that matrix's eigenvector.
    """
    from bartizan.kernels import weigh

    coordinates = np.zeros(len(weights))
    return weigh.principal_direction(np.ascontiguousarray(inner), weights, TOLERANCE, coordinates), coordinates


def principal_of_rows(rows: RowPoints, weights: Floats) -> tuple[float, Floats]:
    """Return the same of many clients: the covariance of k coordinates has the same spectrum as that M x M matrix."""
    from bartizan.kernels import row_passes

    centre = rows.centre + rows.weighted(rows.centre, weights)
    values, vectors = np.linalg.eigh(row_passes.scatter(rows.clients, centre, weights))
    top = max(float(values[-1]), 0.0)
    if top == 0:
        return 0.0, np.zeros(len(weights))
    return top, rows.squares(centre, np.zeros_like(centre), np.ascontiguousarray(vectors[:, -1]))[1]


@dataclass(frozen=True)
class CAF(Bounded, Rule):
    """Shrink the weights of clients that stand out along the principal direction; return the mean of least variance.

    The covariance-bound agnostic filter of Allouah et al., 2025: weights start equal (by sizes); each round multiplies
    client i's by 1 - t_i / max t, with t_i its squared coordinate along the top eigenvector and the maximum over
    those with weight left (over all, an attacker whose weight is gone would keep the rest from changing), until at most
    1 - 2s of the weight is left; the answer is the weighted mean whose top eigenvalue was least. Here s is the share of
    the data that the f largest clients hold, f/M without sizes: whichever f clients attack, they have no more weight.
    Withstands f attackers among M >= 2f + 1 clients while s < 1/2. Where s is 1/2 or more, f attackers could hold a
    majority by their sizes, which they may have claimed: the clients then count alike, and a RuntimeWarning says so.

    >>> CAF(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [90.0]])).round(2).tolist()
    [0.33, 0.33, 0.34, 0.0]
    """

    bytes_per_pair = 0.0

    def weigh(self, geometry: Geometry) -> Floats:
        M, f, shares = geometry.n_clients, self.n_byzantine, geometry.shares
        held = np.sort(shares)[M - f :].sum()
        if 2 * held >= 1:
            whose = "client holds" if f == 1 else f"{f} clients hold"
            warnings.warn(
                f"CAF(n_byzantine={f}): by sizes the largest {whose} {held:.1%} of the data of {M} clients. Attackers "
                "with half of it would decide the result, so all clients count alike here. Leave sizes out, cap "
                "them, or lower n_byzantine.",
                RuntimeWarning,
                stacklevel=3,
            )
            shares, held = np.full(M, 1 / M), f / M
        rows, left, best, least = geometry.rows, shares.copy(), shares, np.inf
        if rows is None:
            principal = partial(principal_direction, np.ascontiguousarray(geometry.centred))
        else:
            principal = partial(principal_of_rows, rows)
        while left.sum() > (1 - 2 * held) * (1 + 1e-12) or least == np.inf:
            weights = left / left.sum()
            top, coordinates = principal(weights)
            if top < least:
                best, least = weights, top
            outlying = np.where(left > 0, coordinates**2, 0)
            if outlying.max() == 0:
                break
            left = left * (1 - outlying / outlying.max())
            if not left.any():
                break
        return best


@dataclass(frozen=True)
class SpectralDnC(Bounded, Rule):
    """Drop the client that stands out most along the principal direction, repeatedly; average the rest by their sizes.

    A spectral variant of DnC (divide and conquer, Shejwalkar and Houmansadr, 2021). The original drops `removal` x f
    clients at once, those of largest squared coordinate along the top principal direction of a random subset of the
    coordinates, and repeats this on other subsets. A rule that sees only the geometry uses all coordinates, and lets
    the `removal` x f clients go one by one, each time with a new direction: attackers need not share one. Withstands f
    attackers among M >= 2f + 1 clients.

    >>> SpectralDnC(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [90.0]])).round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """

    removal: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "removal", self.removal, "multiple of n_byzantine")

    def weigh(self, geometry: Geometry) -> Floats:
        kept = np.arange(geometry.n_clients)
        for _ in range(min(int(np.ceil(self.removal * self.n_byzantine)), len(kept) - 1)):
            weights = geometry.sizes[kept] / geometry.sizes[kept].sum()
            _, coordinates = principal_direction(geometry.centred[np.ix_(kept, kept)], weights)
            kept = np.delete(kept, (coordinates**2).argmax())
        return averaged(kept, geometry)
