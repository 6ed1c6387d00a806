"""Minimum diameter averaging, solved exactly as a vertex cover of the far pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.geometry import Geometry
from bartizan.rules.base import Bounded, Rule, averaged


@dataclass(frozen=True)
class MDA(Bounded, Rule):
    """Average, by sizes, the M - f clients whose largest mutual distance is least.

    El Mhamdi et al., 2021 (and Rousseeuw's minimal diameter). All M - f clients lie within a diameter exactly when f
    clients cover every pair farther apart, so a bisection over the distances with a bounded search for a vertex cover
    finds the exact optimum, in time that grows with f and not with the number of subsets. Refuses after `max_nodes`
    nodes of that search. Several sets may share the least diameter: which is taken depends on the clients' order.
    Withstands f attackers among M >= 2f + 1 clients.

    >>> MDA(n_byzantine=1)(Geometry.of([[0.0], [1.0], [2.0], [90.0]])).round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """

    max_nodes: int = 1_000_000

    def weigh(self, geometry: Geometry) -> Floats:
        D, f = geometry.squared_distances, self.n_byzantine
        M = len(D)
        budget = [self.max_nodes]
        diameters = np.unique(D)
        low, high, removed = 0, len(diameters) - 1, list(range(M - f, M))
        while low <= high:
            middle = (low + high) // 2
            cover = _cover(_far_pairs(D, diameters[middle]), f, budget)
            if budget[0] < 0:
                raise ValueError(
                    f"MDA gave up after {self.max_nodes} search nodes: {M} clients with n_byzantine={f} are too "
                    f"many to search exactly. Raise max_nodes, lower n_byzantine, or use MultiKrum."
                )
            if cover is None:
                low = middle + 1
            else:
                high, removed = middle - 1, cover
        kept = [i for i in range(M) if i not in set(removed)]
        return averaged(_tightest(D, kept, M - f), geometry)


def _far_pairs(D: Floats, diameter: float) -> dict[int, int]:
    """The graph of pairs farther apart than the diameter: for each client its neighbours as the bits of an integer."""
    far = diameter < D
    return {i: sum(1 << int(j) for j in np.flatnonzero(row)) for i, row in enumerate(far) if row.any()}


def _cover(graph: dict[int, int], most: int, budget: list[int]) -> list[int] | None:
    """At most `most` vertices that touch every edge, or None; branches on the vertex of highest degree."""
    budget[0] -= 1
    if budget[0] < 0:
        return None
    graph = {v: neighbours for v, neighbours in graph.items() if neighbours}
    if not graph:
        return []
    if most == 0:
        return None
    degrees = {v: neighbours.bit_count() for v, neighbours in graph.items()}
    top = max(degrees, key=lambda v: degrees[v])
    if sum(degrees.values()) // 2 > most * degrees[top]:
        return None  # that many edges can't be touched by so few vertices
    if degrees[top] <= 2:
        # Paths and cycles: the neighbour of an end is always right; a cycle may be cut anywhere.
        ends = [v for v, degree in degrees.items() if degree == 1]
        take = graph[ends[0]].bit_length() - 1 if ends else top
        rest = _cover(_without(graph, take), most - 1, budget)
        return None if rest is None else [take, *rest]
    rest = _cover(_without(graph, top), most - 1, budget)
    if rest is not None:
        return [top, *rest]
    if degrees[top] > most:
        return None
    neighbours = [v for v in graph if graph[top] >> v & 1]
    for v in neighbours:
        graph = _without(graph, v)
    rest = _cover(graph, most - len(neighbours), budget)
    return None if rest is None else [*neighbours, *rest]


def _without(graph: dict[int, int], vertex: int) -> dict[int, int]:
    return {v: neighbours & ~(1 << vertex) for v, neighbours in graph.items() if v != vertex}


def _tightest(D: Floats, kept: list[int], count: int) -> Array:
    """Where the cover needed fewer than f clients, the farthest of the rest go too, one by one."""
    while len(kept) > count:
        inside = D[np.ix_(kept, kept)]
        kept.pop(int(inside.sum(axis=1).argmax()))
    return np.array(kept)
