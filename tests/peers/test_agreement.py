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

import oracle
from bartizan import (
    ARC,
    CGE,
    MDA,
    NNM,
    SMEA,
    Bucketing,
    CenteredClipping,
    Clipping,
    GeometricMedian,
    Geometry,
    Krum,
    Mean,
    MoNNA,
    MultiKrum,
)
from bartizan.rules.coordinatewise import MeaMed, Median, TrimmedMean

SEEDS = range(30)
ODD = [(M, f, p) for M, f, p in SHAPES if M % 2]
HIGH = [(M, f, p) for M, f, p in SHAPES if p >= 10]
CONVERGED = GeometricMedian(tolerance=1e-13, max_steps=5000)


def close(a, b, seed):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}")


def crossed(table):
    """One test for each rule and each shape that it is compared on."""
    return pytest.mark.parametrize(
        ("our", "their", "shape"),
        [pytest.param(o, t, s, id=f"{name}-{s}") for name, shapes, o, t in table for s in shapes],
    )


# The peers count M - f - 1 neighbours in Krum where the paper counts M - f - 2: their f is our f + 1.
@crossed(
    [
        ("Mean", SHAPES, lambda x, f: ours(x, Mean()), lambda x, f: byzfl.Average()(x)),
        ("Krum", WITH_ATTACKERS, lambda x, f: ours(x, Krum(f - 1)), lambda x, f: byzfl.Krum(f)(x)),
        (
            "MultiKrum",
            WITH_ATTACKERS,
            lambda x, f: ours(x, MultiKrum(f - 1, n_selected=len(x) - f)),
            lambda x, f: byzfl.MultiKrum(f)(x),
        ),
        (
            "GeometricMedian",
            HIGH,
            lambda x, f: ours(x, CONVERGED),
            lambda x, f: byzfl.GeometricMedian(nu=1e-12, T=500)(x),
        ),
        ("MoNNA", SHAPES, lambda x, f: ours(x, MoNNA(f), trusted=x[2]), lambda x, f: byzfl.MoNNA(f, idx=2)(x)),
        ("Median", SHAPES, lambda x, f: ours(x, Median()), lambda x, f: byzfl.Median()(x)),
        ("TrimmedMean", SHAPES, lambda x, f: ours(x, TrimmedMean(f)), lambda x, f: byzfl.TrMean(f)(x)),
        ("MeaMed", SHAPES, lambda x, f: ours(x, MeaMed(f)), lambda x, f: byzfl.Meamed(f)(x)),
        (
            "CenteredClipping",
            SHAPES,
            lambda x, f: ours(x, CenteredClipping(radius=2.0, steps=4)),
            lambda x, f: byzfl.CenteredClipping(tau=2.0, L=4)(x),
        ),
    ]
)
def test_a_rule_gives_what_byzfl_gives(our, their, shape):
    for seed in SEEDS:
        x = draw(seed, *shape)
        close(our(x, shape[1]), their(x.copy(), shape[1]), seed)


