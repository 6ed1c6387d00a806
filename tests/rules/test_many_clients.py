"""Rounds of many clients: rules that pass over rows give the weights that the matrix of all pairs gives."""

from __future__ import annotations

import numpy as np
import pytest

import bartizan as bz

from bartizan.measure.geometry import Geometry, gram_about
from bartizan.measure.measurements import Measurements
from bartizan.measure.row_points import CANDIDATES


def both(x, *, sizes=None, trusted=None, seed=0, history=()):
    """Return the geometry of the same rows with and without a matrix of all pairs."""
    M = len(x)
    x = np.asarray(x if trusted is None else np.vstack([x, trusted]), dtype=np.float64)
    norms = np.einsum("ij,ij->i", x, x)
    dots, more = None if trusted is None else x @ x[-1], {"sizes": sizes, "seed": seed, "history": history}
    by_rows = Measurements(tuple(range(M)), norms, x, None, dots, seed=seed)
    by_pairs = Measurements(tuple(range(M)), norms, None, gram_about(x, None), dots, seed=seed)
    return (
        Geometry.measured(by_rows, lambda row: x - x[row], **more),
        Geometry.measured(by_pairs, lambda row: gram_about(x, row), **more),
    )


def made(kind, M, k, seed=0):
    rng = np.random.default_rng([seed, M, k])
    x = rng.normal(size=(M, k))
    f = M // 5
    if kind == "attacked":
        x[:f] = -3 + 0.1 * x[:f]
    elif kind == "an offset":
        x += 1e7 * rng.normal(size=k)
    elif kind == "giants":
        x[:f] *= 1e12
    elif kind == "one giant and an offset":
        x[0] *= 1e12
        x += 1e6
    elif kind == "ties":
        x = rng.integers(-1, 2, size=(M, k)).astype(float)
    elif kind == "one point":
        x[: M - f] = x[-1]
    elif kind == "two points":
        x[: M // 2], x[M // 2 :] = x[0], x[-1]
    elif kind == "a line":
        x = np.outer(rng.normal(size=M), rng.normal(size=k))
    elif kind == "tiny":
        x *= 1e-120
    return x


KINDS = ["plain", "attacked", "an offset", "giants", "one giant and an offset", "ties", "one point", "two points"]
KINDS += ["a line", "tiny"]
SHAPES = [(3, 1), (4, 7), (17, 300), (65, 2), (130, 33), (700, 64)]


def rules(M):
    """Rules that need no matrix, and those that read it in stripes."""
    f = M // 5
    yield from (bz.Mean(), bz.CGE(f), bz.GeometricMedian(tolerance=1e-12), bz.MCA(), bz.MCA(width=2.0))
    yield from (bz.MCA(start="mean"), bz.CenteredClipping(), bz.CenteredClipping(radius=1.0, steps=5))
    yield from (bz.MoNNA(f), bz.FLTrust(), bz.NormFilter() >> bz.Mean(), bz.Bucketing(2) >> bz.GeometricMedian(1e-12))
    yield from (bz.Clipping(1.0) >> bz.MCA(), bz.ARC(f) >> bz.CenteredClipping(), bz.ARC(f) >> bz.CAF(f))
    yield from (bz.NNM(f) >> bz.GeometricMedian(1e-12), bz.NNM(f) >> bz.CAF(f))
    if 2 * f + 3 <= M:
        yield from (bz.Krum(f), bz.MultiKrum(f), bz.NNM(f) >> bz.Krum(f))


def ambiguous(rule, kind, M):
    """Of many clients on a line, or at two points, several are the medoid, or nearly, and the sum is flat."""
    if M <= CANDIDATES or kind not in ("a line", "two points"):
        return False
    return isinstance(rule, bz.MCA) or kind == "a line"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("M", "k"), SHAPES)
def test_rows_give_the_weights_of_the_matrix(kind, M, k):
    x = made(kind, M, k)
    for sizes in (None, np.random.default_rng(1).uniform(1, 3, M)):
        by_rows, by_pairs = both(x, sizes=sizes, trusted=x[M // 2] + x[M // 3] / 3)
        assert by_rows.rows is not None and by_pairs.rows is None
        for rule in rules(M):
            if ambiguous(rule, kind, M):
                continue
            weights = rule(by_rows)
            # A matrix about the medoid has fewer digits beside an offset of 10^7.
            np.testing.assert_allclose(
                weights, rule(by_pairs), atol=1e-8 if "offset" in kind else 1e-9, err_msg=repr(rule)
            )
            scores, wanted = by_rows.distances_to_mean(weights), by_pairs.distances_to_mean(weights)
            np.testing.assert_allclose(scores, wanted, rtol=1e-7, atol=1e-7 * wanted.max(), err_msg=repr(rule))
