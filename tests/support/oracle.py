"""Brute-force definitions of every rule and pre-aggregator, in NumPy and float64 on all coordinates.

Tests and the fuzz campaign compare the library with these; they import nothing of it. `x` is (M, p) with one update a
row, `f` the number of Byzantine clients, `sizes` how much each client counts (1 if not given). Rules that select
clients return the selection, all others the aggregated update, and pre-aggregators the mixed clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def squared_distances(x):
    return ((x[:, None] - x[None]) ** 2).sum(axis=2)


def norms(x):
    return np.sqrt(np.sum(x**2, axis=1))


def mean(x, sizes=None):
    return np.average(x, axis=0, weights=sizes)


def sizes_of(x, sizes=None):
    return np.ones(len(x)) if sizes is None else np.asarray(sizes, np.float64)


def n_byzantine_left(f: int, n_out: int, admits) -> int | None:
    """The largest g <= f that `admits` for the clients that are left, of which `n_out` are missing; None if unsafe."""
    left = max((g for g in range(f + 1) if admits(g)), default=-1)
    return left if left == f or (n_out <= f and left >= max(0, f - n_out)) else None


# Rules that select clients.


def krum_scores(D, n_neighbours: int):
    """Sum of the squared distances `D` of each client to its `n_neighbours` nearest others."""
    return np.array([np.sort(np.delete(row, i))[:n_neighbours].sum() for i, row in enumerate(D)])


def multi_krum(x, f: int, n_selected: int | None = None):
    """The clients with the least Krum scores over M - f - 2 neighbours (Blanchard et al., 2017)."""
    M = len(x)
    scores = krum_scores(squared_distances(x), M - f - 2)
    return np.argsort(scores, kind="stable")[: M - f if n_selected is None else n_selected]


def krum(x, f: int) -> int:
    return int(multi_krum(x, f, n_selected=1)[0])


def bulyan(x, f: int) -> list[int]:
    """The M - 2f clients that repeated Krum selects from those that are left (El Mhamdi et al., 2018)."""
    D, left, selected = squared_distances(x), list(range(len(x))), []
    while len(selected) < len(x) - 2 * f:
        scores = krum_scores(D[np.ix_(left, left)], max(len(left) - f - 2, f, 1))
        selected.append(left.pop(int(scores.argmin())))
    return selected


def subsets(M: int, f: int):
    """All sets of M - f clients, one per row."""
    return np.array(list(combinations(range(M), M - f)))


def diameters(x, sets):
    """The largest squared distance within each set of clients."""
    D = squared_distances(x)
    return np.array([D[np.ix_(s, s)].max() for s in sets])


def mda(x, f: int):
    """All sets of M - f clients with the least diameter: one pair makes it, so several sets may share it."""
    sets = subsets(len(x), f)
    found = diameters(x, sets)
    return sets[np.isclose(found, found.min(), rtol=1e-12, atol=0)]


def largest_variance(x) -> float:
    """The largest eigenvalue of the clients' covariance matrix."""
    return float(np.linalg.eigvalsh(np.cov(x.T, bias=True))[-1])


def smea(x, f: int):
    """The set of M - f clients whose covariance has the least largest eigenvalue."""
    return min(subsets(len(x), f), key=lambda s: largest_variance(x[s]))


def cge(x, f: int):
    """The M - f clients with the least norms."""
    return np.argsort(norms(x), kind="stable")[: len(x) - f]


def monna(x, f: int, trusted):
    """The M - f clients nearest to the trusted update."""
    return np.argsort(norms(x - trusted), kind="stable")[: len(x) - f]


def spectral_dnc(x, f: int):
    """What is left when the client farthest along the first principal component is removed f times."""
    left = np.arange(len(x))
    for _ in range(f):
        centred = x[left] - x[left].mean(axis=0)
        along = (centred @ np.linalg.svd(centred)[2][0]) ** 2
        left = np.delete(left, along.argmax())
    return left


