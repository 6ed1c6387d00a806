"""All numerics of distances, once: what is subtracted, widened and clamped stands here and nowhere else.

Everything is float64. A Gram matrix about the origin keeps each entry to about 1e-16 |x_i| |x_j|, so no client can
spoil the digits of a pair that it is not part of, however large its numbers. What it can lose is the common part of
all clients; that is subtracted as the *medoid*, the client whose median distance to the others is least. Never the
mean: one client can move it, and never a mere sample: one spike can hide from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bartizan.kernels import reference
from bartizan.types import Floats

# Below this ratio of squared distance to squared norm a Gram matrix about the origin has too few digits left.
SHORT_OF_DIGITS = 1e-9


def norm_limit(dtype: np.dtype) -> float:
    """Squared norms above this are not representable where the update came from, or would overflow in sums here."""
    return float(np.finfo(np.float32).max) if dtype == np.float32 else 1e300


@dataclass(frozen=True)
class Look:
    """What one walk over the p coordinates leaves: inner products about the origin, and exact squared norms.

    `about(i)` gives the inner products once more, about row i. A trusted update is the last row, and `trusted_dots`
    are the exact inner products with it, its own the last.
    """

    gram: Floats
    squared_norms: Floats
    about: Callable[[int], Floats]
    trusted_dots: Floats | None = None

    def keep(self, rows: npt.NDArray[np.intp]) -> Look:
        return Look(
            self.gram[np.ix_(rows, rows)],
            self.squared_norms[rows],
            lambda i: self.about(int(rows[i]))[np.ix_(rows, rows)],
            None if self.trusted_dots is None else self.trusted_dots[rows],
        )


@dataclass(frozen=True)
class Geometry:
    """All that a rule may see of M clients: where they lie to each other, to the origin and to a trusted update.

    `inner` holds the inner products of all points, about a central client: the M clients, then the origin, then the
    trusted update if there is one. Sizes are the clients' data sizes S_m; `seed` and `history` are for the rules
    that ask for randomness or for a past.

    >>> square = Geometry.of([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]])
    >>> np.sqrt(square.squared_distances).tolist()
    [[0.0, 3.0, 5.0], [3.0, 0.0, 4.0], [5.0, 4.0, 0.0]]
    >>> square.norms.tolist()
    [0.0, 3.0, 5.0]
    """

    inner: Floats
    gram: Floats
    """Inner products of the clients about the origin: kept beside `inner`, which has not their digits."""
    sizes: Floats
    exact_squared_norms: Floats | None = None
    trusted_dots: Floats | None = None
    seed: int | None = None
    n_mixings: int = 0
    history: tuple[float, ...] = ()

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
            raise ValueError(f"Geometry.of wants one row a client, (M, k); got shape {x.shape}.")
        n_clients = len(x)
        if trusted is not None:
            x = np.vstack([x, np.asarray(trusted, dtype=np.float64)])
        return cls.seen(look_at(x, trusted is not None), n_clients, sizes=sizes, seed=seed, history=history)

    @classmethod
    def seen(
        cls,
        look: Look,
        n_clients: int,
        *,
        sizes: npt.ArrayLike | None = None,
        seed: int | None = None,
        history: tuple[float, ...] = (),
    ) -> Geometry:
        """The geometry that a look leaves: recentred at the medoid, by a second look where digits are short."""
        gram = _with_origin(look.gram, n_clients)
        distances = _squared_distances(gram[:n_clients, :n_clients])
        medians = np.median(distances, axis=1)
        medoid = int(medians.argmin())
        if n_clients > 1 and medians[medoid] < SHORT_OF_DIGITS * gram[medoid, medoid]:
            inner = _with_origin(look.about(medoid), n_clients)
            # From the medoid m the origin lies at -m, and <x - m, -m> = |m|^2 - <x, m>: of these, digits are plenty.
            to_origin = gram[medoid, medoid] - gram[medoid]
            inner[n_clients, :] = inner[:, n_clients] = to_origin
            inner[n_clients, n_clients] = gram[medoid, medoid]
        else:
            inner = gram - gram[medoid] - gram[:, medoid, None] + gram[medoid, medoid]
        return cls(
            inner=_symmetric(inner),
            gram=look.gram[:n_clients, :n_clients],
            sizes=_checked_sizes(one_size_each(sizes, n_clients)),
            exact_squared_norms=look.squared_norms[:n_clients],
            trusted_dots=look.trusted_dots,
            seed=seed,
            history=tuple(history),
        )

    @property
    def n_clients(self) -> int:
        return len(self.sizes)

    @property
    def has_trusted(self) -> bool:
        return self.trusted_dots is not None

    @cached_property
    def shares(self) -> Floats:
        """Data sizes as parts of 1."""
        return self.sizes / self.sizes.sum()

    @property
    def centred(self) -> Floats:
        """Inner products of the clients about one of them: for rules that no common shift changes."""
        return self.inner[: self.n_clients, : self.n_clients]

    @cached_property
    def squared_distances(self) -> Floats:
        return _squared_distances(self.centred)

    @cached_property
    def norms(self) -> Floats:
        """Distances to the origin: exact ones where they are known, also when all else is projected."""
        known = self.exact_squared_norms
        return np.sqrt(np.maximum(np.diag(self.gram) if known is None else known, 0))

    @cached_property
    def medoid(self) -> int:
        """The client whose median distance to the others is least: no minority can make it one of theirs from afar."""
        return int(np.median(self.squared_distances, axis=1).argmin())

    @cached_property
    def trusted_squared_distances(self) -> Floats:
        return _squared_distances(self.inner)[-1, : self.n_clients]

    @cached_property
    def trusted_cosines(self) -> tuple[Floats, float]:
        """Cosines of the clients with the trusted update about the origin, and its norm."""
        M, dots = self.n_clients, self.trusted_dots
        if dots is None:
            raise ValueError("There is no trusted update.")
        norm = float(np.sqrt(max(dots[M], 0)))
        lengths = self.norms * norm
        return np.divide(dots[:M], lengths, out=np.zeros(M), where=lengths > 0).clip(-1, 1), norm

    def mix(self, mixing: Floats) -> Geometry:
        """The geometry of the mixed clients A x, A of shape (M', M); what a row lacks of sum 1 lies at the origin."""
        M, n_mixed = self.n_clients, len(mixing)
        others = len(self.inner) - M
        B = np.zeros((n_mixed + others, len(self.inner)))
        B[:n_mixed, :M] = mixing
        B[:n_mixed, M] = 1 - mixing.sum(axis=1)
        B[n_mixed:, M:] = np.eye(others)
        norms, dots = self.exact_squared_norms, self.trusted_dots
        only_scaled = bool((np.count_nonzero(mixing, axis=1) <= 1).all())
        parted = bool((np.count_nonzero(mixing, axis=0) == 1).all())  # each client in one row: rows own their sizes
        return replace(
            self,
            inner=_symmetric(B @ self.inner @ B.T),
            gram=_symmetric(mixing @ self.gram @ mixing.T),
            n_mixings=self.n_mixings + 1,  # the next one draws its own randomness
            sizes=(mixing > 0) @ self.sizes if parted else self.sizes if n_mixed == M else np.ones(n_mixed),
            exact_squared_norms=mixing**2 @ norms if norms is not None and only_scaled else None,
            trusted_dots=None if dots is None else np.append(mixing @ dots[:M], dots[M]),
        )


def look_at(x: Floats, has_trusted: bool) -> Look:
    """Look at rows that are held in memory; the last may be a trusted one."""

    def about(row: int) -> Floats:
        gram = np.zeros((len(x), len(x)))
        reference.gram(x, x[row], gram)
        return gram

    gram = np.zeros((len(x), len(x)))
    reference.gram(x, None, gram)
    gram = _symmetric(gram)
    return Look(gram, np.diag(gram).copy(), about, gram[-1] if has_trusted else None)


def one_size_each(sizes: npt.ArrayLike | None, n_clients: int) -> Floats:
    """The clients' sizes, ones if not given; what the numbers are is checked of those who take part."""
    given = np.ones(n_clients) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if given.shape != (n_clients,):
        raise ValueError(f"sizes must be {n_clients} positive numbers, one a client; got shape {given.shape}.")
    return given


def _checked_sizes(sizes: Floats) -> Floats:
    if not (np.isfinite(sizes).all() and (sizes > 0).all()):
        raise ValueError(f"sizes must be positive numbers, got {sizes[~(np.isfinite(sizes) & (sizes > 0))][0]}.")
    return sizes / sizes.max()  # so that no sum of them overflows


def _with_origin(gram: Floats, n_clients: int) -> Floats:
    """Insert the origin, zero, as the row after the clients."""
    return np.insert(np.insert(gram, n_clients, 0.0, axis=0), n_clients, 0.0, axis=1)


def _squared_distances(inner: Floats) -> Floats:
    squares = np.diag(inner)
    distances = np.maximum(squares + squares[:, None] - 2 * inner, 0)
    np.fill_diagonal(distances, 0)
    return distances


def _symmetric(matrix: Floats) -> Floats:
    return (matrix + matrix.T) / 2
