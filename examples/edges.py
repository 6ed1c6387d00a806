"""Edge servers that hold the updates of their own clients, and a root that decides as if it held all of them.

Run as `python examples/edges.py`. Only sketches, norms, weights and one sum an edge travel. The edges must be honest;
docs/explanation/scaling.md says why.
"""

from dataclasses import replace

import numpy as np

import bartizan as bz
from bartizan._util.seeds import fresh_seed
from bartizan.defense.decide import rule_for_remaining
from bartizan.geometry import norm_limit

SKETCH, RULE = bz.Rotated(k=1024), bz.NNM(6) >> bz.GeometricMedian()


class Edge:
    """Holds some clients' updates; whoever is not finite, or too large to be squared, never leaves it."""

    def __init__(self, updates):
        with np.errstate(over="ignore"):
            norms = np.einsum("ij,ij->i", updates, updates, dtype=np.float64)
        fit = norms <= norm_limit(updates.dtype)  # False for NaN
        self.updates, self.norms, self.n_dropped = updates[fit], norms[fit], int((~fit).sum())

    def look(self, seed):
        """33 kB a client at k = 4096, however long the updates are; nothing where no client is left."""
        return SKETCH(self.updates, seed=seed) if len(self.updates) else np.empty((0, SKETCH.k))

    def combine(self, weights):
        return weights @ self.updates


def at_the_root(edges):
    """The seed is drawn when every client has sent its update, and no edge's rule comes in between."""
    n_left, n_dropped = sum(len(edge.updates) for edge in edges), sum(edge.n_dropped for edge in edges)
    rule = rule_for_remaining(RULE, n_left, {}, n_dropped)
    seed = fresh_seed()
    geometry = bz.Geometry.of(np.vstack([edge.look(seed) for edge in edges]), seed=seed)
    geometry = replace(geometry, exact_squared_norms=np.concatenate([edge.norms for edge in edges]))
    weights = rule(geometry)
    cuts = np.cumsum([len(edge.updates) for edge in edges])[:-1]
    sums = [edge.combine(part) for edge, part in zip(edges, np.split(weights, cuts), strict=True)]
    return sum(sums), weights, seed


def main():
    updates = np.random.default_rng(0).normal(size=(20, 50_001)) + 1
    updates[:5] = -50  # five lie, all of them at the first edge, where they are most ...
    updates[12, 7] = np.nan  # ... and one is broken
    edges = [Edge(updates[first:last]) for first, last in ((0, 7), (7, 11), (11, 20))]
    answer, weights, seed = at_the_root(edges)

    flat = bz.aggregate(updates, RULE, sketch=SKETCH, seed=seed)
    assert np.allclose(weights, np.delete(flat.weights, 12), atol=1e-6)
    assert np.allclose(answer, flat.update, atol=1e-6)
    print(
        f"weight of the attackers {weights[:5].sum():.4f}; mean of the answer {answer.mean():.3f}, as from one server"
    )


if __name__ == "__main__":
    main()
