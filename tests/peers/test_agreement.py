"""Where the definitions agree, or agree after converting a parameter, the results agree to rounding."""

import numpy as np
import pytest
from libraries import (
    SHAPES,
    WITH_ATTACKERS,
    byzfl,
    byzpy,
    byzpy_pre,
    coordinate_wise,
    draw,
    geometric_wise,
    norm_wise,
    ours,
)

import bartizan as bz
import oracle

SEEDS = range(30)
ODD = [(M, f, p) for M, f, p in SHAPES if M % 2]
HIGH = [(M, f, p) for M, f, p in SHAPES if p >= 10]
CONVERGED = bz.GeometricMedian(tolerance=1e-13, max_steps=5000)


def close(a, b, seed):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}")


CLIPPING = bz.CenteredClipping(radius=2.0, steps=4)
BYZFL = {
    "GeometricMedian": lambda f: byzfl.GeometricMedian(nu=1e-12, T=500),
    "Clipping": lambda f: byzfl.CenteredClipping(tau=2.0, L=4),
}
BYZPY = {
    "GeometricMedian": lambda f: geometric_wise.GeometricMedian(tol=1e-14, max_iter=500),
    "Clipping": lambda f: norm_wise.CenteredClipping(c_tau=2.0, M=4, init="zero"),
    "MultiKrum": lambda f: geometric_wise.MultiKrum(f, q=3),
    "MoNNA": lambda f: geometric_wise.MoNNA(f, reference_index=2),
}
# Name, shapes, ours of (M, f), and those of ByzFL and ByzPy of f, where they have it and agree.
# The peers count M - f - 1 neighbours in Krum where the paper counts M - f - 2: their f is our f + 1.
TABLE = [
    ("Mean", SHAPES, lambda M, f: bz.Mean(), lambda f: byzfl.Average(), None),
    ("Krum", WITH_ATTACKERS, lambda M, f: bz.Krum(f - 1), byzfl.Krum, geometric_wise.Krum),
    ("MultiKrum", WITH_ATTACKERS, lambda M, f: bz.MultiKrum(f - 1, n_selected=M - f), byzfl.MultiKrum, None),
    ("MultiKrum of 3", WITH_ATTACKERS, lambda M, f: bz.MultiKrum(f - 1, n_selected=3), None, BYZPY["MultiKrum"]),
    ("GeometricMedian", HIGH, lambda M, f: CONVERGED, BYZFL["GeometricMedian"], BYZPY["GeometricMedian"]),
    ("MoNNA", SHAPES, lambda M, f: bz.MoNNA(f), lambda f: byzfl.MoNNA(f, idx=2), BYZPY["MoNNA"]),
    ("SMEA", SHAPES[:3], lambda M, f: bz.SMEA(f), None, geometric_wise.SMEA),
    ("Median", SHAPES, lambda M, f: bz.Median(), lambda f: byzfl.Median(), None),
    ("Median", ODD, lambda M, f: bz.Median(), None, lambda f: coordinate_wise.CoordinateWiseMedian()),
    ("TrimmedMean", SHAPES, lambda M, f: bz.TrimmedMean(f), byzfl.TrMean, coordinate_wise.CoordinateWiseTrimmedMean),
    ("MeaMed", SHAPES, lambda M, f: bz.MeaMed(f), byzfl.Meamed, None),
    ("MeaMed", ODD, lambda M, f: bz.MeaMed(f), None, coordinate_wise.MeanOfMedians),
    ("CGE", SHAPES, lambda M, f: bz.CGE(f), None, norm_wise.ComparativeGradientElimination),
    ("CenteredClipping from zero", SHAPES, lambda M, f: CLIPPING, BYZFL["Clipping"], BYZPY["Clipping"]),
]


