"""Laws over one table of all rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bartizan as bz
from bartizan.registry import COORDINATEWISE, PRE_AGGREGATORS, RULES
from bartizan.rules import Rule
from bartizan.rules.base import Bounded, Robust
from bartizan.rules.coordinatewise import TrimmedMean
from rule_cases import CASES, Case

M, P = 13, 6
counts_alike = pytest.mark.filterwarnings("ignore:.*all clients count alike:RuntimeWarning")  # CAF


def having(law: str) -> list[Case]:
    return [case for case in CASES if getattr(case, law)]


def updates(seed: int, n_clients: int = M) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_clients, P)) + 0.5


def weigh(rule: Rule, x: np.ndarray, trusted: np.ndarray | None = None, **more) -> np.ndarray:
    trusted = np.full(x.shape[1], 0.5) if trusted is None else trusted
    return rule(bz.Geometry.of(x, trusted=trusted, seed=1, **more))


def test_the_table_has_every_rule_and_every_pre_aggregator():
    shown = " ".join(map(repr, CASES))
    assert {
        kind.__name__
        for kind in [*RULES.built_in.values(), *PRE_AGGREGATORS.built_in.values()]
        if kind.__name__ not in shown
    } == set()
    assert {kind.__name__ for kind in COORDINATEWISE.built_in.values()} == set(bz.coordinatewise.__all__) - {
        "CoordinateWise"
    }


# Numbers of few digits, which no power of two here rounds; lengths among the settings are multiplied too.
POWERS = {np.float64: (-900, -500, -50, 1, 450), np.float32: (-90, -60, -45, 1, 50), np.float16: (-3, 2)}
LENGTHS: dict[str, Callable[[float], Rule]] = {
    "CenteredClipping": lambda unit: bz.CenteredClipping(radius=4 * unit, steps=3),
    "Clipping": lambda unit: bz.Clipping(4 * unit) >> bz.GeometricMedian(),
    "MCA": lambda unit: bz.MCA(width=4 * unit),
}
SCALED = {repr(case): lambda unit, rule=case.rule: rule for case in CASES if case.scale} | LENGTHS


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize("sketch", ["exact", "rotated"])
@pytest.mark.parametrize("dtype", POWERS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", SCALED)
def test_a_power_of_two_moves_no_weight_beyond_the_stated_digits(name, dtype, sketch, with_reference):
    """1e-8 where float32 sums are the norms of a rotated update; else 1e-12, since LAPACK scales what it is given."""
    rng = np.random.default_rng(3)
    x, trusted, reference = (np.rint(128 * rng.normal(0.5, 1, (n, 64))) / 128 for n in (M, 1, 1))
    x[3] *= 8

    def weights(unit: float) -> np.ndarray:
        rows, extra, origin = ((unit * one).astype(dtype) for one in (x, trusted[0], reference[0]))
        assert np.array_equal(rows.astype(np.float64), unit * x)
        out = bz.aggregate(
            rows,
            SCALED[name](unit),
            sketch=sketch,
            seed=5,
            sizes=np.arange(1, M + 1),
            trusted=extra,
            reference=origin if with_reference else None,
        )
        assert not out.quarantined
        return out.weights

    digits = 1e-8 if sketch == "rotated" and dtype != np.float64 else 1e-12
    one = weights(1.0)
    for power in POWERS[dtype]:
        np.testing.assert_allclose(weights(2.0**power), one, rtol=0, atol=digits, err_msg=f"times 2**{power}")


@pytest.mark.parametrize("case", CASES, ids=repr)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_weights_are_not_negative_and_sum_to_one_or_less(case, seed):
    weights = weigh(case.rule, updates(seed))
    assert weights.dtype == np.float64
    assert weights.shape == (M,)
    assert (weights >= 0).all()
    if case.convex:
        assert weights.sum() == pytest.approx(1)
    else:
        assert weights.sum() <= 1 + 1e-9


@pytest.mark.parametrize("case", having("permutation"), ids=repr)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_weights_follow_their_clients(case, seed):
    x = updates(seed)
    order = np.random.default_rng(seed).permutation(M)
    np.testing.assert_allclose(weigh(case.rule, x[order]), weigh(case.rule, x)[order], atol=1e-6)


@pytest.mark.parametrize("case", having("shift"), ids=repr)
@given(seed=st.integers(0, 10**6))
@example(seed=9265)  # on some CPUs NNM makes clients that coincide only up to rounding
@settings(max_examples=15, deadline=None)
def test_no_common_shift_changes_the_weights(case, seed):
    x, shift = updates(seed), np.linspace(-40, 70, P)
    np.testing.assert_allclose(weigh(case.rule, x + shift), weigh(case.rule, x), atol=1e-6)


@pytest.mark.parametrize("case", having("twins"), ids=repr)
def test_equal_updates_get_equal_weights(case):
    x = updates(11)
    x[3] = x[8] = x[1]
    weights = weigh(case.rule, x)
    np.testing.assert_allclose(weights[[3, 8]], weights[1], rtol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("far", [1e4, -1e9, 1e15])
def test_one_far_client_gets_next_to_nothing(case, far):
    x = updates(3)
    x[4] += far
    weights = weigh(case.rule, x)
    assert weights[4] <= case.outlier
    if case.bounded:
        assert np.linalg.norm(weights @ x - weights.sum() * 0.5) < 20
    elif case.outlier == 1:
        assert np.linalg.norm(weights @ x) > abs(far) / 100


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("value", [0.0, 0.5, -3e5])
def test_clients_that_all_agree_determine_the_result(case, value):
    x = np.full((M, P), value)
    weights = weigh(case.rule, x)
    assert np.isfinite(weights).all()
    if case.convex:
        np.testing.assert_allclose(weights @ x, x[0])
    else:
        assert weights.sum() <= 1 + 1e-9


@pytest.mark.parametrize("case", [case for case in CASES if "n_selected=4" not in repr(case)], ids=repr)
def test_one_client_alone_is_the_result_or_refused_by_the_breakdown_condition(case):
    rule = case.rule.with_fewer_byzantine(case.rule.max_byzantine() or 0)
    if case.least > 1:
        with pytest.raises(bz.TooFewClientsError, match=f"needs at least {case.least} clients, got 1"):
            weigh(rule, updates(0, 1))
    else:
        weights = weigh(rule, updates(0, 1))
        assert weights[0] == pytest.approx(1) if case.convex else 0 <= weights[0] <= 1


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_equal_sizes_are_no_sizes(case):
    x = updates(23)
    np.testing.assert_allclose(weigh(case.rule, x, sizes=np.full(M, 7.0)), weigh(case.rule, x), atol=1e-9)


@counts_alike
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_larger_size_never_lowers_a_clients_weight(case):
    """Among the clients that get weight, a client of far more data never gets less than before."""
    x = updates(29)
    before = weigh(case.rule, x)
    chosen = int(before.argmax())
    sizes = np.ones(M)
    sizes[chosen] = 50.0
    after = weigh(case.rule, x, sizes=sizes)
    assert np.isfinite(after).all()
    assert (after >= 0).all()
    assert after[chosen] >= before[chosen] - 1e-9


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_rule_does_not_modify_the_geometry(case):
    geometry = bz.Geometry.of(updates(2), trusted=np.full(P, 0.5), seed=1)
    inner, sizes = geometry.inner.copy(), geometry.sizes.copy()
    first = case.rule(geometry)
    np.testing.assert_array_equal(case.rule(geometry), first)
    np.testing.assert_array_equal(geometry.inner, inner)
    np.testing.assert_array_equal(geometry.sizes, sizes)


@pytest.mark.parametrize(
    ("rule", "n_clients", "most"),
    [
        (bz.Krum(5), 10, 3),
        (bz.MultiKrum(5), 12, 4),
        (bz.Bulyan(5), 20, 4),
        (bz.MDA(5), 10, 4),
        (bz.SMEA(5), 10, 4),
        (bz.CAF(5), 10, 4),
        (bz.CGE(5), 10, 4),
        (bz.SpectralDnC(5), 10, 4),
        (bz.MoNNA(5), 10, 4),
        (bz.NNM(5) >> bz.Mean(), 10, 4),
        (bz.ARC(5) >> bz.Mean(), 10, 4),
    ],
    ids=repr,
)
def test_too_many_attackers_are_refused_with_the_largest_number_allowed(rule, n_clients, most):
    with pytest.raises(bz.TooFewClientsError, match=f"n_byzantine can be at most {most}"):
        weigh(rule, updates(0, n_clients))
    weigh(rule.with_fewer_byzantine(5 - most), updates(0, n_clients))


@pytest.mark.parametrize(
    ("rule", "n_clients"),
    [
        (bz.NNM(24) >> bz.Krum(24), 51),
        (bz.Bucketing(2) >> bz.Krum(5), 26),
        (bz.Bucketing(2) >> bz.NNM(3) >> bz.Mean(), 14),
        (bz.NNM(2) >> bz.Bucketing(2) >> TrimmedMean(2), 10),
    ],
    ids=repr,
)
def test_a_rule_behind_a_pre_aggregator_is_checked_before_any_geometry(rule, n_clients):
    rule.check(n_clients)
    with pytest.raises(bz.TooFewClientsError):
        rule.check(n_clients - 2)


def grouped(links: list) -> list:
    """Every way to put brackets into a >> b >> ... >> rule."""
    if len(links) == 1:
        return links
    return [a >> b for cut in range(1, len(links)) for a in grouped(links[:cut]) for b in grouped(links[cut:])]


PRES = [bz.NNM(2), bz.Bucketing(2), bz.Clipping(1.5), bz.ARC(2), bz.NormFilter()]
LAST = [TrimmedMean(2), *(case.rule for case in CASES if ">>" not in repr(case))]


@counts_alike
@pytest.mark.parametrize(
    ("pres", "last"),
    [
        *((pres, rule) for pres in product(PRES, repeat=2) for rule in LAST),
        *((pres, rule) for pres in product(PRES, repeat=3) for rule in (bz.Mean(), TrimmedMean(2))),
    ],
    ids=repr,
)
def test_composition_is_associative(pres, last):
    """Weights, history and coordinate stage are those of the steps taken one by one, however they are bracketed."""
    n = 44  # Bulyan(2) needs eleven, which is what Bucketing(2) leaves of them after two times
    geometry = bz.Geometry.of(
        updates(31, n), trusted=np.full(P, 0.5), seed=1, sizes=[1000.0, *range(1, n)], history=(1.0, 2.0)
    )
    mixing, mixed = np.eye(n), geometry
    for pre in pres:
        A = pre(mixed)
        mixing, mixed = A @ mixing, mixed.mix(A)
    is_rule = isinstance(last, Rule)
    wanted = mixing.T @ (last(mixed) if is_rule else mixed.shares)
    for rule in grouped([*pres, last]):
        assert repr(rule) == " >> ".join(map(repr, [*pres, last]))
        decision = rule.decide(geometry)
        np.testing.assert_allclose(decision.weights, wanted, atol=1e-12)
        assert decision.history == (last.decide(mixed).history if is_rule else geometry.history)
        if not is_rule:
            np.testing.assert_allclose(decision.coordinate_stage.mixing, mixing, atol=1e-12)
            np.testing.assert_array_equal(decision.coordinate_stage.sizes, mixed.sizes)
    for chain in grouped(list(pres)):
        np.testing.assert_allclose(chain(geometry), mixing, atol=1e-12)


def test_buckets_behind_another_pre_aggregator_own_the_sizes_of_their_clients():
    for seed in range(5):
        out = bz.aggregate(
            np.ones((5, 2)), bz.NNM(1) >> bz.Bucketing(2) >> bz.Mean(), sizes=[1000, 1, 1, 1, 1], seed=seed
        )
        assert out.weights[0] > 0.99


@counts_alike
def test_the_guide_says_of_every_rule_whether_a_far_site_with_most_of_the_data_decides():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "few-sites.md").read_text()
    rows = [line.split("|") for line in guide.split("## What it costs")[0].splitlines() if line.startswith("| ")][1:]
    decides = {name.strip(): row[3].startswith(" decides") for row in rows for name in row[1].split(",")}
    kinds = [kind for kind in {**RULES, **COORDINATEWISE}.values() if not kind.needs_trusted]
    assert sorted(decides) == sorted(kind.__name__ for kind in kinds)
    x = np.random.default_rng(0).normal(size=(7, 50))
    x[0] += 100
    for kind in kinds:
        out = bz.aggregate(x, kind(1) if issubclass(kind, Bounded) else kind(), sizes=[13.0, *[1.5] * 6])
        assert (out.update.mean() > 50) == decides[kind.__name__], kind


@pytest.mark.parametrize("rule", [bz.FLTrust(), bz.MoNNA(1), bz.NNM(1) >> bz.FLTrust()], ids=repr)
def test_a_rule_that_needs_a_trusted_update_asks_for_it(rule):
    with pytest.raises(ValueError, match="pass trusted="):
        rule(bz.Geometry.of(updates(0)))


def test_bucketing_asks_for_a_seed():
    with pytest.raises(ValueError, match="pass seed="):
        bz.Bucketing(2)(bz.Geometry.of(updates(0)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: bz.Krum(-1),
        lambda: bz.MultiKrum(1, n_selected=0),
        lambda: bz.MultiKrum(1, n_selected=2.5),
        lambda: bz.MCA(max_steps=0),
        lambda: bz.MCA(start="median"),
        lambda: bz.CenteredClipping(steps=0),
        lambda: bz.Clipping(0),
        lambda: bz.Bucketing(0),
        lambda: bz.SpectralDnC(1, removal=0),
        lambda: bz.NormFilter(low=2.0),
        lambda: bz.NormFilter(high=0.5),
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=r"needs \w+"):
        wrong()


# Every float among the settings of rules and pre-aggregators, with the largest that is admitted.
FLOATS = {
    ("CenteredClipping", "radius"): (bz.CenteredClipping, 1e150),
    ("Clipping", "radius"): (lambda radius: bz.Clipping(radius) >> bz.Mean(), 1e150),
    ("FLAME", "noise"): (bz.FLAME, 1.0),
    ("GeometricMedian", "tolerance"): (bz.GeometricMedian, 1.0),
    ("MCA", "tolerance"): (bz.MCA, 1.0),
    ("MCA", "width"): (bz.MCA, 1e150),
    ("NormFilter", "high"): (lambda high: bz.NormFilter(high=high) >> bz.Mean(), 1e150),
    ("NormFilter", "low"): (lambda low: bz.NormFilter(low=low) >> bz.Mean(), 1.0),
    ("SpectralDnC", "removal"): (lambda removal: bz.SpectralDnC(2, removal=removal), 1e150),
}


def test_the_table_of_float_settings_is_complete():
    classes = [getattr(bz, name) for name in bz.__all__ if isinstance(getattr(bz, name), type)]
    rules = [one for one in classes if issubclass(one, Robust) and is_dataclass(one)]
    assert len(rules) > 20
    found = {(one.__name__, field.name) for one in rules for field in fields(one) if "float" in str(field.type)}
    assert found == set(FLOATS)


@pytest.mark.parametrize("which", FLOATS, ids=".".join)
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), -1.0, 1e308, np.float64(1e200), True, "1"]
)
def test_a_setting_that_could_overflow_is_refused(which, value):
    of, name = FLOATS[which][0], which[1]
    with pytest.raises(ValueError, match=rf"{which[0]} needs {name}, "):
        of(**{name: value})


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e140])
@pytest.mark.parametrize("which", FLOATS, ids=".".join)
def test_the_largest_setting_gives_finite_numbers_at_every_scale(which, scale):
    of, largest = FLOATS[which]
    out = bz.aggregate(scale * updates(0), of(**{which[1]: largest}), sketch="exact", seed=1)
    assert np.isfinite(out.weights).all()
    assert np.isfinite(out.update).all()
    assert not out.quarantined


EXTREME_SIZES = {
    "one giant": np.where(np.arange(M) == 4, 2.0**64, 2.0**-64),
    "one dwarf": np.where(np.arange(M) == 4, 2.0**-64, 2.0**64),
    "halves": np.where(np.arange(M) % 2, 2.0**64, 2.0**-64),
    "a ladder": 2.0 ** np.linspace(-64, 64, M),
    "all least": np.full(M, 2.0**-64),
    "all largest": np.full(M, 2.0**64),
}
COORDINATEWISE_RULES = [bz.Median(), bz.TrimmedMean(2), bz.MeaMed(2), bz.TrimmedMean(6), bz.MeaMed(6)]


@counts_alike
@pytest.mark.filterwarnings("ignore:.*did not reach its tolerance:RuntimeWarning")
@pytest.mark.parametrize("sizes", EXTREME_SIZES.values(), ids=EXTREME_SIZES)
@pytest.mark.parametrize(
    "rule",
    [
        *(case.rule for case in CASES),
        *COORDINATEWISE_RULES,
        *(pre >> rule for pre in (bz.NNM(2), bz.Bucketing(2), bz.ARC(2)) for rule in COORDINATEWISE_RULES[:3]),
        bz.Bulyan(2, trim=True),
    ],
    ids=repr,
)
def test_sizes_of_any_admitted_ratio_give_finite_weights_and_updates_inside_the_clients(rule, sizes):
    x = updates(3)
    for rows in (x, x.astype("f4"), np.round(x), np.repeat(x[:1], M, axis=0)):  # ties and equal clients too
        trusted = np.full(P, 0.5, rows.dtype) if getattr(rule, "needs_trusted", False) else None
        out = bz.aggregate(rows, rule, sizes=sizes, trusted=trusted, seed=1)
        if out.weights is not None:
            assert (out.weights >= 0).all()
            assert 0 < out.weights.sum() <= 1 + 1e-9
        largest = np.abs(rows).max() * (1 + 1e-6)  # clients and the origin: float32 rounds once more
        assert (np.abs(out.update) <= largest).all()  # False for NaN