@crossed(
    [
        ("Krum", WITH_ATTACKERS, lambda x, f: ours(x, Krum(f - 1)), lambda x, f: byzpy(geometric_wise.Krum(f), x)),
        (
            "MultiKrum",
            WITH_ATTACKERS,
            lambda x, f: ours(x, MultiKrum(f - 1, n_selected=3)),
            lambda x, f: byzpy(geometric_wise.MultiKrum(f, q=3), x),
        ),
        (
            "GeometricMedian",
            HIGH,
            lambda x, f: ours(x, CONVERGED),
            lambda x, f: byzpy(geometric_wise.GeometricMedian(tol=1e-14, max_iter=500), x),
        ),
        (
            "MoNNA",
            SHAPES,
            lambda x, f: ours(x, MoNNA(f), trusted=x[2]),
            lambda x, f: byzpy(geometric_wise.MoNNA(f, reference_index=2), x),
        ),
        ("SMEA", SHAPES[:3], lambda x, f: ours(x, SMEA(f)), lambda x, f: byzpy(geometric_wise.SMEA(f), x)),
        ("Median", ODD, lambda x, f: ours(x, Median()), lambda x, f: byzpy(coordinate_wise.CoordinateWiseMedian(), x)),
        (
            "TrimmedMean",
            SHAPES,
            lambda x, f: ours(x, TrimmedMean(f)),
            lambda x, f: byzpy(coordinate_wise.CoordinateWiseTrimmedMean(f), x),
        ),
        ("MeaMed", ODD, lambda x, f: ours(x, MeaMed(f)), lambda x, f: byzpy(coordinate_wise.MeanOfMedians(f), x)),
        (
            "CGE",
            SHAPES,
            lambda x, f: ours(x, CGE(f)),
            lambda x, f: byzpy(norm_wise.ComparativeGradientElimination(f), x),
        ),
        (
            "CenteredClipping from zero",
            SHAPES,
            lambda x, f: ours(x, CenteredClipping(radius=2.0, steps=4)),
            lambda x, f: byzpy(norm_wise.CenteredClipping(c_tau=2.0, M=4, init="zero"), x),
        ),
        (
            "CenteredClipping from the mean",
            SHAPES,
            lambda x, f: ours(x, CenteredClipping(radius=2.0, steps=10), reference=x.mean(axis=0)),
            lambda x, f: byzpy(norm_wise.CenteredClipping(c_tau=2.0), x),
        ),
    ]
)
def test_a_rule_gives_what_byzpy_gives(our, their, shape):
    for seed in SEEDS:
        x = draw(seed, *shape)
        close(our(x, shape[1]), their(x, shape[1]), seed)


PRE_AGGREGATORS = [
    ("NNM", NNM, byzfl.NNM, byzpy_pre.NearestNeighborMixing),
    ("ARC", ARC, byzfl.ARC, byzpy_pre.ARC),
    ("Clipping", lambda f: Clipping(2.0), lambda f: byzfl.Clipping(2.0), lambda f: byzpy_pre.Clipping(2.0)),
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
        mixed = our(f)(Geometry.of(x)) @ x
        close(mixed, fl(f)(x.copy()), seed)
        close(mixed, byzpy(py(f), x), seed)


@pre_aggregators
@shapes
def test_one_weight_vector_stands_for_the_whole_composition_of_byzfl(our, fl, py, shape):
    """Mixed vectors are never formed here: the weights go back through the mixing matrix."""
    for seed in SEEDS[:12]:
        x, f = draw(seed, *shape), shape[1]
        mixed = fl(f)(x.copy())
        close(ours(x, our(f) >> TrimmedMean(f)), byzfl.TrMean(f)(mixed), seed)
        close(ours(x, our(f) >> CenteredClipping(radius=1.0)), byzfl.CenteredClipping(tau=1.0)(mixed), seed)
        if f:
            close(ours(x, our(f) >> MultiKrum(f - 1, n_selected=len(x) - f)), byzfl.MultiKrum(f)(mixed), seed)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@shapes
def test_buckets_are_those_of_both_peers_under_one_shuffle(size, shape, monkeypatch):
    for seed in SEEDS[:12]:
        x = draw(seed, *shape)
        A = Bucketing(size)(Geometry.of(x, seed=seed))
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
        answer = ours(x, MDA(shape[1]))
        assert np.isclose(answer, means, rtol=1e-9, atol=1e-9).all(axis=1).any(), f"seed {seed}"
        for theirs in (byzfl.MDA(shape[1])(x), byzpy(geometric_wise.MinimumDiameterAveraging(shape[1]), x)):
            close(theirs, means[0], seed)


@pytest.mark.parametrize("shape", HIGH, ids=str)
def test_the_geometric_median_as_it_comes_is_byzpys_to_its_tolerance(shape):
    for seed in SEEDS:
        x = draw(seed, *shape)
        theirs = byzpy(geometric_wise.GeometricMedian(), x)
        np.testing.assert_allclose(ours(x, GeometricMedian()), theirs, atol=1e-5, err_msg=f"seed {seed}")