def larger_cluster(D) -> list[int]:
    """The larger of two clusters by average linkage over the distances `D`."""
    clusters = [[i] for i in range(len(D))]
    while len(clusters) > 2:
        a, b = min(
            combinations(range(len(clusters)), 2), key=lambda ab: D[np.ix_(clusters[ab[0]], clusters[ab[1]])].mean()
        )
        clusters[a] += clusters.pop(b)
    return sorted(max(clusters, key=lambda c: (len(c), 0 in c)))


# Rules that weigh clients.


def geometric_median_cost(x, z, sizes=None) -> float:
    """The sum of distances that the geometric median minimises."""
    return float(sizes_of(x, sizes) @ norms(x - z))


def geometric_median(x, sizes=None):
    """The least sum of distances, in long double: the best client, or Newton's method from a point better than it."""
    x, s = x.astype(np.longdouble), sizes_of(x, sizes).astype(np.longdouble)
    D = np.sqrt(squared_distances(x))
    best = (D @ s).argmin()
    away = D[best] > 0
    force = (s[away] / D[best, away]) @ (x[away] - x[best])
    if np.sqrt(force @ force) <= s[~away].sum():
        return x[best].astype(np.float64)

    def derivatives(z):
        d = norms(x - z)
        unit = (x - z) / d[:, None]
        return -s @ unit, np.eye(x.shape[1]) * (s / d).sum() - (unit.T * (s / d)) @ unit

    z = x[best] + force / np.sqrt(force @ force) * np.median(D[best, away])
    while derivatives(z)[0] @ force > 0:
        z = (z + x[best]) / 2
    for _ in range(200):
        gradient, hessian = derivatives(z)
        step = np.linalg.solve(hessian.astype(np.float64), -gradient.astype(np.float64))
        # Along a line the slope of a convex sum only grows: as long as it is no steeper, the minimum is nearer.
        while abs(derivatives(z + step)[0] @ step) > abs(gradient @ step) and (step @ step) > 0:
            step /= 2
        z = z + step
    return z.astype(np.float64)


def mca(x, width: float | None = None, steps: int = 20_000, start: str = "medoid"):
    """The fixed point of Gaussian weights around it, iterated from the medoid or the mean."""
    D = squared_distances(x)
    medoid = np.median(D, axis=1).argmin()
    z = x[medoid] if start == "medoid" else x.mean(axis=0)
    to_z = np.sqrt(np.sum((x - z) ** 2, axis=1))
    usual = np.median(to_z) if start == "medoid" else to_z.mean()
    width = usual if width is None else width
    for _ in range(steps):
        z = mean(x, np.exp(-np.sum((x - z) ** 2, axis=1) / (2 * width**2)))
    return z


def centered_clipping(x, radius: float | None, steps: int):
    """Steps by the mean of the differences, each clipped to `radius` or to their median length."""
    v = np.zeros(x.shape[1])
    for _ in range(steps):
        limit = np.median(norms(x - v)) if radius is None else radius
        v = v + clipping(x - v, limit).mean(axis=0)
    return v


def fltrust(x, trusted):
    """The mean by positive cosines with the trusted update, of clients no longer than it."""
    length = np.linalg.norm(trusted)
    scores = np.maximum(x @ trusted / norms(x) / length, 0)
    return mean(clipping(x, length), scores)


def caf(x, f: int, only_weighted: bool = True, sizes=None):
    """The weighted mean of least variance while clients lose weight along the top eigenvector.

    They lose up to twice what the f largest hold of it. The largest squared coordinate is taken among the clients that
    still have weight, or among all.
    """
    c, best, least = sizes_of(x, sizes), None, np.inf
    end = c.sum() - 2 * sum(sorted(c, reverse=True)[:f])
    while c.sum() > end or best is None:
        z = mean(x, c)
        values, vectors = np.linalg.eigh((c[:, None] * (x - z)).T @ (x - z) / c.sum())
        if values[-1] < least:
            best, least = z, values[-1]
        t = ((x - z) @ vectors[:, -1]) ** 2
        c = c * (1 - t / t[c > 0 if only_weighted else c >= 0].max()).clip(0)
    return best


