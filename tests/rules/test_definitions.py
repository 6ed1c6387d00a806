"""Every rule against its brute-force definition on all coordinates."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import bartizan as bz
import oracle
from bartizan._util.seeds import generator_of
from bartizan.registry import COORDINATEWISE, PRE_AGGREGATORS, RULES
from bartizan.rules.clusters import larger_cluster

SEEDS = range(12)


def draw(seed: int, n_clients: int = 11, p: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_clients, p)) + rng.normal(size=p)
    far = min(seed % 3, n_clients - 1)
    x[:far] += 5 * rng.normal(size=(far, p))
    return x


def answer(rule, x, **more):
    return rule(bz.Geometry.of(x, **more)) @ x


@pytest.mark.parametrize("name", [*RULES.built_in, *PRE_AGGREGATORS.built_in, *COORDINATEWISE.built_in])
def test_the_oracle_defines_every_rule(name):
    assert any(defined.startswith(name.replace("-", "_")) for defined in vars(oracle))


SELECTIONS = {
    bz.Krum: oracle.krum,
    bz.MultiKrum: oracle.multi_krum,
    bz.Bulyan: oracle.bulyan,
    bz.SMEA: oracle.smea,
    bz.CGE: oracle.cge,
    bz.SpectralDnC: oracle.spectral_dnc,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("f", "n_clients"), [(0, 3), (0, 9), (1, 7), (2, 11), (3, 15)])
@pytest.mark.parametrize("rule", SELECTIONS, ids=lambda rule: rule.__name__)
def test_a_rule_that_selects_clients_averages_those_of_its_definition(rule, f, n_clients, seed):
    x = draw(seed, n_clients)
    selected = np.atleast_1d(SELECTIONS[rule](x, f))
    np.testing.assert_allclose(answer(rule(f), x), x[selected].mean(axis=0))
    if rule is bz.MultiKrum:
        np.testing.assert_allclose(answer(rule(f, n_selected=2), x), x[selected[:2]].mean(axis=0))


@pytest.mark.parametrize("f", [1, 2, 5])
@pytest.mark.parametrize("far", [30.0, 1e12])
def test_attackers_who_all_send_the_same_stay_out_of_bulyan(f, far):
    x = draw(0, 4 * f + 3)
    x[:f] = far
    assert bz.Bulyan(f)(bz.Geometry.of(x))[:f].sum() == 0


def two_groups(rng):
    """Two groups of the same size, which are 10 to 1000 times as far apart as they are wide."""
    x = 10.0 ** -rng.integers(0, 3) * rng.normal(size=(2 * rng.integers(2, 8), rng.integers(2, 5)))
    x[::2, 0] += 10
    return x, None


def nearly_on_a_line(rng):
    x = 10.0 ** -rng.integers(1, 4) * rng.normal(size=(rng.choice([4, 4, 6, 9]), rng.integers(2, 5)))
    x[:, 0] += rng.normal(size=len(x))
    return x, None


def nearly_at_a_client(rng):
    """The first client's size is nearly the force of the others on it."""
    x = rng.normal(size=(rng.integers(4, 16), rng.integers(2, 5)))
    away = x[1:] - x[0]
    force = np.linalg.norm((away / oracle.norms(away)[:, None]).sum(axis=0))
    return x, np.array([force * (1 + rng.choice([-1, 1]) * 10.0 ** -rng.integers(1, 8)), *np.ones(len(x) - 1)])


