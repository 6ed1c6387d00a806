"""Every attack against its formula, in both libraries and all dtypes; none changes what it is given."""

from __future__ import annotations

import inspect
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

import bartizan as bz
import oracle
from bartizan import attacks
from bartizan.attacks import honest_updates as reading
from bartizan.attacks.formulas import hiding_z

H, F, P = 9, 3, 700
DTYPES = ["float16", "float32", "float64"]
RANDOM = ("gaussian", "garbage")


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    """So that 700 columns are read in eight blocks."""
    monkeypatch.setattr(reading, "BLOCK_NUMBERS", 900)


def drawn(dtype="float32", n=H, seed=0):
    return np.random.default_rng(seed).normal(0.3, 1.0, size=(n, P)).astype(dtype)


def rng():
    return np.random.default_rng(5)


def krum(updates):
    return bz.aggregate(updates, bz.Krum(F)).update


def average(updates):
    return updates.mean(axis=0)


def built(name, aggregator=krum):
    known = {
        "aggregator": aggregator,
        "exact_weights": lambda points: bz.aggregate(points, bz.FLAME(), sketch="exact").weights,
        "sketch": bz.Rotated(k=64),
        "leaked_seed": 5,
        "past_seeds": [3, 4],
        "published": np.ones(P),
        "now": 3,
        "earlier": [np.ones(P)],
    }
    return attacks.attack(name, **{each: known[each] for each in attacks.needs(attacks.attack(name))})


def deviation_of(x, kind):
    mean = x.mean(axis=0)
    return {"std": -x.std(axis=0), "unit": -mean / np.linalg.norm(mean), "sign": -np.sign(mean)}[kind]


def bisected(x, kind, ok):
    """The source's search, with steps halved until nothing changes."""
    mean, d = x.mean(axis=0), deviation_of(x, kind)
    gamma, step = 0.0, 1e4
    while step > 1e-12:
        if ok(mean + (gamma + step) * d):
            gamma += step
        step /= 2
    return mean + gamma * d


def pair_distances(x):
    return np.linalg.norm(x[:, None] - x[None], axis=2)


def min_max_of(x, kind):
    most = pair_distances(x).max()
    return bisected(x, kind, lambda m: np.linalg.norm(x - m, axis=1).max() <= most)


def min_sum_of(x, kind):
    most = (pair_distances(x) ** 2).sum(axis=1).max()
    return bisected(x, kind, lambda m: ((x - m) ** 2).sum() <= most)


def mimicked(x):
    direction = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][0]
    return x[np.abs((x - x.mean(axis=0)) @ direction).argmax()]


def against_krum(x, least_step=1e-5):
    """The source's search, with Krum itself on all coordinates of all updates."""
    s, d, M = np.sign(x.mean(axis=0)), x.shape[1], H + F
    D = pair_distances(x) ** 2
    nearest = min(np.sort(np.delete(D[i], i))[: M - F - 2].sum() for i in range(H))
    step = np.sqrt(nearest / ((M - 2 * F - 1) * d)) + np.linalg.norm(x, axis=1).max() / np.sqrt(d)
    while step >= least_step and oracle.krum(np.concatenate([x, np.tile(-step * s, (F, 1))]), F) < H:
        step /= 2
    return -step * s


def relocated(x, course, place, mix, angle, length):
    """Gram and Schmidt instead of the source's projection."""
    mean = x.mean(axis=0)
    size = np.linalg.norm(mean)
    before = course / np.linalg.norm(course) * size if course.any() else np.zeros(P)
    towards = mix * before + (1 - mix) * mean
    frame = np.linalg.qr(np.stack([towards, np.ones(P)], axis=1))[0].T
    u, o = (row * np.sign(row @ to) for row, to in zip(frame, (towards, np.ones(P)), strict=True))
    return place * before + (1 - place) * mean + length * size * (np.sin(angle) * o + np.cos(angle) * u)


