"""All numerics of distances: what is subtracted, widened and clamped is here, in `pair_points` and `row_points`.

Everything is float64. A Gram matrix about the origin keeps each entry to about 1e-16 |x_i| |x_j|, so no client can
spoil the digits of a pair that it is not part of, however large its numbers. What it can lose is the common part of
all clients; that is subtracted as the *medoid*, the client whose median distance to the others is least. Never the
mean: one client can move it, and never a mere sample: one spike can hide from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.text import quoted
from bartizan._util.types import Array, Floats
from bartizan.kernels import reference
from bartizan.measure.client_sizes import checked_sizes, client_sizes
from bartizan.measure.measurements import Measurements, rows_pay
from bartizan.measure.mixing import Listed, MixingMatrix
from bartizan.measure.pair_points import MeasuredPoints, MixedPoints
from bartizan.measure.row_points import RowPoints

# Squared norms below this, of the client in the middle, may have lost the digits in which clients differ.
SQUARES_UNDERFLOW = 1e-240
# The same where float32 products are summed in float32, as on a GPU.
FLOAT32_SQUARES_UNDERFLOW = 1e-24
# Multiplied by this, the smallest numbers have squares, and those of a client in the middle still do not overflow.
TRIAL_SCALE = 2.0**800
# The norm that the client in the middle then gets: there is room for larger ones, and for the squares of digits.
TARGET_MEDIAN_NORM = 2.0**-250


def enlargement(squared_norms: Floats, n_clients: int, enlarged: Callable[[], Floats]) -> float:
    """The power of two to multiply updates by so that their squares do not underflow; 1 for all but tiny ones.

    It is chosen by the client in the middle, which less than half of the clients can't move. `enlarged` gives the
    clients' squared norms times `TRIAL_SCALE`: of updates that are all zero, these are zero too. Beside a trusted
    update that is not tiny, tiny clients count as zero.
    """
    clients, trusted = squared_norms[:n_clients], squared_norms[n_clients:]
    if not mostly_below(SQUARES_UNDERFLOW, clients) or (trusted >= SQUARES_UNDERFLOW).any():
        return 1.0
    middle = float(np.median(enlarged()[np.isfinite(clients)]))
    if not 0 < middle < np.inf:
        return 1.0
    return float(TRIAL_SCALE * TARGET_MEDIAN_NORM / 2.0 ** np.round(np.log2(middle) / 2))


def mostly_below(limit: float, squared_norms: Floats) -> bool:
    return 2 * int(np.count_nonzero(squared_norms < limit)) > len(squared_norms)


@lru_cache
def norm_limit(dtype: np.dtype) -> float:
    """Squared norms above this are not representable where the update came from, or would overflow in sums here."""
    return float(np.finfo(np.float32).max) if dtype == np.float32 else 1e300


@dataclass(frozen=True, eq=False)
class Geometry:
    """Distances and inner products of M clients, the origin and a trusted update: all that a rule may see.

    Sizes are the clients' data sizes S_m; `seed` and `history` are for the rules that ask for randomness or for a past.
    All lengths are in multiples of `unit`, which is 1 but for updates so tiny that their squares would underflow.

    >>> square = Geometry.of([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]])
    >>> np.sqrt(square.squared_distances).tolist()
    [[0.0, 3.0, 5.0], [3.0, 0.0, 4.0], [5.0, 4.0, 0.0]]
    >>> square.norms.tolist()
    [0.0, 3.0, 5.0]
    """

    points: MeasuredPoints | MixedPoints | RowPoints
    sizes: Floats
    exact_squared_norms: Floats | None = None
    trusted_dots: Floats | None = None
    seed: int | None = None
    n_mixings: int = 0
    history: tuple[float, ...] = ()
    unit: float = 1.0

    @cached_property
    def n_clients(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(
        cls,
        rows: npt.ArrayLike,
        *,
        sizes: npt.ArrayLike | None = None,
        trusted: npt.ArrayLike | None = None,
        seed: int | None = None,
        history: tuple[float, ...] = (),
    ) -> Geometry:
        """The geometry of the rows of an (M, k) array about zero."""
        x = np.asarray(rows, dtype=np.float64)
        if x.ndim != 2 or not len(x):
            raise ValueError(f"Geometry.of wants one row per client, (M, k); got shape {x.shape}.")
        n_clients = len(x)
        if trusted is not None:
            x = np.vstack([x, np.asarray(trusted, dtype=np.float64)])
        if rows_pay(n_clients, x.shape[1]):
            return cls._of_rows(x, n_clients, sizes, seed, history)
        gram, scale = gram_about(x, None), None
        with np.errstate(over="ignore"):
            norms = np.diag(gram)
            factor = enlargement(norms, n_clients, lambda: np.square(TRIAL_SCALE * x[:n_clients]).sum(axis=1))
            if factor != 1:
                x, scale = factor * x, factor
                gram = gram_about(x, None)
        dots = None if trusted is None else gram[-1]
        measured = Measurements(tuple(range(n_clients)), gram.diagonal().copy(), None, gram, dots, scale=scale)
        return cls.measured(measured, partial(gram_about, x), sizes=sizes, seed=seed, history=history)

    @classmethod
    def _of_rows(cls, x: Floats, n_clients: int, sizes: Any, seed: int | None, history: tuple[float, ...]) -> Geometry:
        clients, scale, factor = x[:n_clients], None, 1.0
        with np.errstate(over="ignore"):
            norms = np.einsum("ij,ij->i", x, x)
            factor = enlargement(norms, n_clients, lambda: np.square(TRIAL_SCALE * clients).sum(axis=1))
            if factor != 1:
                x, scale = factor * x, factor
                norms = np.einsum("ij,ij->i", x, x)
        dots = None if len(x) == n_clients else x @ x[-1]
        given = Measurements(tuple(range(n_clients)), norms, x, None, dots, scale=scale, seed=seed or 0)
        return cls.measured(given, lambda row: x - x[row], sizes=sizes, seed=seed, history=history)

    @classmethod
    def measured(
        cls,
        measured: Measurements,
        measured_about: Callable[[int], Floats],
        *,
        sizes: npt.ArrayLike | None = None,
        seed: int | None = None,
        history: tuple[float, ...] = (),
    ) -> Geometry:
        """Return the geometry of measured clients, which are on the host, recentred at the medoid.

        Where digits are short, `measured_about` is asked for the inner products of all rows about that of the medoid;
        for the rows themselves where many clients have no matrix.
        """
        from bartizan.kernels import weigh

        gram, n_clients, norms_only = measured.gram, len(measured.clients), measured.norms_only
        points: MeasuredPoints | RowPoints
        if measured.by_rows:
            points = RowPoints.of(measured)
            if points.spread < measured.short_of_digits * measured.shown[points.medoid]:
                points = points.seen_again(measured_about(points.medoid))
        else:
            nothing = gram[:n_clients, :n_clients], 0, 0.0
            G = gram if norms_only else np.ascontiguousarray(gram)
            _, medoid, median = distances = nothing if norms_only else weigh.distances(G, n_clients)
            points = MeasuredPoints(G, distances, medoid)
            if n_clients > 1 and median < measured.short_of_digits * G[medoid, medoid]:
                again = np.ascontiguousarray(measured_about(medoid))
                points = MeasuredPoints(G, weigh.distances(again, n_clients), medoid, again)
        return cls(
            points,
            np.ones(n_clients) if sizes is None else checked_sizes(client_sizes(sizes, n_clients)),
            measured.squared_norms[:n_clients],
            measured.trusted_dots,
            seed,
            history=history if type(history) is tuple else _past(history),
            unit=measured.unit,
        )

    @property
    def has_trusted(self) -> bool:
        return self.trusted_dots is not None

    @cached_property
    def shares(self) -> Floats:
        """Data sizes as parts of 1."""
        return self.sizes / self.sizes.sum()

    @property
    def rows(self) -> RowPoints | None:
        """The clients as rows of numbers, where they are many: rules that pass over these make no M x M matrix."""
        return self.points if isinstance(self.points, RowPoints) else None

    @property
    def _pairs(self) -> MeasuredPoints | MixedPoints:
        return self._pairs_of_rows if isinstance(self.points, RowPoints) else self.points

    @cached_property
    def _pairs_of_rows(self) -> MeasuredPoints:
        assert isinstance(self.points, RowPoints)
        return MeasuredPoints.of(self.points)

    @property
    def inner(self) -> Floats:
        """Inner products of all points about a central client: the M clients, the origin, the trusted update if any."""
        return self._pairs.inner

    @property
    def gram(self) -> Floats:
        """Inner products of the clients about the origin, kept separately: recentring would lose these digits."""
        return self._pairs.gram

    @property
    def centred(self) -> Floats:
        """Inner products of the clients about one of them: for rules that no common shift changes."""
        return self.inner[: self.n_clients, : self.n_clients]

    @property
    def squared_distances(self) -> Floats:
        points = self.points
        return (self._pairs_of_rows if isinstance(points, RowPoints) else points).distances[0]

    def squared_distances_from(self, client: int) -> Floats:
        """Squared distances of all clients to one of them."""
        rows = self.rows
        return self.squared_distances[client] if rows is None else rows.squared_distances_from(client)

    @property
    def squared_lengths(self) -> Floats:
        """Squared distances of the clients to the point that digits are about, in parts of which they are rounded."""
        rows = self.rows
        return np.diag(self._pairs.measured) if rows is None else rows.squared_distances_from(rows.medoid)

    def squared_distances_between(self, some: Array, others: Array) -> Floats:
        """Squared distances of some clients to others."""
        rows = self.rows
        return (
            self.squared_distances[np.ix_(some, others)]
            if rows is None
            else rows.squared_distances_between(some, others)
        )

    def distance_stripes(self, what: str = "distances") -> Iterator[tuple[int, Floats]]:
        """Pass over the squared distances of all pairs in bounded memory: (first client, some rows of the matrix).

        `what` they are for is named by the warning that it takes long.
        """
        return iter([(0, self.squared_distances)]) if self.rows is None else self.rows.stripes(what)

    @property
    def medoid(self) -> int:
        """The client whose median distance to the others is least: no minority can make it one of theirs from afar."""
        return self.points.medoid if isinstance(self.points, RowPoints) else self.points.distances[1]

    @property
    def spread(self) -> float:
        """Median squared distance from the medoid to all clients, itself included."""
        return self.points.spread if isinstance(self.points, RowPoints) else self.points.distances[2]

    @cached_property
    def norms(self) -> Floats:
        """Distances to the origin: exact ones where they are known, also when all else is projected."""
        known, rows = self.exact_squared_norms, self.rows
        if known is None:
            known = np.diag(self.gram) if rows is None else rows.squared_norms
        return np.sqrt(np.maximum(known, 0))

    @property
    def trusted_squared_distances(self) -> Floats:
        if self.rows is not None:
            return self.rows.trusted_squared_distances
        squares, to_trusted = np.diag(self.inner), self.inner[-1]
        return np.maximum(squares + squares[-1] - 2 * to_trusted, 0)[: self.n_clients]

    @cached_property
    def trusted_cosines(self) -> tuple[Floats, float]:
        """Cosines of the clients with the trusted update about the origin, and its norm."""
        M, dots = self.n_clients, self.trusted_dots
        if dots is None:
            raise ValueError("There is no trusted update.")
        norm = float(np.sqrt(max(dots[M], 0)))
        lengths = self.norms * norm
        return np.divide(dots[:M], lengths, out=np.zeros(M), where=lengths > 0).clip(-1, 1), norm

    def distances_to_mean(self, weights: Floats) -> Floats:
        r"""Distances of the clients to :math:`z = \sum_i w_i x_i`; what the weights lack of sum 1 lies at the origin.

        :math:`\|x_i - z\|^2 = \|x_i - c\|^2 - 2 \langle x_i - c, z - c \rangle + \|z - c\|^2` about the point c that
        has more than half of the weight, else about the medoid. Sums of squared distances would do, but not beside a
        distant client of little weight, whose square takes all digits.

        >>> triangle = Geometry.of([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]])
        >>> triangle.distances_to_mean(np.array([0.0, 0.5, 0.5])).round(2).tolist()
        [3.61, 2.0, 2.0]
        """
        from bartizan.kernels import weigh

        if isinstance(self.points, RowPoints):
            return np.sqrt(self.points.squares_to_mean(weights))
        M, products, rest = self.n_clients, self.points.measured, 1 - np.add.reduce(weights)
        if abs(rest) > 1e-12:  # the origin is one more point
            products, weights = self.inner[: M + 1, : M + 1], np.append(weights, rest)
        out = np.empty(M)
        weigh.distances_to_mean(np.ascontiguousarray(products), self.squared_distances, weights, self.medoid, out)
        return out

    def mix(self, mixing: Floats | MixingMatrix) -> Geometry:
        """The geometry of the mixed clients A x, A of shape (M', M); what a row lacks of sum 1 lies at the origin."""
        M, n_mixed = self.n_clients, len(mixing)
        norms, dots = self.exact_squared_norms, self.trusted_dots
        sizes, squares = self.sizes if n_mixed == M else np.ones(n_mixed), None
        listed = Listed.of(mixing)
        if listed is not None:
            rows, clients = listed.rows, listed.columns
            if len(rows) == len(np.unique(clients)) and len(np.unique(rows)) == n_mixed:
                # No row is empty and no client in two: rows own their sizes.
                sizes = np.zeros(n_mixed)
                np.add.at(sizes, rows, self.sizes[clients])
            if norms is not None and len(rows) == len(np.unique(rows)):  # clients are only scaled
                squares = np.zeros(n_mixed)
                squares[rows] = listed.values**2 * norms[clients]
        points: MixedPoints | RowPoints
        if isinstance(self.points, RowPoints):
            points = self.points.mixed(mixing)
        else:
            points = MixedPoints(self.points, np.asarray(mixing))
        return Geometry(
            points,
            sizes,
            squares,
            None if dots is None else np.append(mixing @ dots[:M], dots[M]),
            self.seed,
            self.n_mixings + 1,  # the next one draws its own randomness
            self.history,
            self.unit,
        )


def gram_about(x: Floats, row: int | None) -> Floats:
    """The inner products of the rows of an array about zero or one of them, symmetric to the last bit."""
    gram = np.zeros((len(x), len(x)))
    reference.gram(x, None if row is None else x[row], gram)
    return (gram + gram.T) / 2


def _past(history: Iterable[float]) -> tuple[float, ...]:
    try:
        return tuple(history)
    except TypeError:
        raise TypeError(f"history must be what the last round's result held, a tuple; got {quoted(history)}.") from None