def nearly_equal_clients(rng):
    x = rng.normal(size=(rng.integers(6, 16), rng.integers(2, 5)))
    x[: len(x) // 3] = x[0] + 10.0 ** -rng.integers(2, 7) * rng.normal(size=x[: len(x) // 3].shape)
    return x, None


def giants(rng):
    x = rng.normal(size=(rng.integers(5, 16), rng.integers(2, 5)))
    x[: (len(x) - 1) // 2] *= 10.0 ** rng.integers(3, 15)
    return x, rng.uniform(0.8, 1, size=len(x))


def all_scales(rng):
    M = rng.integers(4, 16)
    return rng.normal(size=(M, 3)) * 10.0 ** rng.uniform(-4, 4, size=(M, 1)), rng.uniform(0.1, 3, size=M)


@pytest.mark.parametrize(
    "kind",
    [two_groups, nearly_on_a_line, nearly_at_a_client, nearly_equal_clients, giants, all_scales],
    ids=lambda kind: kind.__name__,
)
def test_the_geometric_median_is_reached_to_a_millionth_of_the_spread(kind):
    for seed in range(60):
        x, sizes = kind(np.random.default_rng(seed))
        true = oracle.geometric_median(x, sizes)
        error = np.linalg.norm(answer(bz.GeometricMedian(), x, sizes=sizes) - true)
        assert error <= 1e-6 * np.median(oracle.norms(x - true)), seed


@pytest.mark.parametrize("width", [1e-5, 1e-6, 1e-7, 1e-8, 1e-9])
def test_of_clients_on_a_narrow_line_the_geometric_median_has_the_least_sum_to_a_millionth(width):
    """Along the line the sum hardly changes, so that rounding moves its minimum."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = width * rng.normal(size=(2 * rng.integers(2, 6), rng.integers(2, 20)))
        x[:, 0] += rng.normal(size=len(x)) if seed % 2 else np.arange(len(x)) % 2
        z = answer(bz.GeometricMedian(), x)
        least = min(oracle.geometric_median_cost(x, (a + b) / 2) for a in x for b in x)
        assert oracle.geometric_median_cost(x, z) <= (1 + 1e-6) * least, seed


@pytest.mark.parametrize(
    ("line", "middle"),
    [([1, 2, 3, 4], 2.5), ([0, 0, 0, 5, 5, 5], 2.5), ([-9, 0, 0, 1, 1, 1e6], 0.5), ([3, 3], 3), ([0, 1], 0.5)],
    ids=str,
)
def test_of_several_geometric_medians_the_middle_is_chosen_in_any_order_and_place(line, middle):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        order, shift, turned = rng.permutation(len(line)), rng.normal(size=4), rng.normal(size=4)
        x = np.outer(line, turned / np.linalg.norm(turned)) + shift
        weights = bz.GeometricMedian()(bz.Geometry.of(x[order]))
        np.testing.assert_allclose(weights, bz.GeometricMedian()(bz.Geometry.of(x))[order], atol=1e-12)
        np.testing.assert_allclose(weights @ np.array(line)[order], middle, atol=1e-9)


@pytest.mark.parametrize("rule", [bz.GeometricMedian(max_steps=2), bz.MCA(max_steps=2)], ids=repr)
def test_an_iteration_that_ends_too_early_says_so(rule):
    with pytest.warns(RuntimeWarning, match=r"max_steps=2.*\) did not reach its tolerance .* Raise max_steps"):
        rule(bz.Geometry.of(draw(0)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [None, 0.7, 3.0])
@pytest.mark.parametrize("start", ["medoid", "mean"])
def test_mca_is_a_fixed_point_reached_from_its_start(seed, width, start):
    x = draw(seed)
    found = answer(bz.MCA(width=width, tolerance=1e-13, max_steps=20_000, start=start), x)
    np.testing.assert_allclose(found, oracle.mca(x, width, steps=3000, start=start), atol=1e-6)


@pytest.mark.parametrize("far", [60.0, 6e6])
def test_attackers_on_one_side_move_mca_without_bound_only_from_the_mean(far):
    x = np.concatenate([np.random.default_rng(0).normal(size=(35, 5)), np.full((15, 5), far)])
    weights = {start: bz.MCA(start=start)(bz.Geometry.of(x))[35:].sum() for start in ("medoid", "mean")}
    assert weights["medoid"] < 1e-9
    assert weights["mean"] > 0.02


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("radius", "steps"), [(1.0, 1), (0.5, 7), (None, 1), (None, 4)])
def test_centered_clipping_averages_clipped_differences(seed, radius, steps):
    x = draw(seed)
    expected = oracle.centered_clipping(x, radius, steps)
    np.testing.assert_allclose(answer(bz.CenteredClipping(radius, steps), x), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("offset", [1e4, 1e7])
@pytest.mark.parametrize(("radius", "steps"), [(None, 2), (None, 5), (1e7, 3)])
def test_centered_clipping_keeps_its_digits_far_from_the_origin(offset, radius, steps):
    x = draw(4) + offset
    weights, v = np.zeros(len(x)), np.zeros(x.shape[1], np.longdouble)
    for _ in range(steps):
        away = oracle.norms(x - v).astype(np.float64)
        clipped = np.minimum(1, (np.median(away) if radius is None else radius) / away) / len(x)
        weights, v = weights * (1 - clipped.sum()) + clipped, v + clipped @ (x - v)
    np.testing.assert_allclose(bz.CenteredClipping(radius, steps)(bz.Geometry.of(x)), weights, atol=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("n_clients", "f"), [(7, 0), (7, 2), (9, 4), (13, 3)])
def test_mda_finds_the_least_diameter(seed, n_clients, f):
    x = draw(seed, n_clients)
    kept = np.flatnonzero(bz.MDA(f)(bz.Geometry.of(x)))
    assert kept.tolist() in oracle.mda(x, f).tolist()


def test_mda_refuses_what_it_can_not_search():
    with pytest.raises(ValueError, match="gave up after max_work=100 steps"):
        bz.MDA(6, max_work=100)(bz.Geometry.of(draw(0, 20)))


def test_mda_answers_or_refuses_with_a_thousand_attackers():
    x = draw(0, 2001)
    with pytest.raises(ValueError, match="gave up after max_work="):
        bz.MDA(1000)(bz.Geometry.of(x))
    x[:1000] += 50
    weights = bz.MDA(1000)(bz.Geometry.of(x))
    assert weights[:1000].sum() == 0
    np.testing.assert_allclose(weights[1000:], 1 / 1001)
    assert np.count_nonzero(bz.MDA(1000)(bz.Geometry.of(np.ones((2001, 2))))) == 1001


def test_smea_refuses_what_it_can_not_search_and_says_what_will_do():
    for n_clients, f in [(40, 10), (120, 2)]:
        with pytest.raises(ValueError, match="Use MDA or SpectralDnC"):
            bz.SMEA(f)(bz.Geometry.of(draw(0, n_clients)))
    with pytest.raises(ValueError, match="Use MDA or SpectralDnC"):
        bz.SMEA(4_000).check(20_000)  # Python prints no number as long as that of the sets


def test_multi_krum_selects_no_more_than_can_be_honest():
    with pytest.raises(bz.TooFewClientsError, match="n_selected can be at most 8"):
        bz.MultiKrum(3, n_selected=9)(bz.Geometry.of(draw(0, 11)))


def test_a_client_near_the_reference_moves_fltrust_no_farther_than_the_trusted_update():
    reference = draw(0, 1, 100)[0]
    trusted = reference + 0.1
    x = trusted + 0.05 * draw(1, 9, 100)
    x[0] = reference
    x[0, 0] += 1e-12
    out = bz.aggregate(x, bz.FLTrust(), reference=reference, trusted=trusted)
    assert np.linalg.norm(out.update - reference) <= np.linalg.norm(trusted - reference)


@pytest.mark.parametrize("seed", range(150))
def test_attackers_on_one_line_do_not_hold_clipped_clustering_up(seed):
    """Scaled copies have equal cosines to the last digits but one: ties that once made the chain run in a circle."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 20)) + 1
    x[:6] = rng.normal(size=20) * rng.uniform(0.3, 3, size=(6, 1))
    assert np.isfinite(bz.ClippedClustering()(bz.Geometry.of(x))).all()


def test_clipped_clustering_refuses_a_history_that_is_none():
    with pytest.raises(ValueError, match="history must hold norms"):
        bz.ClippedClustering()(bz.Geometry.of(np.eye(4), history=(1.0, float("nan"))))


def test_a_width_near_zero_trusts_the_medoid_alone():
    assert bz.MCA(width=1e-200)(bz.Geometry.of(draw(2))).max() == 1


@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
def test_fltrust_behind_a_mixing_knows_the_mixed_cosines(sketch):
    x = draw(4, 11, 300)
    t = x[3:].mean(axis=0)
    mixed = oracle.nnm(x, 2) if isinstance(sketch, bz.Exact) else oracle.clipping(x, 9.0)
    pre = bz.NNM(2) if isinstance(sketch, bz.Exact) else bz.Clipping(9.0)
    out = bz.aggregate(x, pre >> bz.FLTrust(), sketch=sketch, trusted=t)
    np.testing.assert_allclose(out.update, bz.aggregate(mixed, bz.FLTrust(), trusted=t).update, atol=1e-9)


def test_a_second_bucketing_shuffles_anew():
    x = draw(0, 16)
    twice = bz.Bucketing(2)(bz.Geometry.of(x, seed=5).mix(np.eye(16)))
    assert not np.array_equal(twice, bz.Bucketing(2)(bz.Geometry.of(x, seed=5)))


@pytest.mark.parametrize("seed", SEEDS)
def test_monna_averages_the_nearest_to_the_trusted_update_and_fltrust_weighs_by_cosines(seed):
    x = draw(seed)
    t = x.mean(axis=0) + 0.1
    np.testing.assert_allclose(answer(bz.MoNNA(3), x, trusted=t), x[oracle.monna(x, 3, t)].mean(axis=0))
    np.testing.assert_allclose(answer(bz.FLTrust(), x, trusted=t), oracle.fltrust(x, t))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("f", [0, 1, 3])
def test_caf_filters_along_the_top_eigenvector(seed, f):
    x = draw(seed)
    np.testing.assert_allclose(answer(bz.CAF(f), x), oracle.caf(x, f), atol=1e-9)
    sizes = np.random.default_rng(seed).integers(2, 5, size=len(x))  # the three largest hold 12 of 28 at most
    np.testing.assert_allclose(answer(bz.CAF(f), x, sizes=sizes), oracle.caf(x, f, sizes=sizes), atol=1e-9)


@pytest.mark.parametrize("f", [1, 3])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.4, 0.49, 0.51, 0.9])
def test_attackers_who_hold_the_most_data_get_no_weight_in_caf(f, share):
    """By less than half of the data they are outvoted; by half or more all clients count alike, and a warning says so.

    Far apart from each other, so that one step does not take all of them.
    """
    x = draw(0, n_clients=20)
    x[:f] += 1e3 ** np.arange(1, f + 1)[:, None] * np.eye(5)[:f]
    sizes = np.full(20, (1 - share) / (20 - f))
    sizes[:f] = share / f
    with nullcontext() if share < 0.5 else pytest.warns(RuntimeWarning, match=f"hold.? {share:.1%}.*20 clients.*alike"):
        weights = bz.CAF(f)(bz.Geometry.of(x, sizes=sizes))
    assert weights[:f].sum() < 1e-6
    if share > 0.5:
        np.testing.assert_array_equal(weights, bz.CAF(f)(bz.Geometry.of(x)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_clients", [1, 2, 3, 12, 31])
def test_clipped_clustering_averages_the_larger_cluster_clipped_by_all_norms_so_far(seed, n_clients):
    x = draw(seed, n_clients) + 1
    norms = oracle.norms(x)
    unit = x / norms[:, None]
    assert larger_cluster(1 - unit @ unit.T).tolist() == oracle.larger_cluster(1 - unit @ unit.T)
    history = (0.5, 1.0, 2.0)
    decision = bz.ClippedClustering().decide(bz.Geometry.of(x, history=history))
    np.testing.assert_allclose(decision.weights @ x, oracle.clipped_clustering(x, history))
    np.testing.assert_allclose(decision.history, [*history, *norms])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_clients", [1, 2, 3, 12, 31])
def test_flame_averages_the_first_majority_of_single_linkage_clipped_to_the_median_norm(seed, n_clients):
    x = draw(seed, n_clients) + 1
    np.testing.assert_allclose(answer(bz.FLAME(), x), oracle.flame(x))


def test_flame_keeps_all_clients_that_join_at_the_same_length():
    """Four clients on each axis are two clusters at length 0; all join at 1, and nobody is left out by order."""
    x = np.repeat(np.eye(2), 4, axis=0)
    np.testing.assert_allclose(bz.FLAME()(bz.Geometry.of(x)), 1 / 8)
    assert np.count_nonzero(bz.FLAME()(bz.Geometry.of(np.ones((9, 3))))) == 9


def test_the_norm_filter_keeps_honest_clients_whatever_a_minority_sends():
    """Honest norms within a factor of 3 of each other stay, with two attackers of five at either end or in between."""
    honest = np.diag([1.0, 2.0, 2.9])
    for low in (0.0, 1e-9, 0.5, 3.0, 1e9):
        for high in (0.0, 1.0, 8.0, 1e12):
            x = np.vstack([honest, np.eye(3)[:2] * [[low], [high]]])
            assert bz.NormFilter()(bz.Geometry.of(x))[:, :3].sum() == 3, (low, high)


def test_a_rule_behind_the_norm_filter_refuses_the_round_if_too_few_are_left():
    x = np.eye(7) * [[1], [1], [1], [1], [90], [90], [90]]
    with pytest.raises(bz.TooFewClientsError, match="needs at least 7 clients, got 4"):
        bz.aggregate(x, bz.NormFilter() >> bz.Krum(2))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_flame_adds_noise_as_long_as_a_part_of_the_median_norm_to_the_floats_alone(dtype):
    """Of 200,000 draws the standard deviation is within 1% and the mean within 0.01 of it, with odds of 1 - 1e-5."""
    floats = np.random.default_rng(0).normal(size=(5, 200_000)).astype(dtype)
    updates = [{"w": row[:150_000], "n": np.array([7]), "b": row[150_000:].reshape(500, 100)} for row in floats]
    plain, noisy = (bz.aggregate(updates, bz.FLAME(noise), seed=3) for noise in (0.0, 0.01))
    assert plain.noise == 0
    assert noisy.noise == pytest.approx(0.01 * np.median(oracle.norms(floats.astype(np.float64))), rel=1e-5)
    assert noisy.update["n"] == 7
    added = np.concatenate([noisy.update[e].ravel().astype(np.float64) - plain.update[e].ravel() for e in ("w", "b")])
    assert added.std() == pytest.approx(noisy.noise, rel=0.01)
    assert abs(added.mean()) < 0.01 * noisy.noise
    again = bz.aggregate(updates, bz.Clipping(1e9) >> bz.FLAME(0.01), seed=3)
    np.testing.assert_array_equal(again.update["b"], noisy.update["b"])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", [bz.Mean(), bz.Krum(2), bz.GeometricMedian(), bz.CenteredClipping(1.0, 3)], ids=repr)
def test_a_mixed_rule_is_the_rule_on_mixed_clients(seed, rule):
    x = draw(seed, 15)
    order = generator_of(seed).permutation(len(x))
    for mixing, mixed in [
        (bz.NNM(2), oracle.nnm(x, 2)),
        (bz.Bucketing(2), oracle.bucketing(x, 2, order)),
        (bz.Clipping(1.5), oracle.clipping(x, 1.5)),
        (bz.ARC(4), oracle.arc(x, 4)),
        (bz.NormFilter(), oracle.norm_filter(x)),
        (bz.NormFilter(0.5, 1.8) >> bz.NNM(2), oracle.nnm(oracle.norm_filter(x, 0.5, 1.8), 2)),
        (bz.Clipping(1.5) >> bz.NNM(2), oracle.nnm(oracle.clipping(x, 1.5), 2)),
    ]:
        sizes = np.array([2.0] * 7 + [1.0]) if isinstance(mixing, bz.Bucketing) else None
        np.testing.assert_allclose(
            answer(mixing >> rule, x, seed=seed), answer(rule, mixed, sizes=sizes), atol=1e-6, err_msg=repr(mixing)
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_size_of_two_is_two_clients_who_agree(seed):
    """For the rules whose definition is a weighted sum or minimum over clients."""
    x = draw(seed)
    sizes = np.random.default_rng(seed).integers(1, 4, size=len(x))
    twice, t = np.repeat(x, sizes, axis=0), x[:7].mean(axis=0)
    for rule in [
        bz.Mean(),
        bz.GeometricMedian(tolerance=1e-11),
        bz.MCA(width=1.5),
        bz.CenteredClipping(1.0, 3),
        bz.FLTrust(),
    ]:
        sized = answer(rule, x, sizes=sizes, trusted=t)
        np.testing.assert_allclose(sized, answer(rule, twice, trusted=t), atol=1e-5, err_msg=repr(rule))