def sparse(x, n_sensitive, factor):
    mean, scale = x.mean(axis=0), np.full(P, abs(NormalDist().inv_cdf(5 / 9)))
    scale[sorted(range(P), key=lambda j: -abs(mean[j]))[:n_sensitive]] = factor
    return mean - scale * x.std(axis=0)


COURSE = np.where(np.arange(P) % 3 == 0, -2.0, np.arange(P) % 3)  # of both signs

FORMULAS = {
    "sign-flip": ({}, lambda x: -3 * x.sum(axis=0)),
    "sign-flip x 2": ({"factor": 2}, lambda x: 2 * x.sum(axis=0)),
    "lie": ({}, lambda x: x.mean(axis=0) + 0.7 * x.std(axis=0)),
    "lie -1.5": ({"z": -1.5}, lambda x: x.mean(axis=0) - 1.5 * x.std(axis=0)),
    "foe": ({}, lambda x: -0.1 * x.mean(axis=0)),
    "ipm": ({}, lambda x: -2 * x.mean(axis=0)),
    "ipm 9": ({"factor": 9.0}, lambda x: -9 * x.mean(axis=0)),
    # M = 12, f = 3: s = 7 - 3 = 4 supporters, 5 of 9 honest
    "alie": ({}, lambda x: x.mean(axis=0) + NormalDist().inv_cdf(5 / 9) * x.std(axis=0)),
    "alie-over-time": (
        {"published": COURSE},
        lambda x: x.mean(axis=0) - NormalDist().inv_cdf(5 / 9) * x.std(axis=0) * np.sign(COURSE),
    ),
    "alie-over-time at first": (
        {"published": np.zeros(P)},
        lambda x: x.mean(axis=0) - NormalDist().inv_cdf(5 / 9) * x.std(axis=0) * np.sign(x.mean(axis=0)),
    ),
    "send-old": ({"earlier": [COURSE, 2 * COURSE, 3 * COURSE], "age": 2}, lambda x: 2 * COURSE),
    "send-old of the first": ({"earlier": [COURSE, 2 * COURSE]}, lambda x: COURSE),
    "send-old at first": ({"earlier": []}, lambda x: x.mean(axis=0)),
    "flood": ({}, lambda x: -3 * x.mean(axis=0)),
    "wait-and-strike before": ({"now": 20}, lambda x: x.mean(axis=0)),
    "wait-and-strike": ({"now": 21, "factor": 4}, lambda x: -4 * x.mean(axis=0)),
    "rop": ({"published": COURSE}, lambda x: relocated(x, COURSE, 1.0, 0.9, np.pi / 2, 1.0)),
    "rop at first": ({"published": np.zeros(P)}, lambda x: relocated(x, np.zeros(P), 1.0, 0.9, np.pi / 2, 1.0)),
    "rop elsewhere": (
        {"published": COURSE, "place": 0.25, "mix": 0.5, "angle": 240.0, "length": 3},
        lambda x: relocated(x, COURSE, 0.25, 0.5, 4 / 3 * np.pi, 3),
    ),
    "hybrid-sparse": ({}, lambda x: sparse(x, 4, 1.5)),  # 0.5% of 700 coordinates, rounded up
    "hybrid-sparse wide": ({"share": 0.5, "factor": -3}, lambda x: sparse(x, 350, -3)),
    "fang-krum": ({}, against_krum),
    "fang-krum coarsely": ({"least_step": 1e9}, lambda x: against_krum(x, 1e9)),
    "mimic": ({}, mimicked),
    "mimic 4": ({"client": 4}, lambda x: x[4]),
    "infinity": ({}, lambda x: np.full(P, np.inf)),
    "nan": ({}, lambda x: np.full(P, np.nan)),
} | {
    f"{name} {kind}": ({"deviation": kind}, lambda x, of=of, kind=kind: of(x, kind))
    for name, of in (("min-max", min_max_of), ("min-sum", min_sum_of))
    for kind in ("std", "unit", "sign")
}


