"""Rules that average one cluster of clients by their cosines, each clipped in length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.measure.geometry import Geometry
from bartizan.measure.row_points import RowPoints
from bartizan.rules.base import Decision, Rule, averaged, between, shortening


@dataclass(frozen=True)
class ClippedClustering(Rule):
    """Clip to the median of all norms so far, split the clients in two clusters by cosine, average the larger.

    Li, Ngai and Voigt, 2023: average-linkage clustering on cosine distances about the origin; the average is by
    sizes, ties go to the cluster of the first client. The norms of earlier rounds come as `history`, and a
    decision (or a result) holds the one to pass next. What was clipped off stays at the origin.

    >>> ClippedClustering()(Geometry.of([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [-90.0, 0.0]])).round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """

    def weigh(self, geometry: Geometry) -> Decision:
        if not all(0 <= norm < np.inf for norm in geometry.history):
            raise ValueError("history must hold norms, finite and not negative, as the last result's history does.")
        seen = (*geometry.history, *(geometry.unit * geometry.norms).tolist())
        clipping = shortening(geometry.norms, float(np.median(seen)) / geometry.unit)
        return Decision(averaged(larger_cluster(cosine_distances(geometry)), geometry) * clipping, seen)


def cosine_distances(geometry: Geometry) -> Floats:
    norms = np.sqrt(np.maximum(np.diag(geometry.gram), 0))
    lengths = np.outer(norms, norms)
    cosines = np.divide(geometry.gram, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    distances = (1 - cosines.clip(-1, 1)).round(12)  # between parallel clients the last digits would decide
    np.fill_diagonal(distances, 0)
    return (distances + distances.T) / 2


def larger_cluster(distances: Floats) -> Array:
    """Return the larger of the last two clusters of average linkage, by chains of nearest neighbours in O(M^2)."""
    M = len(distances)
    D = distances.copy()
    np.fill_diagonal(D, np.inf)
    members: dict[int, list[int]] = {i: [i] for i in range(M)}
    chain: list[int] = []
    while len(members) > 2:
        if not chain:
            chain.append(next(iter(members)))
        nearest = int(D[chain[-1]].argmin())
        # Distances shrink along the chain, but for rounding: then it ends too.
        if len(chain) > 1 and (D[chain[-1], chain[-2]] <= D[chain[-1], nearest] or nearest in chain):
            a, b = chain.pop(), chain.pop()
            na, nb = len(members[a]), len(members[b])
            D[a] = D[:, a] = (na * D[a] + nb * D[b]) / (na + nb)
            D[b] = D[:, b] = np.inf
            D[a, a] = np.inf
            members[a] += members.pop(b)
        else:
            chain.append(nearest)
    return np.array(sorted(max(members.values(), key=lambda c: (len(list(c)), 0 in c))))


@dataclass(frozen=True)
class FLAME(Rule):
    r"""Average the closest majority by cosine, each client clipped to the median norm; then add Gaussian noise.

    Nguyen et al., 2022. Their HDBSCAN, with clusters of more than half of the clients and `min_samples` 1, finds at
    most one cluster: the first that holds more than half of the clients while single linkage joins them by their cosine
    distances about the origin. That is what is computed here. The average is by sizes, and what was clipped off stays
    at the origin. `noise` is the paper's :math:`\lambda`: every coordinate of the result gets Gaussian noise of
    standard deviation :math:`\lambda` times the median norm, drawn from the round's seed; the paper takes 0.001 for
    images. With 0 there is none; 1, the most, hides the average.

    >>> FLAME()(Geometry.of([[1.0, 0.1], [1.0, 0.0], [2.0, -0.2], [-90.0, 0.0]])).round(2).tolist()
    [0.33, 0.33, 0.25, 0.0]
    """

    noise: float = 0.0

    bytes_per_pair = 0.0

    def __post_init__(self) -> None:
        between(self, "noise", self.noise, 0, 1, "a factor of the median norm")

    def weigh(self, geometry: Geometry) -> Decision:
        median = float(np.median(geometry.norms))
        clipping = shortening(geometry.norms, median)
        if geometry.rows is None:
            cluster = majority_cluster(cosine_distances(geometry))
        else:
            cluster = first_majority(geometry.n_clients, *shortest_links(geometry.rows))
        weights = averaged(cluster, geometry) * clipping
        return Decision(weights, geometry.history, noise=self.noise * geometry.unit * median)


def majority_cluster(distances: Floats) -> Array:
    """Return the first cluster of more than half of the points in single linkage, by Prim's algorithm in O(M^2).

    The edges of the minimum spanning tree up to some length connect the points that single linkage joins up to it.
    Points that join at the same length as the last one are in the cluster, too.
    """
    M = len(distances)
    nearest, links = distances[0].copy(), np.zeros(M, dtype=np.intp)
    edges, outside = [], np.ones(M, dtype=bool)
    outside[0] = False
    while outside.any():
        joins = int(np.where(outside, nearest, np.inf).argmin())
        edges.append((float(nearest[joins]), int(links[joins]), joins))
        outside[joins] = False
        closer = distances[joins] < nearest
        nearest[closer], links[closer] = distances[joins][closer], joins
    lengths, ends, others = zip(*edges, strict=True) if edges else ((), (), ())
    return first_majority(M, np.array(lengths), np.array(ends, int), np.array(others, int))


def first_majority(M: int, lengths: Floats, ends: Array, others: Array) -> Array:
    """Return the first cluster of more than half of the points as the edges of a spanning tree join them by length."""
    cluster, reached = np.arange(M), np.inf
    for edge in np.lexsort((others, ends, lengths)):
        a, b = ends[edge], others[edge]
        if lengths[edge] > reached:
            break
        cluster[cluster == cluster[b]] = cluster[a]
        if 2 * np.count_nonzero(cluster == cluster[a]) > M:
            reached = float(lengths[edge])
    return np.flatnonzero(cluster == np.bincount(cluster).argmax())


def shortest_links(rows: RowPoints) -> tuple[Floats, Array, Array]:
    """Return a minimum spanning tree by cosine distance of many points: lengths and both ends of its edges.

    Borůvka's algorithm: in each of at most log2(M) passes over stripes of the M x M distances, every cluster is joined
    to the one nearest to it. Of equal lengths the edge with the lower ends is taken, so that no circle closes.
    """
    M = rows.n_clients
    cluster, tree = np.arange(M), []
    while len(np.unique(cluster)) > 1:
        nearest, length = np.empty(M, np.intp), np.empty(M)
        for first, distances in rows.cosine_stripes():
            some = slice(first, first + len(distances))
            distances[cluster[some, None] == cluster] = np.inf
            nearest[some] = distances.argmin(axis=1)
            length[some] = np.take_along_axis(distances, nearest[some, None], axis=1)[:, 0]
        every = np.arange(M)
        low, high = np.minimum(every, nearest), np.maximum(every, nearest)
        order = np.lexsort((high, low, length, cluster))
        best = order[np.unique(cluster[order], return_index=True)[1]]  # the shortest of each cluster
        for edge in np.unique(np.stack([low[best], high[best]], axis=1), axis=0):
            a, b = edge.tolist()
            if cluster[a] != cluster[b]:
                tree.append((float(length[a] if nearest[a] == b else length[b]), a, b))
                cluster[cluster == cluster[b]] = cluster[a]
    lengths, ends, others = zip(*tree, strict=True) if tree else ((), (), ())
    return np.array(lengths), np.array(ends, int), np.array(others, int)
