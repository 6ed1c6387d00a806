"""The coordinate-wise rules against their definitions, one coordinate at a time."""

from dataclasses import dataclass

import numpy as np
import pytest

import bartizan as bz
import oracle
from bartizan.rules.coordinatewise import CoordinateWise, MeaMed, Median, TrimmedMean


def by_definition(rule, x, sizes=None):
    return oracle.coordinate_wise(rule, np.asarray(x, np.float64), sizes)


RULES = [Median(), *(kind(f) for kind in (TrimmedMean, MeaMed) for f in (0, 1, 2, 3))]


def updates_of(n_clients=9, p=30, dtype=np.float64, rng=0):
    return np.random.default_rng(rng).normal(size=(n_clients, p)).astype(dtype)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("n_clients", [7, 8, 20])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_answer_is_the_definitions_in_every_coordinate(rule, n_clients, dtype, sized):
    x = updates_of(n_clients, dtype=dtype)
    sizes = np.random.default_rng(1).integers(1, 9, size=n_clients) if sized else None
    out = bz.aggregate(x, rule, sizes=sizes)
    expected = by_definition(rule, x, sizes)
    assert out.update.dtype == dtype
    assert out.weights is None
    eps = np.finfo(dtype).eps
    # Float64 sums may be taken in another order than the definition's.
    rounding = n_clients * np.finfo(np.float64).eps * np.abs(x).max()
    np.testing.assert_allclose(out.update, expected.astype(dtype), rtol=4 * eps, atol=rounding)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, ">f8"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_called_on_columns_a_rule_gives_what_the_round_gives(rule, dtype, sized):
    x = np.random.default_rng(0).integers(-9, 9, size=(9, 40)).astype(dtype)
    sizes = np.arange(1.0, 10) if sized else np.ones(9)
    expected = bz.aggregate(x.astype(np.float64), rule, sizes=sizes).update
    got = rule(x, sizes)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(rule(np.asfortranarray(x)[:, ::2], sizes), got[::2])


@dataclass(frozen=True)
class Midrange(CoordinateWise):
    """Half-way between the least and the largest value: a rule in NumPy, without a kernel."""

    def reduce(self, columns, sizes):
        return (columns.min(axis=0) + columns.max(axis=0)) / 2


@pytest.mark.parametrize("memory", [None, "64 MiB"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_rule_in_numpy_alone_is_a_rule(dtype, memory):
    x = updates_of(9, 20_000, dtype)
    middle = bz.aggregate(x, Midrange(), memory=memory).update
    np.testing.assert_allclose(middle, (x.min(axis=0) + x.max(axis=0)) / 2, rtol=1e-6)
    mixed = bz.aggregate(x, bz.NNM(2) >> Midrange(), memory=memory).update
    of = oracle.nnm(x.astype(np.float64), 2, np.ones(9))
    np.testing.assert_allclose(mixed, (of.min(axis=0) + of.max(axis=0)) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.25, 1.0, 1e6])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_equal_sizes_are_no_sizes_and_only_proportions_count(rule, scale):
    x, sizes = updates_of(), np.arange(1, 10)
    alike = bz.aggregate(x, rule, sizes=np.full(9, scale)).update
    np.testing.assert_allclose(alike, bz.aggregate(x, rule).update, rtol=1e-12)
    np.testing.assert_allclose(
        bz.aggregate(x, rule, sizes=scale * sizes).update, by_definition(rule, x, sizes), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(1), MeaMed(1)], ids=repr)
