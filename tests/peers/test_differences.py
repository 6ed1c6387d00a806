"""Where the definitions differ: each test pins one difference, and shows which side keeps the definition."""

from itertools import combinations

import numpy as np
import pytest
from byzpy.aggregators.norm_wise import caf as byzpy_caf
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


class TooManyRoundsError(Exception):
    pass


def krum_by_definition(x, n_neighbours):
    return x[oracle.krum_scores(oracle.squared_distances(x), n_neighbours).argmin()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_krum_counts_the_papers_neighbours_and_both_peers_one_more(shape):
    M, f, _ = shape
    differ = 0
    for seed in SEEDS:
        x = draw(seed, *shape)
        papers, peers = krum_by_definition(x, M - f - 2), krum_by_definition(x, M - f - 1)
        np.testing.assert_array_equal(ours(x, bz.Krum(f)), papers)
        np.testing.assert_array_equal(byzfl.Krum(f)(x), peers)
        np.testing.assert_array_equal(byzpy(geometric_wise.Krum(f), x), peers)
        differ += not np.array_equal(papers, peers)
    assert differ > 0


@pytest.mark.parametrize(
    ("rule", "peer", "M"),
    [
        (bz.Krum(1), byzfl.Krum(1), 4),
        (bz.MultiKrum(1), byzfl.MultiKrum(1), 4),
        (bz.Krum(2), lambda x: byzpy(geometric_wise.Krum(2), x), 4),
        (bz.CGE(2), lambda x: byzpy(norm_wise.ComparativeGradientElimination(2), x), 3),
        (bz.NNM(2) >> bz.Mean(), byzfl.NNM(2), 3),
        (bz.NNM(2) >> bz.Mean(), lambda x: byzpy(byzpy_pre.NearestNeighborMixing(2), x), 3),
        (bz.MeaMed(2), lambda x: byzpy(coordinate_wise.MeanOfMedians(2), x), 3),
    ],
)
def test_too_few_clients_are_refused_where_the_peer_answers(rule, peer, M):
    x = draw(0, M, 0, 3)
    assert np.isfinite(peer(x.copy())).all()
    with pytest.raises(bz.TooFewClientsError):
        ours(x, rule)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_byzfls_three_steps_from_zero_stop_short_of_the_geometric_median(shape):
    short = []
    for seed in SEEDS:
        x = draw(seed, *shape) + 5
        z = ours(x, bz.GeometricMedian())
        short.append(np.linalg.norm(byzfl.GeometricMedian()(x) - z))
        assert oracle.geometric_median_cost(x, z) < oracle.geometric_median_cost(x, byzfl.GeometricMedian()(x))
    assert max(short) > 1e-2


def test_byzfls_geometric_median_of_updates_shorter_than_its_smoothing_is_their_mean():
    x = 1e-3 * draw(1, 11, 3, 50)
    np.testing.assert_allclose(byzfl.GeometricMedian()(x), x.mean(axis=0))
    assert oracle.geometric_median_cost(x, ours(x, bz.GeometricMedian())) < 0.99 * oracle.geometric_median_cost(
        x, x.mean(axis=0)
    )


def test_byzpys_geometric_median_stays_at_a_client_that_its_start_meets():
    """The coordinate-wise median is the client at zero, whom the others pull away with a force of 1.96 > 1."""
    x = np.array([[0.0, 0.0], [-0.1, 5.0], [0.1, 5.0], [-5.0, -0.1], [5.0, -0.1]])
    np.testing.assert_allclose(byzpy(geometric_wise.GeometricMedian(), x), 0, atol=1e-9)
    assert oracle.geometric_median_cost(x, ours(x, bz.GeometricMedian())) < oracle.geometric_median_cost(x, 0) - 0.5


def test_byzpys_geometric_median_of_tiny_updates_stops_after_one_step():
    """Its tolerance is a length, 1e-6; ours is a part of the clients' own distances."""
    x = draw(0, 11, 0, 10)
    one_step = byzpy(geometric_wise.GeometricMedian(max_iter=1), 1e-7 * x)
    np.testing.assert_array_equal(byzpy(geometric_wise.GeometricMedian(), 1e-7 * x), one_step)
    exact = ours(x, bz.GeometricMedian())
    np.testing.assert_allclose(1e7 * ours(1e-7 * x, bz.GeometricMedian()), exact, atol=1e-7)
    assert np.abs(1e7 * one_step - exact).max() > 1e-2


@pytest.mark.parametrize(
    ("rule", "peer"),
    [(bz.Median(), coordinate_wise.CoordinateWiseMedian()), (bz.MeaMed(1), coordinate_wise.MeanOfMedians(1))],
    ids=["Median", "MeaMed"],
)
def test_byzpys_median_of_an_even_number_is_the_lower_middle_value(rule, peer):
    x = np.array([[0.0], [1.0], [3.0], [3.5]])
    expected = {"Median()": (2.0, 1.0), "MeaMed(n_byzantine=1)": (7.5 / 3, 4 / 3)}[repr(rule)]
    assert (ours(x, rule).item(), byzpy(peer, x).item()) == pytest.approx(expected)


def test_of_two_sets_with_one_diameter_both_peers_take_the_first_in_order_and_ours_need_not():
    x = np.array([[0.0], [0.0], [2.0], [3.0], [4.0], [5.0]])
    first, last = x[:4].mean(), x[2:].mean()
    assert byzfl.MDA(2)(x).item() == byzpy(geometric_wise.MinimumDiameterAveraging(2), x).item() == first
    assert ours(x, bz.MDA(2)).item() in (first, last)


def test_byzfls_smea_guesses_the_eigenvalue_by_one_step_from_a_random_vector(monkeypatch):
    monkeypatch.setattr(np.random, "randn", np.random.default_rng(0).standard_normal)
    missed = 0
    for seed in SEEDS:
        x = draw(seed, 8, 2, 20)
        theirs = byzfl.SMEA(2)(x)
        its_set = next(s for s in map(list, combinations(range(8), 6)) if np.allclose(x[s].mean(axis=0), theirs))
        our_set = np.flatnonzero(bz.aggregate(x, bz.SMEA(2)).weights).tolist()
        assert oracle.largest_variance(x[our_set]) <= oracle.largest_variance(x[its_set])
        missed += our_set != its_set
    assert missed > 5


@pytest.mark.parametrize("shape", WITH_ATTACKERS[:3], ids=str)
def test_caf_scales_by_the_clients_that_still_have_weight_and_byzpy_by_all(shape):
    f, differ = shape[1], 0
    for seed in (s for s in SEEDS if s % 3 < 2):  # with far attackers ByzPy does not end
        x = draw(seed, *shape)
        living = oracle.caf(x, f)
        everyone = oracle.caf(x, f, only_weighted=False)
        np.testing.assert_allclose(ours(x, bz.CAF(f)), living, atol=1e-9)
        np.testing.assert_allclose(byzpy(norm_wise.CAF(f, power_iters=1000), x), everyone, atol=1e-5)
        differ += not np.allclose(living, everyone, atol=1e-5)
    assert differ > 0


def test_caf_ends_after_a_few_rounds_where_a_far_attacker_holds_both_peers_for_thousands(monkeypatch):
    """The attacker has lost all weight, but sets the scale, so that nobody else loses any."""
    x = draw(0, 12, 0, 5)
    x[:4] += 1e6 * np.random.default_rng(1).normal(size=5)
    assert np.linalg.norm(ours(x, bz.CAF(4)) - x[4:].mean(axis=0)) < 1

    def counted(function, rounds=2000):
        left = iter(range(rounds))

        def call(*args):
            if next(left, None) is None:
                raise TooManyRoundsError
            return function(*args)

        return call

    monkeypatch.setattr(byzpy_caf, "_dominant_eigenpair", counted(byzpy_caf._dominant_eigenpair))
    with pytest.raises(TooManyRoundsError):
        byzpy(norm_wise.CAF(4), x)
    monkeypatch.setattr(np.random, "randn", counted(np.random.default_rng(0).standard_normal))  # one call per round
    with pytest.raises(TooManyRoundsError):
        byzfl.CAF(4)(x)


def test_byzfls_caf_is_random_and_without_attackers_is_nothing():
    x = draw(1, 11, 3, 50)
    answers = [byzfl.CAF(3)(x) for _ in range(2)]
    assert not np.allclose(*answers, atol=1e-6)
    assert byzfl.CAF(0)(x) is None
    np.testing.assert_allclose(ours(x, bz.CAF(0)), x.mean(axis=0))


def test_centred_clipping_takes_as_reference_what_byzfl_remembers():
    x, y = draw(1, 11, 3, 50), draw(4, 11, 3, 50)
    peer, rule = byzfl.CenteredClipping(tau=2.0, L=2), bz.CenteredClipping(radius=2.0, steps=2)
    first = ours(x, rule)
    np.testing.assert_allclose(peer(x), first)
    np.testing.assert_allclose(peer(y), ours(y, rule, reference=first))
    assert not np.allclose(first, peer(x))
    with pytest.raises(TypeError):
        byzfl.CenteredClipping(m=np.zeros(50))


def test_arc_clips_floor_of_an_exact_fraction_where_both_peers_round_it_down():
    """2 * 33 * 209 / 242 is 57, and in floating point a little less."""
    x = np.arange(1.0, 243.0)[:, None]
    for mixed, n_clipped in [
        (bz.ARC(33)(bz.Geometry.of(x)) @ x, 57),
        (byzfl.ARC(33)(x.copy()), 56),
        (byzpy(byzpy_pre.ARC(33), x), 56),
    ]:
        assert np.count_nonzero(~np.isclose(mixed, x)) == n_clipped


@pytest.mark.parametrize("pre", [byzfl.Clipping(1.0), byzfl.ARC(2)], ids=["Clipping", "ARC"])
def test_byzfl_clips_the_callers_array_itself(pre):
    x = draw(0, 8, 2, 20)
    assert pre(x) is x
    assert not np.array_equal(x, draw(0, 8, 2, 20))


def test_a_bucket_that_is_not_full_counts_for_its_members_and_in_both_peers_for_a_whole_one(monkeypatch):
    x = np.array([[0.0], [1.0], [2.0], [3.0], [10.0]])
    monkeypatch.setattr(np.random, "permutation", lambda rows: rows)
    assert ours(x, bz.Bucketing(2) >> bz.Mean()).item() == pytest.approx(16 / 5)
    assert byzfl.Bucketing(2)(x).mean() == pytest.approx((0.5 + 2.5 + 10) / 3)
    assert byzpy(byzpy_pre.Bucketing(2, perm=range(5)), x).mean() == pytest.approx((0.5 + 2.5 + 10) / 3)


def test_a_common_offset_moves_our_krum_and_byzfls_along_and_byzpys_to_another_client():
    """ByzPy forms squared distances from inner products about zero, which lose their digits to the offset."""
    far = 2.0**30
    strayed = 0
    for seed in SEEDS:
        x = np.round(draw(seed, 11, 0, 50), 4)
        x = (x + far) - far  # what is left of x beside the offset, so that all are given the same clients
        np.testing.assert_array_equal(ours(x + far, bz.Krum(2)), ours(x, bz.Krum(2)) + far)
        np.testing.assert_array_equal(byzfl.Krum(2)(x + far), byzfl.Krum(2)(x) + far)
        krum = geometric_wise.Krum(2)
        strayed += not np.array_equal(byzpy(krum, x + far), byzpy(krum, x) + far)
    assert strayed > 5


@pytest.mark.parametrize(
    ("rule", "peer"),
    [
        (bz.Krum(2), byzfl.Krum(2)),
        (bz.GeometricMedian(), byzfl.GeometricMedian()),
        (bz.Median(), byzfl.Median()),
        (bz.GeometricMedian(), lambda x: byzpy(geometric_wise.GeometricMedian(), x)),
        (bz.Median(), lambda x: byzpy(coordinate_wise.CoordinateWiseMedian(), x)),
        (bz.CAF(2), lambda x: byzpy(norm_wise.CAF(2), x)),
    ],
)
def test_a_client_that_sends_nan_is_quarantined_where_the_peer_passes_it_on(rule, peer):
    x = draw(0, 9, 0, 6)
    x[4] = np.nan
    assert np.isnan(peer(x)).any()
    result = bz.aggregate(x, rule)
    assert np.isfinite(result.update).all()
    assert list(result.quarantined) == [4]
