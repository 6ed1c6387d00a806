"""krum 0.9.1 (the package of the rule's authors): where it agrees, and where it differs."""

import numpy as np
import pytest
import torch

pytest.importorskip("krum", reason="make test-peers installs krum")

from krum.primitives.aggregators.bulyan import Bulyan
from krum.primitives.aggregators.geometric_median import GeometricMedian
from krum.primitives.aggregators.krum import Krum
from krum.primitives.aggregators.median import Median
from krum.primitives.aggregators.multikrum import MultiKrum
from krum.primitives.aggregators.trimmed_mean import TrimmedMean
from libraries import WITH_ATTACKERS, draw, ours

import bartizan as bz
import oracle

SEEDS = range(30)
CONVERGED = bz.GeometricMedian(tolerance=1e-13, max_steps=5000)


def theirs(rule, x, f, **settings):
    return rule.aggregate(torch.from_numpy(x.copy()), n=len(x), f=f, **settings).numpy()


# With fewer clients than 2f + 3 it refuses Krum.
@pytest.mark.parametrize("shape", [one for one in WITH_ATTACKERS if one[0] >= 2 * one[1] + 3], ids=str)
def test_its_rules_are_those_of_the_papers(shape):
    M, f, _ = shape
    for seed in SEEDS:
        x = draw(seed, *shape)
        for found, wanted in (
            (theirs(Krum, x, f), ours(x, bz.Krum(f))),
            (theirs(MultiKrum, x, f, m=M - f), ours(x, bz.MultiKrum(f))),
            (theirs(TrimmedMean, x, f), ours(x, bz.TrimmedMean(f))),
            (theirs(Median, x, f), ours(x, bz.Median())),
            (theirs(GeometricMedian, x, f, nu=1e-12, tol=0, max_iter=2000), ours(x, CONVERGED)),
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6, err_msg=f"seed {seed}")


def test_its_multi_krum_selects_f_and_three_fewer_by_default():
    x = draw(4, 11, 3, 50)
    np.testing.assert_allclose(theirs(MultiKrum, x, 3), ours(x, bz.MultiKrum(3, n_selected=11 - 2 * 3 - 3)))
    assert bz.MultiKrum(3).n_selected is None  # M - f


def test_its_geometric_median_of_updates_closer_than_a_tenth_is_the_mean():
    x = draw(1, 9, 2, 20) * 1e-4
    x[0] = 0.09 / np.sqrt(20)  # an attacker, hundreds of times as far as the others
    np.testing.assert_allclose(theirs(GeometricMedian, x, 2), x.mean(axis=0), atol=1e-12)
    off = np.linalg.norm(x.mean(axis=0) - x[1:].mean(axis=0))
    assert np.linalg.norm(ours(x, CONVERGED) - x[1:].mean(axis=0)) < off / 20


def test_one_nan_is_its_geometric_median_and_in_its_median():
    x = draw(1, 11, 2, 20)
    x[3, 5] = np.nan
    assert np.isnan(theirs(GeometricMedian, x, 2)).all()
    assert np.flatnonzero(np.isnan(theirs(Median, x, 2))).tolist() == [5]
    for rule in (Krum, MultiKrum, Bulyan, TrimmedMean):  # its distances and places sort NaN as the farthest
        assert np.isfinite(theirs(rule, x, 2)).all()
    assert np.isfinite(bz.aggregate(x, bz.GeometricMedian()).update).all()


def test_a_common_offset_eats_the_digits_of_its_distances_in_float32():
    """Models instead of steps: all clients share a large part, of which a step is a ten-thousandth."""
    rng = np.random.default_rng(3)
    steps = rng.normal(size=(40, 1000)).astype(np.float32)
    x = (steps + 10_000 * rng.normal(size=1000)).astype(np.float32)
    exact = oracle.squared_distances(x.astype(np.float64))
    theirs_scores = MultiKrum.score(torch.from_numpy(x), n=40, f=8).numpy()
    exact_scores = np.array([np.sort(np.delete(row, i))[: 40 - 8 - 2].sum() for i, row in enumerate(exact)])
    assert (theirs_scores / exact_scores).max() > 3  # by matrix products, as torch.cdist takes them from 26 rows on
    assert theirs_scores.argmin() != exact_scores.argmin()
    out = bz.aggregate(x, bz.Krum(8), sketch="exact")
    assert np.flatnonzero(out.weights).tolist() == [exact_scores.argmin()]