@pytest.mark.parametrize("case", FORMULAS)
def test_an_attack_is_its_formula(case):
    settings, formula = FORMULAS[case]
    x = drawn()
    sent = attacks.attack(case.split(" ")[0], **settings)(x, F, rng())
    np.testing.assert_allclose(sent, np.tile(formula(x.astype(np.float64)), (F, 1)), rtol=2e-6, atol=1e-6)


def test_the_gaussian_attack_has_the_variance_that_is_asked_for():
    x = np.zeros((2, 50_000), dtype=np.float32)
    torch = pytest.importorskip("torch")
    for given in (x, torch.from_numpy(x)):
        for settings, variance in (({}, 90), ({"variance": 4.0}, 4)):
            noise = np.asarray(attacks.gaussian(given, 4, rng(), **settings), dtype=np.float64)
            # 200,000 draws: 2% of the variance and 0.015 standard deviations are 6 standard errors.
            assert noise.var() == pytest.approx(variance, rel=0.02)
            assert abs(noise.mean()) < 0.015 * variance**0.5
            assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 0.03  # 6 standard errors: attackers draw their own


@pytest.mark.parametrize("factor", [1.5, 2.0])
@pytest.mark.parametrize("shift", [-9.0, -0.2, 0.0, 0.2, 9.0])
def test_fangs_attack_on_trimmed_means_draws_beyond_the_honest_numbers_on_the_other_side(factor, shift):
    """The source's four intervals, by the direction of the mean and the sign of the extreme honest number."""
    x = drawn("float64", seed=4) + shift
    sent = attacks.fang_trim(x, F, rng(), factor=factor)
    for j in range(P):
        low, high = x[:, j].min(), x[:, j].max()
        if x[:, j].mean() < 0:
            interval = (high, factor * high) if high > 0 else (high, high / factor)
        else:
            interval = (low / factor, low) if low > 0 else (factor * low, low)
        assert interval[0] <= sent[:, j].min() <= sent[:, j].max() <= interval[1]
    moved = bz.aggregate(np.concatenate([x, sent]), bz.coordinatewise.TrimmedMean(F)).update - x.mean(axis=0)
    assert (moved * np.sign(x.mean(axis=0)) < 0).mean() > 0.99
    assert len(np.unique(sent)) == F * P


def test_alie_hides_behind_as_many_as_the_counts_ask_for():
    for n_honest, count, part in ((40, 10, 24 / 40), (35, 15, 24 / 35), (9, 1, 4 / 9)):
        assert hiding_z(n_honest, count) == pytest.approx(NormalDist().inv_cdf(part))
    for n_honest, count, part in ((1, 1, 1 / 2), (3, 9, 3 / 4)):  # beyond the formula: 0 and 1 are held off
        assert hiding_z(n_honest, count) == pytest.approx(NormalDist().inv_cdf(part))


