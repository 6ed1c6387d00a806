"""The numerics of distances: digits survive offsets, giants and spikes."""

from __future__ import annotations

import numpy as np
import pytest

import bartizan as bz
import oracle
from bartizan.judge.judge import geometry_by
from bartizan.measure.geometry import Geometry, gram_about
from bartizan.measure.measurements import Measurements
from bartizan.rules.clusters import cosine_distances
from bartizan.sources.local import LocalUpdates
from bartizan.updates import parse_updates
from containers import streamed

SKETCHES = [bz.Exact(), bz.Rotated(k=1024), bz.Rotated(k=64), bz.Achlioptas(k=256), bz.Gaussian(k=200)]
M, P = 12, 20_000
HONEST = np.arange(2, M)


def hostile_round(dtype, offset):
    """Client 0 sends 1e15 everywhere, client 1 hides one 1e15, the rest share an offset 10^4 times their spread."""
    rng = np.random.default_rng(7)
    common = offset * rng.normal(size=P)
    x = (common + rng.normal(size=(M, P))).astype(dtype)
    x[0] = 1e15
    x[1, 777] = 1e15
    return x, common.astype(dtype)


def seen(sketch, x, **more):
    return geometry_by(sketch, LocalUpdates(parse_updates(x, **more)), 5)


def true_squared_distances(sketch, x):
    """Of the same sketch in float64, each difference formed before it is sketched."""
    if isinstance(sketch, bz.Exact):
        return oracle.squared_distances(x)
    i, j = np.triu_indices(len(x), 1)
    squares = np.sum(np.square(sketch(x[i] - x[j], seed=5)), axis=1)
    out = np.zeros((len(x), len(x)))
    out[i, j] = out[j, i] = squares
    return out


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize(
    ("dtype", "offset"), [(np.float32, 1e4), (np.float32, 1.0), (np.float64, 1e4), (np.float64, 1e8)]
)
def test_honest_distances_keep_their_digits(sketch, with_reference, dtype, offset):
    x, common = hostile_round(dtype, offset)
    geometry = seen(sketch, x, reference=common if with_reference else None)
    truth = true_squared_distances(sketch, x[HONEST].astype(np.float64))
    off_diagonal = ~np.eye(len(HONEST), dtype=bool)
    error = np.abs(geometry.squared_distances[np.ix_(HONEST, HONEST)] - truth)[off_diagonal] / truth[off_diagonal]
    rough = dtype == np.float32 and isinstance(sketch, bz.Rotated) and not with_reference
    assert error.max() < (1e-2 if rough else 1e-5)


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
@pytest.mark.parametrize("ratio", [1e2, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_reference_far_from_small_updates_takes_none_of_their_digits(sketch, ratio, dtype):
    rng = np.random.default_rng(9)
    x, reference = rng.normal(size=(M, 300)).astype(dtype), (ratio * rng.normal(size=300)).astype(np.float32)
    truth = true_squared_distances(sketch, x.astype(np.float64))
    np.testing.assert_allclose(seen(sketch, x, reference=reference).squared_distances, truth, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64), bz.Gaussian(k=64)], ids=repr)
@pytest.mark.parametrize("exponent", [-380, -420, -565, -700, -1000])
@pytest.mark.parametrize(
    "rule", [bz.Krum(2), bz.CenteredClipping(steps=2), bz.NNM(2) >> bz.GeometricMedian()], ids=repr
)
def test_updates_whose_squares_underflow_are_weighed_like_others(sketch, exponent, rule):
    rng, tiny = np.random.default_rng(3), 2.0**exponent
    x, common = rng.normal(size=(9, 100)), rng.normal(size=100)
    x[:2] *= 1e3
    want = bz.aggregate(x, rule, sketch=sketch, seed=1, reference=common)
    got = bz.aggregate(x * tiny, rule, sketch=sketch, seed=1, reference=common * tiny)
    np.testing.assert_allclose(got.weights, want.weights, atol=1e-9)
    np.testing.assert_allclose(got.scores / tiny, want.scores, rtol=1e-9)
    came = streamed(bz.Aggregator(rule, sketch), x * tiny, seed=1, reference=common * tiny, recheck=False)
    np.testing.assert_array_equal(came.weights, got.weights)