def clipped_clustering(x, history: Sequence[float] = ()):
    """The mean of the larger cluster by cosine distance, clipped to the median of all norms so far."""
    unit = x / norms(x)[:, None]
    limit = np.median([*history, *norms(x)])
    return clipping(x, limit)[larger_cluster(1 - unit @ unit.T)].mean(axis=0)


def flame(x):
    """The mean of the majority by single linkage of cosine distances, clipped to the median norm."""
    unit = x / norms(x)[:, None]
    D = (1 - unit @ unit.T).round(12)
    for length in np.unique(D):  # the least length that connects more than half of the clients
        for client in range(len(x)):
            near, size = D[client] <= length, 0
            while near.sum() > size:
                near, size = (D[near] <= length).any(axis=0), near.sum()
            if 2 * size > len(x):
                return clipping(x, np.median(norms(x)))[near].mean(axis=0)


# Pre-aggregators.


def nnm(x, f: int, sizes=None):
    """Each client's average with its nearest, M - f clients in all."""
    sizes, D = sizes_of(x, sizes), squared_distances(x)
    nearest = [np.argsort(row, kind="stable")[: len(x) - f] for row in D]
    return np.array([mean(x[near], sizes[near]) for near in nearest])


def clipping(x, radius: float, origin=0.0):
    """Clients shortened towards the origin to a length of at most `radius`."""
    away = x - origin
    length = np.maximum(norms(away), np.finfo(np.float64).tiny)
    return origin + away * np.minimum(1, radius / length)[:, None]


def arc(x, f: int):
    """Clients clipped to the norm that floor(2 f (M - f) / M) of them exceed."""
    M = len(x)
    n_clipped = 2 * f * (M - f) // M
    return clipping(x, np.sort(norms(x))[M - n_clipped - 1])


def norm_filter(x, low: float = 0.1, high: float = 3.0):
    """The clients whose norm is from `low` to `high` times the (lower) median norm."""
    median = np.sort(norms(x))[(len(x) - 1) // 2]
    return x[[low * median <= norm <= high * median for norm in norms(x)]]


def bucketing(x, size: int, order):
    """Means of `size` clients each, in a shuffled order."""
    return np.array([x[order[i : i + size]].mean(axis=0) for i in range(0, len(x), size)])


# Coordinate-wise rules.


def median(x, sizes=None):
    """The value of each coordinate with half of the sizes on either side, or the mean of two such values."""
    sizes = sizes_of(x, sizes)
    order = np.argsort(x, axis=0, kind="stable")
    ordered, share_up_to = np.take_along_axis(x, order, axis=0), np.cumsum(sizes[order], axis=0) / sizes.sum()
    low, high = ((share_up_to < half).sum(axis=0) for half in (0.5 - 1e-12, 0.5 + 1e-12))
    columns = np.arange(x.shape[1])
    return (ordered[low, columns] + ordered[high, columns]) / 2


def trimmed_mean(x, f: int, sizes=None):
    """The mean of each coordinate without its f least and f largest values; equal ones are ordered by size."""
    ranks = np.lexsort((np.broadcast_to(sizes_of(x, sizes)[:, None], x.shape), x), axis=0)
    return _mean_of(x, ranks[f : len(x) - f], sizes)


def meamed(x, f: int, sizes=None):
    """The mean of each coordinate's M - f values nearest to its median, the smaller one first of two equally near.

    Of equal values below the median those of larger size come first, of others those of smaller size.
    """
    centre, size = median(x, sizes), sizes_of(x, sizes)[:, None]
    order = np.lexsort((np.where(x < centre, -size, size), x, np.abs(x - centre)), axis=0)
    return _mean_of(x, order[: len(x) - f], sizes)


def _mean_of(x, rows, sizes):
    weights = sizes_of(x, sizes)[rows]
    return (np.take_along_axis(x, rows, axis=0) * weights).sum(axis=0) / weights.sum(axis=0)


def coordinate_wise(rule, x, sizes=None):
    """The result of one of the library's coordinate-wise rules, by its name and `n_byzantine`."""
    if type(rule).__name__ == "Median":
        return median(x, sizes)
    return {"TrimmedMean": trimmed_mean, "MeaMed": meamed}[type(rule).__name__](x, rule.n_byzantine, sizes)