RULES = [bz.Krum(F), bz.GeometricMedian(), bz.NNM(F) >> bz.GeometricMedian(), bz.coordinatewise.TrimmedMean(F)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_an_optimised_attack_hurts_at_least_as_much_as_its_fixed_form(name, rule):
    def aggregated(updates):
        return bz.aggregate(updates, rule).update

    def harm(sent):
        return np.linalg.norm(aggregated(np.concatenate([x, sent])) - x.mean(axis=0))

    x = drawn("float64", n=11, seed=7)
    fixed = harm(attacks.attack(name)(x, F, rng()))
    best = harm(attacks.attack(f"optimised-{name}", aggregator=aggregated)(x, F, rng()))
    assert best >= fixed * (1 - 1e-12)
    assert name == "ipm" or best > 2 * fixed  # ALIE's own z is a cautious one, whatever the rule


def test_an_optimised_attack_calls_the_rule_as_often_as_it_is_told():
    seen = []

    def counting(updates):
        seen.append(updates.shape)
        return updates.mean(axis=0)

    for tries in (1, 3, 20):
        seen.clear()
        attacks.optimised_alie(drawn(), F, rng(), aggregator=counting, tries=tries)
        assert seen == [(H + F, P)] * tries


def test_an_aggregate_that_is_not_finite_counts_as_the_most_harm():
    def breaks_at_one(updates):
        return updates[-1] * (np.nan if abs(updates[-1]).max() > 1e3 else 1)

    x = drawn("float64") * 1e3 / 9
    sent = attacks.optimised_ipm(x, F, rng(), aggregator=breaks_at_one)
    assert np.abs(sent).max() > 1e3


@pytest.mark.parametrize("rule", [bz.Krum(F), bz.MultiKrum(F), bz.CAF(F), bz.NNM(F) >> bz.GeometricMedian()], ids=repr)
def test_edge_riding_sends_the_reversed_mean_just_beyond_what_the_exact_rule_admits(rule):
    def weights(updates):
        return bz.aggregate(updates, rule, sketch="exact").weights

    x, margin = drawn("float64"), 0.01
    sent = attacks.edge_riding(x, F, rng(), exact_weights=weights, margin=margin)
    factor = -(sent[0] @ x.mean(axis=0)) / (x.mean(axis=0) @ x.mean(axis=0))
    np.testing.assert_allclose(sent, np.tile(-factor * x.mean(axis=0), (F, 1)))
    for part, admitted in ((1.0, False), (1 / (1 + margin) - 1e-4, True)):
        most = weights(np.concatenate([x, part * sent]))[H:].max()
        assert (most > 0.5 / (H + F)) == admitted


def test_edge_riding_sends_zero_where_no_reversed_mean_is_admitted():
    x = drawn("float64")
    assert not attacks.edge_riding(x, F, rng(), exact_weights=lambda points: np.zeros(len(points))).any()


def test_an_aggregator_that_returns_something_else_is_told_so():
    with pytest.raises(
        ValueError, match=r"must return one update of shape \(700,\).*aggregate\(updates, rule\).update"
    ):
        attacks.optimised_alie(drawn(), F, rng(), aggregator=lambda updates: bz.aggregate(updates, bz.Krum(F)))


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_tensors_get_what_arrays_get(name, dtype):
    torch = pytest.importorskip("torch")
    there = torch.from_numpy(drawn("float64")).to(getattr(torch, dtype))
    here = there.double().numpy() if dtype == "bfloat16" else there.numpy()
    sent, by_numpy = built(name)(there, F, rng()), np.array(built(name)(here, F, rng()))
    assert (sent.dtype, sent.device, sent.shape) == (there.dtype, there.device, (F, P))
    assert (by_numpy.dtype, by_numpy.shape) == (here.dtype, (F, P))
    if name in RANDOM or (name, dtype) == ("optimised-null-space", "bfloat16"):
        return  # of other generators; a search whose best two are as good as each other
    expected = torch.from_numpy(by_numpy).to(there.dtype)
    # One in the last place, for the order of sums in float64.
    torch.testing.assert_close(sent, expected, rtol=2 * torch.finfo(there.dtype).eps, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_attack_is_pure_no_attackers_send_nothing_and_one_honest_client_will_do(name, kind):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(drawn()).requires_grad_() if kind == "torch" else drawn()
    before = x.detach().clone() if kind == "torch" else x.copy()
    moved = str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    one, other = (np.asarray(built(name)(x, F, rng())) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert str(np.random.get_state()) == moved[0]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), moved[1])
    np.testing.assert_array_equal(np.asarray(before), x.detach().numpy() if kind == "torch" else x)
    assert tuple(built(name, average)(x, 0, rng()).shape) == (0, P)
    assert tuple(built(name, average)(x[:1], 2, rng()).shape) == (2, P)


def test_what_is_random_follows_from_the_state_of_the_generator_and_moves_it():
    source = rng()
    state = source.bit_generator.state
    one, other = (attacks.gaussian(drawn(), F, source) for _ in range(2))
    assert not (one == other).any()
    source.bit_generator.state = state
    np.testing.assert_array_equal(attacks.gaussian(drawn(), F, source), one)


@pytest.mark.parametrize("name", ["sign-flip", "lie", "foe", "alie", "ipm", "mimic", "min-max", "infinity", "nan"])
def test_attackers_who_agree_share_one_row(name):
    assert built(name)(drawn(), F, rng()).strides[0] == 0
    assert built(name)(pytest.importorskip("torch").from_numpy(drawn()), F, rng()).stride(0) == 0


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_honest_client_that_diverged_stops_no_attack(name, kind):
    x = drawn()
    x[2], x[3, 5] = np.nan, np.inf
    given = pytest.importorskip("torch").from_numpy(x) if kind == "torch" else x
    assert tuple(built(name, average)(given, F, rng()).shape) == (F, P)


def test_what_does_not_fit_the_dtype_is_sent_as_the_largest_that_does():
    torch = pytest.importorskip("torch")
    x = np.full((4, 3), 6e4, dtype=np.float16)
    for given in (x, torch.from_numpy(x)):
        assert (np.asarray(attacks.sign_flip(given, 2, rng())) == -65504).all()
        assert np.isfinite(np.asarray(attacks.gaussian(given, 2, rng(), variance=1e12))).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_garbage_is_of_every_kind(dtype, kind):
    torch = pytest.importorskip("torch")
    if kind == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(H, 40_000))).to(getattr(torch, dtype))
    sent = attacks.garbage(x if kind == "torch" else x.numpy(), 5, rng())
    rows = torch.as_tensor(sent)
    least, most = torch.finfo(rows.dtype).tiny, torch.finfo(rows.dtype).max
    broken = (~rows.isfinite()).sum(dim=1).sort().values.tolist()
    assert broken[:4] == [0, 0, 0, 1]
    assert broken[4] > 1
    subnormal = [bool((row.abs() < least).all()) and bool((row != 0).any()) for row in rows]
    assert sum(subnormal) == 1
    assert sum(bool((row.abs() == most).sum() > 100) for row in rows) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["nan", "infinity", "garbage"])
