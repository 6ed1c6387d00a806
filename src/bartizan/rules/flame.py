"""FLAME: keep the clients of one majority by cosine, clip them to the median norm, add noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Decision, Rule, averaged, between, shortening
from bartizan.rules.clipped_clustering import cosine_distances


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

    def __post_init__(self) -> None:
        between(self, "noise", self.noise, 0, 1, "a factor of the median norm")

    def _decide(self, geometry: Geometry) -> Decision:
        noise = self.noise * geometry.unit * float(np.median(geometry.norms))
        return Decision(self.weigh(geometry), geometry.history, noise=noise)

    def weigh(self, geometry: Geometry) -> Floats:
        clipping = shortening(geometry.norms, float(np.median(geometry.norms)))
        return averaged(majority_cluster(cosine_distances(geometry)), geometry) * clipping


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
    cluster, reached = np.arange(M), np.inf
    for length, a, b in sorted(edges):
        if length > reached:
            break
        cluster[cluster == cluster[b]] = cluster[a]
        if 2 * np.count_nonzero(cluster == cluster[a]) > M:
            reached = length
    return np.flatnonzero(cluster == np.bincount(cluster).argmax())