@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
@pytest.mark.parametrize("far", [1e-163, 1e-100, 1.0, 1e140])
def test_no_attacker_chooses_in_which_unit_tiny_updates_are_measured(sketch, far):
    """Honest clients near 1e-170, one attacker as near to them as 1e-163 and one anywhere."""
    x = 1e-170 * np.random.default_rng(4).normal(size=(9, 100))
    x[0], x[1] = 1e-163, far
    for rule in (bz.Krum(2), bz.MultiKrum(2), bz.GeometricMedian()):
        out = bz.aggregate(x, rule, sketch=sketch, seed=1)
        assert np.abs(out.update).max() < 1e-168
        assert set(out.quarantined) <= {1}


@pytest.mark.parametrize("kind", ["normal", "spike", "offset", "heavy tails"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_exact_norms_are_right_to_the_stated_digits(sketch, dtype, kind):
    """Squares to 1e-6 where `Rotated` sums blocks in float32, else to 1e-14."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(M, P)) + (100 if kind == "offset" else 0)
    if kind == "spike":
        x[:, 3] = 3000
    if kind == "heavy tails":
        x /= np.maximum(np.abs(rng.normal(size=x.shape)), 1e-3)
    x = x.astype(dtype)
    found = sketch.measure(parse_updates(x), 5).squared_norms
    in_float32 = isinstance(sketch, bz.Rotated) and dtype != np.float64
    np.testing.assert_allclose(found, np.square(x.astype(np.float64)).sum(axis=1), rtol=1e-6 if in_float32 else 1e-14)


def test_clients_that_are_all_zero_make_no_other_unit():
    x = np.zeros((5, 30))
    assert bz.Geometry.of(x).unit == 1
    x[3] = 1e149
    out = bz.aggregate(x, bz.MultiKrum(1))
    assert not out.quarantined
    assert out.weights.tolist() == [0.25, 0.25, 0.25, 0, 0.25]


def test_norms_in_a_history_are_in_the_unit_of_the_updates():
    x, tiny = np.random.default_rng(6).normal(size=(9, 6)), 2.0**-600
    now, small = (bz.ClippedClustering().decide(Geometry.of(x * s, history=(s, 2 * s))) for s in (1.0, tiny))
    np.testing.assert_allclose(small.weights, now.weights)
    np.testing.assert_allclose(np.array(small.history) / tiny, now.history)


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
@pytest.mark.parametrize("offset", [1e5, 1e6])
def test_a_second_look_saves_what_float32_sums_lose(sketch, offset):
    """The clients are far from the origin and near each other: looked at again, about one of them."""
    x = (offset + np.random.default_rng(8).normal(size=(M, P))).astype(np.float32)
    truth = true_squared_distances(sketch, x.astype(np.float64))
    np.testing.assert_allclose(seen(sketch, x).squared_distances, truth, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_a_trusted_row_is_measured_like_the_clients_and_its_cosines_are_exact(sketch):
    rng = np.random.default_rng(3)
    x, trusted, common = rng.normal(size=(M, P)), rng.normal(size=P), rng.normal(size=P)
    x[:, :5000] += 1
    trusted[:5000] += 1
    geometry = seen(sketch, x, reference=common, trusted=trusted)
    y, t = x - common, trusted - common
    cosines, norm = geometry.trusted_cosines
    np.testing.assert_allclose(cosines, y @ t / np.linalg.norm(y, axis=1) / np.linalg.norm(t), rtol=1e-9)
    assert norm == pytest.approx(np.linalg.norm(t))
    both = np.vstack([x, trusted])
    np.testing.assert_allclose(
        geometry.trusted_squared_distances, true_squared_distances(sketch, both)[-1, :-1], rtol=1e-9
    )


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_distances_are_symmetric_not_negative_and_zero_for_equals(sketch):
    x = np.random.default_rng(1).normal(size=(M, 3000)) + 1e6
    x[4] = x[9]
    D = seen(sketch, x).squared_distances
    np.testing.assert_array_equal(D, D.T)
    assert (D >= 0).all()
    assert (np.diag(D) == 0).all()
    assert D[4, 9] < 1e-9 * D[4, 8]


def test_mixing_a_geometry_is_the_geometry_of_the_mixed():
    rng = np.random.default_rng(2)
    x, t = rng.normal(size=(9, 4)), rng.normal(size=4)
    A = rng.uniform(size=(5, 9))
    A /= A.sum(axis=1, keepdims=True) * rng.uniform(1, 2, size=(5, 1))
    mixed, direct = Geometry.of(x, trusted=t).mix(A), Geometry.of(A @ x, trusted=t)
    for of in (lambda g: g.squared_distances, lambda g: g.gram, lambda g: g.norms, lambda g: g.trusted_cosines[0]):
        np.testing.assert_allclose(of(mixed), of(direct), atol=1e-9)
    np.testing.assert_allclose(mixed.trusted_squared_distances, direct.trusted_squared_distances, atol=1e-9)


@pytest.mark.parametrize("giant", [1e6, 1e15, 1e18])
@pytest.mark.parametrize("rule", [bz.GeometricMedian(), bz.MCA(), bz.NNM(1) >> bz.GeometricMedian()], ids=repr)
def test_a_giant_leaves_the_weights_of_the_rest_as_far_as_it_should(rule, giant):
    """The limit of an ever farther client: against the same rule in float64 coordinates about an honest client."""
    x = np.random.default_rng(5).normal(size=(M, 50)) + 100
    x[0] = giant
    weights = rule(Geometry.of(x))
    near = x.copy()
    near[0] = 1e6
    np.testing.assert_allclose(weights[1:], rule(Geometry.of(near))[1:], atol=1e-4)


BAD_SIZES = [
    *([1.0], [1, 2, 0], [1, 2, float("nan")], [1, 2, -3], "abc", 7, [1, 2, None], [1, 2, 10**400], [[1, 2], [3]]),
    *([1, 2, size] for size in (5e-324, 1e308, 2.0**-65, 2.0**65, float("inf"), True, np.False_, "3", b"3")),
    *(np.array(sizes) for sizes in ([True, True, False], ["1", "2", "3"], [1, 2, 1e-20])),
    *(np.array([1, 2, size], dtype=object) for size in (True, "3")),
]


@pytest.mark.parametrize("sizes", BAD_SIZES, ids=repr)
def test_sizes_must_be_one_number_of_the_range_a_client(sizes):
    with pytest.raises(ValueError, match=r"^sizes must be (3 positive numbers|a positive number from 2\^-64 to 2\^64)"):
        Geometry.of(np.eye(3), sizes=sizes)
    with pytest.raises(ValueError, match=r"^sizes must be "):
        bz.aggregate(np.eye(3), bz.GeometricMedian(), sizes=sizes)


@pytest.mark.parametrize(
    "sizes",
    [[1, 2, 3], [1e12, 0.5, 1e-9], [2**64, 2.0**-64, 1], (np.int64(3), np.uint8(4), np.float32(0.1)), np.arange(1, 4)],
    ids=repr,
)
def test_ordinary_sizes_are_taken_as_they_are(sizes):
    expected = np.array([float(size) for size in sizes])
    np.testing.assert_allclose(Geometry.of(np.eye(3), sizes=sizes).shares, expected / expected.sum(), rtol=1e-15)


def test_a_geometry_wants_rows():
    with pytest.raises(ValueError, match=r"one row per client"):
        Geometry.of([1.0, 2.0])


def test_a_second_look_is_taken_only_where_digits_are_short():
    rng = np.random.default_rng(0)
    for offset, looks in [(0.0, 0), (1e3, 0), (1e7, 1)]:
        calls = []
        x = rng.normal(size=(9, 40)) + offset
        gram = gram_about(x, None)
        measured = Measurements(tuple(range(9)), np.diag(gram).copy(), gram=gram)
        Geometry.measured(measured, lambda row, x=x, calls=calls: calls.append(row) or gram_about(x, row))
        assert len(calls) == looks


def test_short_clients_keep_the_digits_of_their_cosines():
    x = np.random.default_rng(0).normal(size=(9, 30))
    x[:3] *= 1e-9
    unit = x / np.linalg.norm(x, axis=1)[:, None]
    np.testing.assert_allclose(cosine_distances(Geometry.of(x)), 1 - unit @ unit.T, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "size", "fits"), [("f4", 1e17, True), ("f4", 1e19, False), ("f8", 1e148, True), ("f8", 1e151, False)]
)
def test_a_client_whose_squared_norm_overflows_is_quarantined(dtype, size, fits):
    x = np.random.default_rng(0).normal(size=(9, 100)).astype(dtype)
    x[4] = size
    assert (4 not in bz.aggregate(x, bz.Krum(2)).quarantined) == fits


def test_sizes_of_whoever_is_out_do_not_matter_and_large_ones_do_not_overflow():
    x = np.random.default_rng(0).normal(size=(9, 10))
    x[2, 2] = np.nan
    sizes = np.full(9, 2.0**64)
    sizes[2] = -1
    assert bz.aggregate(x, bz.GeometricMedian(), sizes=sizes).weights.sum() == pytest.approx(1)


def test_tiny_clients_are_zero_beside_a_trusted_update_of_another_size_and_end_no_round():
    rng = np.random.default_rng(0)
    tiny, trusted = 1e-310 * rng.normal(size=(5, 30)), rng.normal(size=30)
    for rule in (bz.FLTrust(), bz.MoNNA(2)):
        out = bz.aggregate(tiny, rule, trusted=trusted, seed=1)
        assert not out.quarantined
        assert np.isfinite(out.update).all()


def true_scores(x, weights):
    """Distances to the weighted mean, in more digits than any client can take away."""
    x, weights = x.astype(np.longdouble), weights.astype(np.longdouble)
    return np.sqrt(np.square(x - weights @ x).sum(axis=1)).astype(np.float64)


SCORED = [
    bz.GeometricMedian(),
    bz.MCA(),
    bz.Krum(2),
    bz.MultiKrum(2),
    bz.CenteredClipping(steps=2),
    bz.CenteredClipping(radius=1.0, steps=3),
    bz.FLAME(),
    bz.ClippedClustering(),
    bz.CAF(2),
    bz.NNM(2) >> bz.GeometricMedian(),
    bz.ARC(2) >> bz.GeometricMedian(),
    bz.Clipping(1e-3) >> bz.MCA(),
]


@pytest.mark.parametrize("rule", SCORED, ids=repr)
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [("f4", 1e15), ("f4", 1e17), ("f8", 1e15), ("f8", 1e18), ("f8", 1e50), ("f8", 1e140), ("f8", 1e300)],
)
def test_honest_scores_keep_their_digits_beside_giants(rule, dtype, size, offset):
    rng = np.random.default_rng(7)
    common = offset * rng.normal(size=300)
    x = (common + rng.normal(size=(M, 300))).astype(dtype)
    x[0], x[1, 7] = size, -size
    for reference in (None, common.astype(dtype)):
        out = bz.aggregate(x, rule, reference=reference)
        origin = 0 if reference is None else reference.astype(np.longdouble)
        clients = np.flatnonzero(np.isfinite(out.scores))
        assert set(HONEST) <= set(clients)
        truth = true_scores(x[clients] - origin, out.weights[clients])
        honest = np.isin(clients, HONEST)
        # Where a client is the centre itself, its score is 0 up to what the others' digits allow.
        spread = np.median(truth[honest])
        np.testing.assert_allclose(out.scores[clients][honest], truth[honest], rtol=1e-5, atol=1e-5 * spread)


@pytest.mark.parametrize("sketch", SKETCHES[1:], ids=repr)
def test_honest_scores_of_a_sketch_keep_their_digits_beside_giants(sketch):
    x, _ = hostile_round(np.float64, 1.0)
    x[0], x[1, 777] = 1e18, -1e18
    out = bz.aggregate(x, bz.GeometricMedian(), sketch=sketch, seed=5)
    truth = true_scores(sketch(x, seed=5), out.weights)[HONEST]
    np.testing.assert_allclose(out.scores[HONEST], truth, rtol=1e-5)
    came = streamed(bz.Aggregator(bz.GeometricMedian(), sketch), x, seed=5, recheck=False)
    np.testing.assert_allclose(came.scores[HONEST], truth, rtol=1e-5)


def test_scores_without_any_weight_are_distances_to_the_origin():
    x = np.random.default_rng(7).normal(size=(5, 30))
    x[0] = 1e18
    geometry = Geometry.of(x)
    np.testing.assert_allclose(geometry.distances_to_mean(np.zeros(5)), np.linalg.norm(x, axis=1), rtol=1e-12)