@pytest.mark.parametrize("rule", [bz.Krum(5), bz.GeometricMedian(), bz.MCA()], ids=repr)
def test_broken_updates_do_not_break_a_round(name, rule, dtype):
    x = drawn(dtype, n=14)
    out = bz.aggregate(np.concatenate([x, built(name)(x, 5, rng())]), rule, sketch=bz.Rotated(k=256))
    assert np.isfinite(out.update).all()
    assert set(out.quarantined) <= set(range(14, 19))
    assert len(out.quarantined) >= 2
    assert np.abs(out.update).max() <= np.abs(x).max()


def test_none_sends_honest_updates_and_none_twice_while_there_are_enough():
    x = drawn()
    assert {row.tobytes() for row in attacks.none(x, H, rng())} == {row.tobytes() for row in x}
    assert {row.tobytes() for row in attacks.none(x, 25, rng())} <= {row.tobytes() for row in x}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((np.ones(3), 1, rng()), ValueError, r"one row each, \(H, p\), both at least 1; got shape \(3,\)"),
        ((np.ones((0, 3)), 1, rng()), ValueError, r"got shape \(0, 3\)"),
        ((np.ones((2, 3), dtype=int), 1, rng()), ValueError, "float16, bfloat16, float32, float64; got int64"),
        ((np.ones((2, 3)), -1, rng()), ValueError, "gaussian needs count, a whole number from 0 up; got -1"),
        ((np.ones((2, 3)), 1.5, rng()), ValueError, "count"),
        ((np.ones((2, 3)), 1, 7), TypeError, r"gaussian needs rng, a numpy\.random\.Generator; got 7"),
    ],
)
def test_what_is_no_round_of_updates_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        attacks.gaussian(*given)


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("gausian", {}, ValueError, r"Unknown attack 'gausian'. Did you mean 'gaussian'\? Known: alie, "),
        ("gaussian", {"std": 3}, TypeError, "'gaussian' has no setting 'std'; it takes variance"),
        ("alie", {"z": 3}, TypeError, "'alie' has no setting 'z'; it takes no settings"),
        ("gaussian", {"variance": -1}, ValueError, "gaussian needs variance, a finite number from 0 up; got -1"),
        ("lie", {"z": "0.7"}, ValueError, "lie needs z, a finite number; got '0.7'"),
        ("lie", {"z": float("nan")}, ValueError, "finite"),
        ("min-max", {"deviation": "var"}, ValueError, "needs deviation, 'std' or 'unit' or 'sign'; got 'var'"),
        ("optimised-ipm", {"tries": 0}, ValueError, "needs tries, a whole number from 1 up; got 0"),
        ("optimised-ipm", {"aggregator": "krum"}, ValueError, "needs aggregator, a function"),
        ("mimic", {"client": -1}, ValueError, "needs client, a whole number from 0 up or None; got -1"),
        ("Label_Flip", {}, ValueError, "poisons data"),
    ],
)
def test_a_wrong_attack_or_setting_says_what_is_wanted(name, settings, error, message):
    with pytest.raises(error, match=message):
        attacks.attack(name, **settings)