def test_blockwise_is_the_whole(rule, dtype, sized):
    p = 1_300_001
    column = np.random.default_rng(0).normal(size=(5, 9973))
    x = np.resize(np.arange(5)[:, None] % 2 + np.tile(column, (1, p // 9973 + 1)), (5, p // 9973 * 9973 + 9973))[:, :p]
    x = x.astype(dtype)
    sizes = [1, 2, 3, 2, 1] if sized else None
    whole = bz.aggregate([{"a": row[:700_003], "b": row[700_003:]} for row in x], rule, sizes=sizes).update
    joined = np.concatenate([whole["a"], whole["b"]])
    once = bz.aggregate(np.ascontiguousarray(x[:, :9973]), rule, sizes=sizes).update
    assert (joined == np.resize(once, p)).all()
    np.testing.assert_allclose(once[:50], by_definition(rule, x[:, :50], sizes).astype(dtype), rtol=2e-3, atol=1e-3)


# Mixed clients may be equal but for their sizes: which of those is trimmed no definition says; a median does not ask.
@pytest.mark.parametrize(
    ("rule", "sized"), [(Median(), True), (Median(), False), (TrimmedMean(2), False), (MeaMed(2), False)], ids=repr
)
@pytest.mark.parametrize(
    "pack", [lambda r: r, lambda r: {"w": r[:10].reshape(2, 5), "b": r[10:]}], ids=["array", "dict"]
)
def test_behind_nnm_a_coordinate_wise_rule_works_on_the_mixed_clients(rule, pack, sized):
    x = updates_of()
    x[0] += 50
    sizes = np.arange(1, 10) if sized else np.ones(9, int)
    out = bz.aggregate([pack(r) for r in x], bz.NNM(2) >> rule, sizes=sizes)
    update = (
        out.update
        if isinstance(out.update, np.ndarray)
        else np.concatenate([v.reshape(-1) for v in out.update.values()])
    )
    np.testing.assert_allclose(update, by_definition(rule, oracle.nnm(x, 2, sizes), sizes), rtol=1e-9, atol=1e-12)
    assert out.weights.shape == (9,)
    assert out.weights.sum() == pytest.approx(1)


def test_behind_nnm_it_may_follow_a_projected_geometry():
    x = updates_of(p=3000)
    x[0] += 50
    rule = bz.NNM(1) >> Median()
    out = bz.aggregate(x, rule, sketch=bz.Rotated(k=1024), seed=0)
    np.testing.assert_allclose(out.update, bz.aggregate(x, rule).update, atol=1e-9)


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize(("f", "n_clients"), [(0, 3), (0, 4), (1, 7), (1, 8), (2, 11), (2, 14)])
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
def test_bulyans_second_stage_is_the_mean_of_the_values_closest_to_the_median(f, n_clients, sketch, sized):
    x = updates_of(n_clients, p=200)
    x[:f] += 20
    sizes = np.random.default_rng(1).integers(1, 5, size=n_clients) if sized else np.ones(n_clients, int)
    out = bz.aggregate(x, bz.Bulyan(f, trim=True), sketch=sketch, sizes=sizes, seed=0)
    selection = bz.aggregate(x, bz.Bulyan(f), sketch=sketch, sizes=sizes, seed=0).weights
    assert out.weights.tolist() == selection.tolist()
    selected = np.flatnonzero(selection)
    assert len(selected) == n_clients - 2 * f
    assert f == 0 or selected.min() >= f
    expected = by_definition(MeaMed(2 * f), x[selected], sizes[selected])
    np.testing.assert_allclose(out.update, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(2), MeaMed(2)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_behind_clipping_it_works_on_clients_shortened_towards_the_reference(rule, with_reference, dtype):
    x = (updates_of() * np.linspace(0.1, 5, 9)[:, None]).astype(dtype)
    origin = np.linspace(-3, 3, 30) if with_reference else np.zeros(30)
    out = bz.aggregate(x, bz.Clipping(radius=6.0) >> rule, reference=origin if with_reference else None)
    clipped = oracle.clipping(x.astype(np.float64), 6.0, origin)
    assert not np.allclose(clipped, x)
    tolerance = 1e-9 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(out.update, by_definition(rule, clipped), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("rule", "n_clients"), [(TrimmedMean(3), 6), (MeaMed(2), 4), (bz.Bucketing(3) >> TrimmedMean(2), 9)], ids=repr
)
def test_too_few_clients_are_refused(rule, n_clients):
    with pytest.raises(bz.TooFewClientsError, match=r"needs at least \d clients"):
        bz.aggregate(updates_of(n_clients), rule)
