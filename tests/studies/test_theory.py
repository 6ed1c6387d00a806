"""The paper's promises at sizes that run in a minute: the formulas, each bound, and that the checks can fail."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from bartizan import Gaussian, MultiKrum, Rotated, attacks
from bartizan import registry as names
from bartizan.attacks import needs
from bartizan.measure.geometry import Geometry
from bartizan.sketch import distortion, embedding_dimension, guarantee
from studies import rows as study_rows
from studies.__main__ import main
from studies.estimates import log_slope
from studies.rows import kept
from studies.rules_by_name import most_accepted, rule_named
from studies.theory import aggregation_error as aggregation
from studies.theory import bounds, breakdown, convergence, parts
from studies.theory import projection_attacks as adaptive
from studies.theory import subspace_embedding as embedding
from studies.theory.convergence import PROBLEMS
from studies.theory.simulated_round import (
    Attack,
    HonestClients,
    Server,
    common_gradient,
    honest_clients,
    mean_errors,
    servers_of,
)
from studies.theory.subspace_embedding import basis

# By hand: b = 0.2, c = 3, eps = 0.6 (so a factor of 4), sigma^2 = 4, kappa^2 = 9.
GIVEN = {"c": 3.0, "b": 0.2, "eps": 0.6, "sigma": 2.0, "kappa": 3.0}


def test_the_formulas_are_the_papers():
    assert bounds.inflation(0.6) == pytest.approx(4.0)
    assert bounds.aggregation_bound(**GIVEN) == pytest.approx(2 * 3 * 0.2 * 4 * (4 + 18))  # 105.6
    assert bounds.error_floor(**GIVEN) == pytest.approx(4 * 3 * 0.2 * 4 * 22 + 2 * 13)  # 237.2
    assert bounds.nonconvex_step(4.0, 100) == pytest.approx(0.025)
    assert bounds.nonconvex_bound(drop=5.0, step=0.025, rounds=100, floor=237.2) == pytest.approx(241.2)
    assert bounds.convex_step(3, convexity=0.5, smoothness=2.0) == pytest.approx(2 / (0.5 * 19))
    assert bounds.convex_bound(35, 50.0, 0.5, 2.0, 237.2) == pytest.approx(15 / 50 * 50 + 32 * 237.2)
    assert bounds.error_floor(**GIVEN | {"b": 0.0}) == 26.0


@pytest.mark.parametrize(("eps", "b"), [(1.0, 0), (math.nan, 0), (0, 0.5), (0, math.nan)])
def test_what_the_theorems_do_not_speak_of_is_refused(eps, b):
    with pytest.raises(ValueError, match="must be from 0"):
        bounds.aggregation_bound(c=1, b=b, eps=eps, sigma=1, kappa=1)


# At this size the theorem asks for k = 444, of Rotated for 512, in 4 rounds of a trial.
SMALL_SPAN = embedding.EmbeddingCase("rotated", "dense", 512, 8, 0.9, 0.05, 4, 25)


def promise(sketch, cell, *, independent=False):
    """Whether at most a part delta of these trials failed."""
    found = embedding.outcome(embedding.distortions(sketch, cell, independent=independent), cell)
    return found["failed_trials"] <= cell.delta * cell.trials


def test_real_gradients_are_embedded_at_the_theorems_k(one_thread):
    pytest.importorskip("torch")
    assert basis("gradients", 8, np.random.default_rng(0), independent=False).shape == (8, 33914)
    assert promise(embedding.sketching("rotated", 512), replace(SMALL_SPAN, span="gradients", trials=1, rounds=12))


def test_few_trials_can_not_tell_whether_a_promise_is_kept():
    cells = [replace(SMALL_SPAN, trials=n) for n in (5, 75, 50, 500)]
    told = [embedding.kept(cell, {"failed_trials": n}) for cell, n in zip(cells, (0, 0, 3, 49), strict=True)]
    assert told == [None, True, None, False]


# A smaller room for the rules: 20 clients, 6 of them attackers, 2048 coordinates projected to 1024, where eps is 0.69.
ROOM = aggregation.AggregationCase("krum", 20, 6, 3.0, 2048, 2048, 1024, 2, aggregation.ATTACKS, calibrated=True)
# Those that aim at the sketch itself are of tests/test_theory_adaptive.py.
EVERY = {name for name in attacks.ATTACKS if needs(attacks.attack(name)) <= {"aggregator"}} - {"none"}
ROBUST = ("krum", "multi-krum", "geometric-median", "mca", "nnm >> geometric-median", "mda", "caf", "spectral-dnc")


@pytest.mark.parametrize("rule", ROBUST)
def test_the_projected_error_stays_below_the_lemmas_bound_under_every_attack(rule):
    """The bound has a c from other clients and draws. Its slack is large: a small k alone does not exceed it."""
    cell = replace(ROOM, rule=rule, draws=1)
    found = aggregation.measure(cell)
    assert set(found["exact"]) == EVERY | {"ipm factor=1000"}
    (row,) = aggregation.rows([(cell, found)])
    assert row["c"] == found["c"]
    # The same few products in another order: the last digits may differ.
    assert row["bound"] == pytest.approx(bounds.aggregation_bound(found["c"], cell.b, cell.eps, 1.0, 1.0), rel=1e-12)
    assert row["part_of_bound"] == pytest.approx(aggregation.strongest(found, "projected")[1] / row["bound"], rel=1e-12)
    assert 0 < row["part_of_bound"] < 1


def test_a_sketch_that_sees_nothing_exceeds_the_lemmas_bound():
    """The check of the error can fail: all clients at one point, the geometric median is their mean."""
    cell = replace(ROOM, rule="geometric-median", attacks=("ipm factor=1000",), draws=1)
    bound = bounds.aggregation_bound(aggregation.calibrated(cell), cell.b, cell.eps, 1.0, 1.0)
    rule, clients = rule_named(cell.rule, 6), honest_clients(20, cell.dim, cell.noisy)
    gradients = clients.gradients(common_gradient(cell.dim, cell.length), np.random.default_rng(0))
    mean = gradients[6:].mean(axis=0)
    Attack("ipm factor=1000").overwrite(gradients, 6, Server(rule, Rotated(1024), np.random.default_rng(0)))
    seen = Rotated(1024)(gradients, seed=0)
    assert ((rule(Geometry.of(seen)) @ gradients - mean) ** 2).sum() < bound
    assert ((rule(Geometry.of(0 * seen)) @ gradients - mean) ** 2).sum() > 100 * bound


PROVEN = {
    "krum": bounds.krum_constant,
    "multi-krum": bounds.krum_constant,
    "bulyan": bounds.bulyan_constant,
    "mda": bounds.mda_constant,
    "geometric-median": bounds.geometric_median_constant,
}


def spread_and_mean(x, chosen):
    """V_S(x), the mean squared distance of some clients to their mean, and that mean."""
    mean = x[list(chosen)].mean(axis=0)
    return ((x[list(chosen)] - mean) ** 2).sum(axis=1).mean(), mean


@pytest.mark.parametrize("rule", PROVEN)
def test_the_proven_constants_hold_for_every_input_and_every_choice_of_honest_clients(rule):
    M, f = (11, 2) if rule == "bulyan" else (7, 2)
    weigh, K = rule_named(rule, f), PROVEN[rule](M, f)
    rng, worst = np.random.default_rng(0), 0.0
    for trial in range(90):
        if trial % 3 == 0:
            x = rng.standard_t(1.5, size=(M, 3))
        elif trial % 3 == 1:
            x = rng.normal(size=(M, 3)) * 10.0 ** rng.integers(-2, 3, (M, 1))
        else:  # attackers who all send the same, near the edge of the others or far away
            x = rng.normal(size=(M, 3))
            x[:f] = x[f:].mean(axis=0) + rng.uniform(0.5, 5) * x[f:].std(axis=0)
        found = weigh(Geometry.of(x)) @ x
        for chosen in combinations(range(M), M - f):
            V, mean = spread_and_mean(x, chosen)
            worst = max(worst, ((found - mean) ** 2).sum() / (K * V))
    assert 0.01 < worst < 1
    far = np.r_[np.zeros((5, 1)), np.full((2, 1), 1e6)] + np.arange(7.0)[:, None]
    V, mean = spread_and_mean(far, range(5))
    assert ((far.mean(axis=0) - mean) ** 2).sum() > 1e6 * K * V  # the mean has no such constant


def test_the_constant_of_multi_krum_holds_for_every_number_of_selected_clients():
    rng, K = np.random.default_rng(0), bounds.krum_constant(7, 2)
    for n_selected in (1, 2, 3, 4, 5) * 10:
        x = rng.standard_t(1.5, size=(7, 3))
        found = MultiKrum(2, n_selected)(Geometry.of(x)) @ x
        for chosen in combinations(range(7), 5):
            V, mean = spread_and_mean(x, chosen)
            assert ((found - mean) ** 2).sum() <= K * V


@pytest.mark.parametrize("rule", PROVEN)
def test_the_error_is_bounded_wherever_the_span_is_kept_and_it_is_kept_but_for_delta(rule):
    """The theorem of docs/theory.md for one round; its probability, 0.05, would allow 10 of 200 sketches to fail."""
    M, f, p, k = 9, 1 if rule == "bulyan" else 2, 512, 256
    theta, K = guarantee(Gaussian(k), M, delta=0.05).span, PROVEN[rule](M, f)
    weigh, rng = rule_named(rule, f), np.random.default_rng(1)
    x = rng.normal(size=(M, p)) + 3
    x[:f] = x[f:].mean(axis=0) + 2 * rng.normal(size=(f, p)) * [[0.5], [50.0]][:f]
    V, mean = spread_and_mean(x, range(f, M))
    basis_of_span = np.linalg.qr(x.T)[0].T
    kept, errors = 0, 0.0
    for seed in range(200):
        seen = Gaussian(k)(x, seed=seed)
        error = ((weigh(Geometry.of(seen)) @ x - mean) ** 2).sum()
        least = np.linalg.svd(Gaussian(k)(basis_of_span, seed=seed), compute_uv=False)[-1] ** 2
        if least >= theta:
            assert theta * error <= K * spread_and_mean(seen, range(f, M))[0]
            kept, errors = kept + 1, errors + error
    assert kept >= 190
    assert errors / 200 <= K / theta * V


@pytest.mark.parametrize("rule", ["multi-krum", "geometric-median", "mca", "mda"])
def test_the_widening_is_near_1_at_the_usual_k_and_large_for_a_sketch_that_is_too_small(rule):
    """The factor of docs/explanation/measured-bounds.md can fail."""
    room = replace(ROOM, rule=rule, attacks=("foe", "ipm", "alie", "min-max", "mimic", "lie"), calibrated=False)
    small = replace(room, k=4, sketch="gaussian")
    (usual,), (bad,) = (aggregation.rows([(cell, aggregation.measure(cell))]) for cell in (room, small))
    assert 0.8 < usual["widened"] < 1.2
    assert bad["widened"] > 1.5


def test_c_is_of_clients_and_draws_that_are_judged_nowhere():
    cell = replace(ROOM, rule="geometric-median", attacks=("ipm",))
    found = aggregation.measure(cell)
    here = aggregation.constant(found, "exact", cell.b)
    assert found["c"] != here
    assert found["c"] == pytest.approx(here, rel=0.2)
    calm, attacked = (convergence.measure(replace(TRAINING, attack=attack)) for attack in ("none", "ipm"))
    assert calm["c"] == attacked["c"] > 0


def test_a_search_also_tries_what_it_found_without_noise_on_the_projected_server():
    """Among sketches that are fresh at every try it is misled: against Krum it finds half as much, or less."""
    cell = replace(ROOM, attacks=("optimised-alie",), draws=1)
    found = aggregation.measure(cell)
    assert found["projected"]["optimised-alie"] > 0.9 * found["exact"]["optimised-alie"]
    projected = {"projected": servers_of(rule_named("krum", 6), Rotated(1024))["projected"]}
    clients, common = honest_clients(20, cell.dim, cell.noisy), common_gradient(cell.dim, cell.length)
    alone = mean_errors(projected, cell.attacks, 6, clients, common, [0])["projected"]["optimised-alie"]
    assert alone < 0.5 * found["exact"]["optimised-alie"]


@pytest.mark.parametrize(("rule", "zero"), [("mean", True), ("multi-krum", True), ("krum", False), ("mca", False)])
def test_at_b_0_the_definition_demands_an_error_of_0_which_some_rules_do_not_give(rule, zero):
    found = aggregation.measure(replace(ROOM, rule=rule, n_byzantine=0, attacks=("none",)))
    assert (found["exact"]["none"] < 1e-20) == zero


def test_rules_that_measure_from_the_origin_have_a_c_that_grows_with_the_gradient_and_so_none():
    scenes = [replace(ROOM, rule="cge", length=scene.length) for scene in (aggregation.NEAR, aggregation.FAR)]
    results = [(scene, aggregation.measure(scene)) for scene in scenes]
    near, far = (aggregation.constant(found, "exact", 0.3) for _, found in results)
    assert far > 10 * near
    assert not any({"c", "part_of_bound"} & set(row) for row in aggregation.rows(results))


def test_noise_and_disagreement_are_what_they_are_said_to_be():
    clients = HonestClients.draw(30, 64, 16, sigma=2.0, kappa=3.0)
    assert np.linalg.norm(clients.offsets, axis=1).max() == pytest.approx(3.0)
    np.testing.assert_allclose(clients.offsets.sum(axis=0), 0, atol=1e-12)
    rng = np.random.default_rng(0)
    noise = np.array([clients.gradients(np.zeros(64), rng) - clients.offsets for _ in range(200)])
    assert (noise**2).sum(axis=2).mean() == pytest.approx(4.0, rel=0.03)  # 6,000 draws of 16: known to 0.5%
    apart = max(((x - y) ** 2).sum() for x in clients.offsets[5:] for y in clients.offsets[5:])
    assert clients.spread(5) == pytest.approx(2 * 4 + apart)


def test_noise_in_all_coordinates_has_nothing_to_do_with_the_offsets():
    """Drawn with the same seed, from other streams: their inner products are 0 but for chance, 1/sqrt(30 * 4096)."""
    clients = HonestClients.draw(30, 4096, 4096, sigma=1.0, kappa=1.0)
    noise = clients.gradients(np.zeros(4096), np.random.default_rng(0)) - clients.offsets
    assert abs(np.corrcoef(noise.ravel(), clients.offsets.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problems_gradient_and_constants_are_right(name):
    problem, rng = PROBLEMS[name](6), np.random.default_rng(0)
    for _ in range(50):
        u, v = rng.normal(size=(2, 6)) * 3
        slope = (problem.value(u + 1e-6 * v) - problem.value(u - 1e-6 * v)) / 2e-6
        assert slope == pytest.approx(problem.gradient(u) @ v, rel=1e-5, abs=1e-6)
        gap = problem.value(v) - problem.value(u) - problem.gradient(u) @ (v - u)
        assert gap <= problem.smoothness / 2 * ((v - u) ** 2).sum()
        if name == "strongly convex":
            assert gap >= problem.convexity / 2 * ((v - u) ** 2).sum() - 1e-9
    assert problem.value(problem.start) > 10


TRAINING = convergence.TrainingCase(
    "strongly convex", "geometric-median", False, 6, "ipm", 12, 2, n_clients=20, dim=2048, k=1024, noisy=64
)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("rule", ["krum", "geometric-median"])
@pytest.mark.parametrize("attack", ["ipm", "alie", "min-max", "gaussian", "sign-flip"])
def test_every_round_stays_below_the_theorems_bound(problem, rule, attack):
    for projected in (False, True):
        cell = replace(TRAINING, problem=problem, rule=rule, attack=attack, projected=projected)
        measured, bound = convergence.curves(cell, convergence.measure(cell))
        assert len(measured) == cell.rounds
        assert (measured < bound).all()


def test_without_robustness_a_training_leaves_the_bound():
    """The check of the curves can fail: the mean has a c too, measured where c is, and does not keep to it."""
    mean = replace(TRAINING, rule="mean", attack="sign-flip", rounds=40, seeds=1)
    found = convergence.measure(mean)
    measured, bound = convergence.curves(mean, found)
    assert convergence.needed(mean, found) > 1000 * found["c"]
    assert (measured > bound).any()


def test_rounds_above_the_bound_are_counted_over_all_cells_and_nan_is_above():
    found = {"c": 0.0, "spread": 4.0, "measured": [9.0, 1.0, math.nan, 1e9], "losses": [9.0] * 4, "errors": [0.0] * 3}
    others = [replace(TRAINING, rounds=3, rule=rule) for rule in ("krum", "mean")]
    assert [convergence.rounds_above(cell, found) for cell in others] == [2, 2]


def test_without_attackers_the_rates_are_the_theorems():
    """The mean squared gradient falls as T^-1/2 where the step is 1/(L sqrt T); the distance faster than 1/t."""
    quiet = replace(TRAINING, rule="mean", n_byzantine=0, attack="none")
    horizons = (16, 64, 256)
    cells = [replace(quiet, problem="non-convex", rounds=T, seeds=1) for T in horizons]
    means = [convergence.curves(cell, convergence.measure(cell))[0][-1] for cell in cells]
    assert -0.8 < log_slope(horizons, means) < -0.35
    long = replace(quiet, rounds=200, seeds=1)
    measured, _ = convergence.curves(long, convergence.measure(long))
    assert log_slope(np.arange(16, 216), measured) < -1


def broken_at(rule, length):
    cells = [
        breakdown.BreakdownCase(rule, 11, f, most_accepted(rule, 11, f), length, 2048, 1024, 1, (*LOUD, "foe"))
        for f in range(1, 7)
    ]
    (point,) = breakdown.points([(cell, breakdown.measure(cell)) for cell in cells])
    return point


LOUD = (breakdown.LOUD, breakdown.LOUDER)


def test_krum_breaks_where_attackers_fill_a_neighbourhood_exact_and_projected_alike():
    """Told of 4, the most that 11 clients allow, it counts 5 neighbours: an attacker has that many alike when 6 lie."""
    point = broken_at("krum", 30.0)
    assert (point.accepts, point.exact, point.projected) == (4, 6, 6)


@pytest.mark.parametrize("rule", ["cge", "centered-clipping"])
def test_where_a_rule_breaks_does_not_depend_on_the_gradients_length_but_a_threshold_does(rule):
    """Their error is bounded whatever the attackers' size, and large where the gradient is."""
    short, long = broken_at(rule, 1.0), broken_at(rule, 100.0)
    assert short.exact == long.exact == 6
    assert long.far_exact < 6
    assert short.far_exact == 6


