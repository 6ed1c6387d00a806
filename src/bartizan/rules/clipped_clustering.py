"""Clipped clustering: clip by the norms of all rounds, then average the larger of two clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.measure.geometry import Geometry
from bartizan.rules.base import Decision, Rule, averaged, shortening


@dataclass(frozen=True)
class ClippedClustering(Rule):
    """Clip to the median of all norms so far, split the clients in two clusters by cosine, average the larger.

    Li, Ngai and Voigt, 2023: average-linkage clustering on cosine distances about the origin; the average is by
    sizes, ties go to the cluster of the first client. The norms of earlier rounds come as `history`, and a
    decision (or a result) holds the one to pass next. What was clipped off stays at the origin.

    >>> ClippedClustering()(Geometry.of([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [-90.0, 0.0]])).round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """

    def _decide(self, geometry: Geometry) -> Decision:
        return Decision(self.weigh(geometry), self._norms_seen(geometry))

    def weigh(self, geometry: Geometry) -> Floats:
        limit = float(np.median(self._norms_seen(geometry))) / geometry.unit
        clipping = shortening(geometry.norms, limit)
        return averaged(larger_cluster(cosine_distances(geometry)), geometry) * clipping

    def _norms_seen(self, geometry: Geometry) -> tuple[float, ...]:
        if not all(0 <= norm < np.inf for norm in geometry.history):
            raise ValueError("history must hold norms, finite and not negative, as the last result's history does.")
        return (*geometry.history, *(geometry.unit * geometry.norms).tolist())


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
