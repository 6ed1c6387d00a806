"""What `weigh`, `repeated_krum` and `sandwich` compute: in NumPy, to be read, with their names and signatures.

The tests' only judge.
"""

from __future__ import annotations

import math

import numpy as np

from bartizan._util.types import Array, Floats


def distances(inner: Floats, n_clients: int) -> tuple[Floats, int, float]:
    clients = inner[:n_clients, :n_clients]
    squares = np.diag(clients)
    D = np.maximum(squares + squares[:, None] - 2 * clients, 0)
    medians = np.median(D, axis=1)
    return D, int(medians.argmin()), float(medians.min())


def recentred(gram: Floats, centre: int, n_clients: int) -> Floats:
    with_origin = np.insert(np.insert(gram, n_clients, 0.0, axis=0), n_clients, 0.0, axis=1)
    c = centre + (centre >= n_clients)
    return with_origin - with_origin[c] - with_origin[:, c, None] + with_origin[c, c]


def capped_sums(D: Floats, cap: float) -> Floats:
    return np.minimum(D, cap).sum(axis=1)


def nearest(D: Floats, n: int, sizes: Floats) -> Floats:
    itself_first = D - np.diag(np.ones(len(D)))
    order = np.argsort(itself_first, axis=1, kind="stable")[:, :n]
    A = np.zeros_like(D)
    np.put_along_axis(A, order, sizes[order], axis=1)
    return A / A.sum(axis=1, keepdims=True)


def distance_sums(C: Floats, D: Floats, shares: Floats, pivot: int) -> Floats:
    """sum_j s_j (d_ij - d_pj) for all i and the pivot p, each difference as (d_ij^2 - d_pj^2) / (d_ij + d_pj).

    Summed as they are, distances to one giant would leave no digits of the others'.
    """
    squares, sums = np.diag(C), np.sqrt(D) + np.sqrt(D[pivot])
    differences = squares[:, None] - squares[pivot] - 2 * (C - C[pivot])
    return np.divide(differences, sums, out=np.zeros_like(D), where=sums > 0) @ shares


def weiszfeld(inner: Floats, D: Floats, pivot: int, shares: Floats, tolerance: float, max_steps: int) -> Floats:
    C = inner[: len(shares), : len(shares)]
    weights = np.zeros(len(shares))
    weights[distance_sums(C, D, shares, pivot).argmin()] = 1.0
    for _ in range(max_steps):
        distances = np.sqrt(_squared_distances_to(C, weights))
        scale = np.median(distances)
        here = distances <= 1e-8 * scale
        pulls = np.divide(shares, distances, out=np.zeros_like(shares), where=~here)
        if not pulls.any():
            return shares * here / shares[here].sum()
        step = pulls / pulls.sum()
        if here.any():
            # Vardi and Zhang: the clients met hold z back with their size, the others pull with force |R|.
            held = shares * here / shares[here].sum()
            force = _length(C, pulls - pulls.sum() * held)
            stay = min(1.0, shares[here].sum() / force) if force > 0 else 1.0
            step = (1 - stay) * step + stay * held
        moved = _length(C, step - weights)
        weights = step
        if moved <= tolerance * scale:
            break
    return weights


def correntropy(inner: Floats, start: int, shares: Floats, width: float, tolerance: float, max_steps: int) -> Floats:
    C = inner[: len(shares), : len(shares)]
    weights = np.zeros(len(shares))
    weights[start] = 1.0
    for _ in range(max_steps):
        squares = _squared_distances_to(C, weights)
        with np.errstate(over="ignore"):  # so far away that the kernel is 0
            step = shares * np.exp((squares.min() - squares) / width / width / 2)
        step /= step.sum()
        moved = _length(C, step - weights)
        weights = step
        if moved <= tolerance * width:
            break
    return weights


def _squared_distances_to(C: Floats, weights: Floats) -> Floats:
    Cw = C @ weights
    return np.maximum(np.diag(C) - 2 * Cw + weights @ Cw, 0)


def _length(C: Floats, difference: Floats) -> float:
    """|sum_i d_i x_i| for differences that sum to 0."""
    return math.sqrt(max(float(difference @ C @ difference), 0.0))


def by_distance(D: Floats) -> Array:
    return np.argsort(D, axis=1, kind="stable")


def repeated_krum(D: Floats, f: int, n_selected: int) -> Array:
    """Scores are exact sums, rounded once; ties go to the lower index."""
    M = len(D)
    others = D + np.diag(np.full(M, np.inf))
    order = np.argsort(others, axis=1, kind="stable")
    nearest = np.take_along_axis(others, order, axis=1)
    left = np.ones(M, dtype=bool)
    selected = []
    for remaining in range(M, M - n_selected, -1):
        n_neighbours = min(max(remaining - f - 2, f, 1), remaining - 1)
        scores = np.full(M, np.inf)
        for i in np.flatnonzero(left):
            scores[i] = math.fsum(nearest[i, left[order[i]]][:n_neighbours])
        selected.append(int(scores.argmin()))
        left[selected[-1]] = False
    return np.array(selected)


def sandwich(B: Floats, S: Floats) -> Floats:
    product = B @ S @ B.T
    return (product + product.T) / 2