TOYS = [replace(SMALL_SPAN, k=64), replace(SMALL_SPAN, k=128)]


def test_a_case_is_measured_once_also_if_the_run_was_killed_in_a_line(tmp_path, monkeypatch):
    def measure(case):
        if case.k == 128 and not asked.count(case):
            asked.append(case)
            raise KeyboardInterrupt
        return asked.append(case) or {"k": math.inf}

    asked = []
    monkeypatch.setitem(parts.PARTS, "toy", SimpleNamespace(cases=lambda: TOYS, measure=measure))
    with pytest.raises(KeyboardInterrupt):
        parts.measured("toy", tmp_path)
    found = [(toy, {"k": math.inf}) for toy in TOYS]
    assert parts.measured("toy", tmp_path) == found
    path = tmp_path / "toy.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert parts.measured("toy", tmp_path) == found
    assert [case.k for case in asked] == [64, 128, 128, 128]
    assert len(path.read_text().splitlines()) == 2


def test_the_command_prints_tables_draws_pictures_and_keeps_rows(tmp_path, monkeypatch, capsys):
    few = {
        "embedding": [replace(embedding.cases()[n], trials=1) for n in (0, 1, 12)],
        "aggregation": [
            replace(ROOM, rule=rule, n_clients=M, n_byzantine=f, attacks=("ipm",))
            for rule, M, f in (("krum", 20, 6), ("bulyan", 50, 15), ("median", 20, 6), ("krum", 20, 0))
        ],
        "convergence": [replace(TRAINING, problem=problem, rounds=4, projected=True) for problem in PROBLEMS],
        "breakdown": [breakdown.BreakdownCase("krum", 11, f, f, 30.0, 1024, 512, 1, LOUD) for f in (1, 2)],
        "adaptive": [
            adaptive.ProjectionCase("krum", attack, seed, 10.0, 20, 6, 2048, 1024, 1)
            for attack, seed in (("null-space", "leaked"), ("null-space", "fresh"), ("ipm", "no sketch"))
        ],
    }
    for name, cases in few.items():
        monkeypatch.setattr(parts.PARTS[name], "cases", lambda cases=cases: cases)
    monkeypatch.setattr(study_rows, "RESULTS", tmp_path / "kept")
    assert main(["theory", "--out", str(tmp_path), "--keep", str(tmp_path / "kept")]) == 0
    page = capsys.readouterr().out
    for name, part in parts.PARTS.items():
        assert f"## {part.TITLE}" in page
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert part.table(kept(f"theory-{name}")) in page
    assert "Without a bound: `bulyan`, `median`." in page