@pytest.mark.parametrize("function", attacks.ATTACKS.values(), ids=attacks.ATTACKS)
def test_every_setting_is_checked(function):
    parameters = inspect.signature(function).parameters.values()
    assert set(function.wanted) == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_a_client_who_is_not_there_can_not_be_mimicked():
    with pytest.raises(ValueError, match="needs client, the row of an honest update, 0 to 8; got 9"):
        attacks.mimic(drawn(), 1, rng(), client=9)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_attack_on_a_gpu_is_the_attack_in_host_memory(name, dtype, monkeypatch):
    """Without a GPU, tensors in host memory are read as if they were on one."""
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    host = torch.from_numpy(drawn("float64")).to(getattr(torch, dtype))
    expected = built(name)(host, F, rng())

    monkeypatch.setattr(reading, "GPU_BLOCK_NUMBERS", 900)
    if device == "cpu":
        monkeypatch.setattr(reading, "on_gpu", reading.is_tensor)
    there = host.to(device)
    before, state = there.clone(), torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    sent = built(name)(there, F, rng())
    assert (sent.dtype, sent.device) == (there.dtype, there.device)
    assert torch.equal(there, before)
    assert torch.equal(torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state(), state)
    if name in RANDOM:  # of another generator there
        expected = built(name)(there, F, rng()).cpu()
    eps = torch.finfo(sent.dtype).eps
    by_distances = name in ("min-max", "min-sum", "fang-krum")  # which are rounded
    atol = 32 * eps * float(expected.abs().max()) if by_distances else 1e-9
    torch.testing.assert_close(sent.cpu(), expected, rtol=2 * eps, atol=atol, equal_nan=True)
    assert built(name)(there, 0, rng()).shape == (0, P)


@pytest.mark.parametrize("name", ["gaussian", "sign-flip", "lie", "foe", "mimic"])
def test_the_documents_table_of_harm_comes_out_of_its_recipe(name):
    generator = np.random.default_rng(0)
    common, noise = generator.standard_normal(20_000) / 3, generator.standard_normal((40, 20_000))
    honest = (common + noise).astype(np.float32)
    middle = honest.mean(axis=0, dtype=np.float64)
    unit = np.linalg.norm(honest - middle, axis=1).mean()
    sent = np.concatenate([honest, attacks.attack(name)(honest, 10, np.random.default_rng(1))])
    page = Path(__file__).parents[2] / "docs" / "reference" / "attacks" / "index.md"
    table = page.read_text().partition("## Whom they hurt")[2]
    (row,) = [line.split(" | ") for line in table.splitlines() if line.startswith(f"| {name} |")]
    for rule, printed in zip((bz.Mean(), bz.Krum(10)), row[1:], strict=False):
        update = np.asarray(bz.aggregate(sent, rule, sketch=bz.Exact()).update, dtype=np.float64)
        harm = np.linalg.norm(update - middle) / unit * np.sign(update @ middle)
        assert abs(harm) == pytest.approx(abs(float(printed)), abs=0.006)
        # Where the aggregate is mostly noise its direction is a draw of its own.
        if name != "gaussian":
            assert np.sign(harm) == np.sign(float(printed))