@pytest.mark.parametrize(
    ("our", "fl", "py", "shape"),
    [pytest.param(*row, shape, id=f"{name}-{shape}") for name, shapes, *row in TABLE for shape in shapes],
)
def test_a_rule_gives_what_the_peers_give(our, fl, py, shape):
    M, f, _ = shape
    for seed in SEEDS:
        x, rule = draw(seed, *shape), our(M, f)
        found = ours(x, rule, trusted=x[2]) if isinstance(rule, bz.MoNNA) else ours(x, rule)
        if fl is not None:
            close(found, fl(f)(x.copy()), seed)
        if py is not None:
            close(found, byzpy(py(f), x), seed)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_centred_clipping_from_the_mean_is_byzpys(shape):
    for seed in SEEDS:
        x = draw(seed, *shape)
        found = ours(x, bz.CenteredClipping(radius=2.0, steps=10), reference=x.mean(axis=0))
        close(found, byzpy(norm_wise.CenteredClipping(c_tau=2.0), x), seed)


PRE_AGGREGATORS = [
    ("NNM", bz.NNM, byzfl.NNM, byzpy_pre.NearestNeighborMixing),
    ("ARC", bz.ARC, byzfl.ARC, byzpy_pre.ARC),
    ("Clipping", lambda f: bz.Clipping(2.0), lambda f: byzfl.Clipping(2.0), lambda f: byzpy_pre.Clipping(2.0)),
]
pre_aggregators = pytest.mark.parametrize(
    ("our", "fl", "py"), [pytest.param(*pre, id=name) for name, *pre in PRE_AGGREGATORS]
)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pre_aggregators
@shapes
def test_a_pre_aggregator_mixes_as_both_peers_do(our, fl, py, shape):
    for seed in SEEDS:
        x, f = draw(seed, *shape), shape[1]
        mixed = our(f)(bz.Geometry.of(x)) @ x
        close(mixed, fl(f)(x.copy()), seed)
        close(mixed, byzpy(py(f), x), seed)


@pre_aggregators
@shapes
def test_one_weight_vector_stands_for_the_whole_composition_of_byzfl(our, fl, py, shape):
    """Mixed vectors are never formed here: the weights go back through the mixing matrix."""
    for seed in SEEDS[:12]:
        x, f = draw(seed, *shape), shape[1]
        mixed = fl(f)(x.copy())
        close(ours(x, our(f) >> bz.TrimmedMean(f)), byzfl.TrMean(f)(mixed), seed)
        close(ours(x, our(f) >> bz.CenteredClipping(radius=1.0)), byzfl.CenteredClipping(tau=1.0)(mixed), seed)
        if f:
            close(ours(x, our(f) >> bz.MultiKrum(f - 1, n_selected=len(x) - f)), byzfl.MultiKrum(f)(mixed), seed)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@shapes
def test_buckets_are_those_of_both_peers_under_one_shuffle(size, shape, monkeypatch):
    for seed in SEEDS[:12]:
        x = draw(seed, *shape)
        A = bz.Bucketing(size)(bz.Geometry.of(x, seed=seed))
        order = np.concatenate([np.flatnonzero(row) for row in A])
        close(A @ x, byzpy(byzpy_pre.Bucketing(size, perm=order), x), seed)
        monkeypatch.setattr(np.random, "permutation", lambda rows, order=order: rows[order])
        close(A @ x, byzfl.Bucketing(size)(x), seed)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mda_finds_the_diameter_that_both_peers_find_and_the_set_where_it_is_unique(shape):
    """Several sets may share the least diameter: the peers take the first in order, ours any."""
    for seed in SEEDS[:18]:
        x = draw(seed, *shape)
        means = x[oracle.mda(x, shape[1])].mean(axis=1)
        answer = ours(x, bz.MDA(shape[1]))
        assert np.isclose(answer, means, rtol=1e-9, atol=1e-9).all(axis=1).any(), f"seed {seed}"
        for theirs in (byzfl.MDA(shape[1])(x), byzpy(geometric_wise.MinimumDiameterAveraging(shape[1]), x)):
            close(theirs, means[0], seed)


@pytest.mark.parametrize("shape", HIGH, ids=str)
def test_the_geometric_median_as_it_comes_is_byzpys_to_its_tolerance(shape):
    for seed in SEEDS:
        x = draw(seed, *shape)
        theirs = byzpy(geometric_wise.GeometricMedian(), x)
        np.testing.assert_allclose(ours(x, bz.GeometricMedian()), theirs, atol=1e-5, err_msg=f"seed {seed}")