def test_the_plans_have_every_rule_attack_and_share():
    whole = convergence.cases()
    assert {cell.attack for cell in whole if cell.b == 0.3} == EVERY
    assert {attack for cell in aggregation.cases() for attack in cell.attacks} >= EVERY | {"ipm factor=1000"}
    assert any(cell.dim >= 16 * cell.k for cell in aggregation.cases())
    assert all(cell.dim >= 16 * cell.k for cell in breakdown.cases())
    assert {cell.b for cell in whole} == {0.0, 0.1, 0.3}
    assert {cell.rule for cell in aggregation.cases()} >= set(names.RULES) | set(names.COORDINATEWISE)
    projected_well = [cell for cell in aggregation.cases() if cell.k != aggregation.TOO_SMALL]
    assert all(cell.eps < 1 for cell in whole + projected_well)
    assert all(cell.n_assumed <= cell.n_byzantine for cell in breakdown.cases())


def test_the_guarantee_at_k_4096_ends_at_211_clients():
    """T=100, delta=0.05: what docs/theory.md says of it."""
    assert distortion(4096, 200, 0.05, 100) == pytest.approx(0.976, abs=5e-4)
    assert embedding_dimension(210, 0.999999, 0.05, 100) <= 4096
    with pytest.raises(ValueError, match="promises nothing for the whole span of 211 clients"):
        distortion(4096, 211, 0.05, 100)


def test_the_geometric_median_breaks_at_half_and_not_before():
    cells = [
        breakdown.BreakdownCase("geometric-median", 50, f, 0, 30.0, 4096, 2048, 2, (*LOUD, "ipm", "foe", "min-max"))
        for f in (23, 24, 25)
    ]
    results = [(cell, breakdown.measure(cell)) for cell in cells]
    (point,) = breakdown.points(results)
    assert point.exact == point.projected == point.far_exact == 25
    errors = [max(found["exact"].values()) for _, found in results[:2]]
    assert errors[0] == pytest.approx(1.25, rel=0.1)
    assert errors[1] == pytest.approx(2.7, rel=0.1)
