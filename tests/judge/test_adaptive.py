"""Attackers who know us: what a leaked seed breaks, which check finds them out, and that no honest client is hit."""

from __future__ import annotations

import logging
import os
import sys
from functools import lru_cache

import numpy as np
import pytest

import bartizan as bz
import containers
from bartizan import attacks
from bartizan._util.seeds import fresh_seed
from bartizan.attacks.nullspace import Maps, hidden_part
from bartizan.judge.judge import Recheck, geometry_of, rows_to_recheck
from bartizan.rules.base import Decision
from bartizan.sketch import pairwise_distortion
from bartizan.sources.local import LocalUpdates
from bartizan.updates import parse_updates
from bartizan.updates.column_pass import ColumnPass

H, F, P = 20, 6, 2500
LEAKED = 2**90 + 5
SKETCHES = [bz.Rotated(k=512), bz.Gaussian(k=64), bz.Achlioptas(k=128, s=3)]
RULES = [bz.Krum(F), bz.GeometricMedian(), bz.MultiKrum(F)]
# What tensors need is the same for all sketches; those of a dense matrix are slow.
OF_A_LIBRARY = [
    *((sketch, "numpy") for sketch in SKETCHES),
    (SKETCHES[0], "torch"),
    *(pytest.param(sketch, "torch", marks=pytest.mark.slow) for sketch in SKETCHES[1:]),
]


def honest(seed: int = 0) -> np.ndarray:
    """A common direction three times as long as the noise: turned around, it can't pass for noise."""
    rng = np.random.default_rng(seed)
    return (3 * rng.normal(size=P) + rng.normal(size=(H, P))).astype(np.float32)


def with_attackers(name: str, x: np.ndarray, **known) -> np.ndarray:
    return np.concatenate([x, getattr(attacks, name)(x, F, np.random.default_rng(1), **known)])


@lru_cache
def leaked(name: str, sketch) -> np.ndarray:
    return with_attackers(name, honest(), sketch=sketch, leaked_seed=LEAKED)


def error(update, x: np.ndarray) -> float:
    """In units of the honest clients' root mean square distance from their mean."""
    middle = x.mean(axis=0, dtype=np.float64)
    return float(np.linalg.norm(np.asarray(update) - middle) / np.sqrt(((x - middle) ** 2).sum(axis=1).mean()))


def undefended(rule, sketch, sent: np.ndarray, seed: int) -> np.ndarray:
    """The paper's pipeline and nothing more."""
    return rule(bz.Geometry.of(sketch(sent, seed=seed))) @ sent.astype(np.float64)


def streamed(rule, sketch, sent, **settings) -> bz.Aggregation:
    return containers.streamed(bz.Aggregator(rule, sketch), sent, **settings)


def bound(rule) -> float:
    """The largest error that the rule permits, by the constants of Allouah et al. (2023), table 1."""
    M = H + F
    constant = 4 * (1 + F / (M - 2 * F)) ** 2 if isinstance(rule, bz.GeometricMedian) else 6 * (1 + F / (M - 2 * F))
    return float(np.sqrt(constant))


ATTACKERS = list(range(H, H + F))


@pytest.mark.parametrize("sketch", [*SKETCHES, bz.Rotated(k=64, mixing=1), bz.Gaussian(k=30), bz.Achlioptas(k=37)])
@pytest.mark.parametrize("p", [1001, 2048])
def test_the_hidden_part_is_what_the_sketch_maps_to_zero(sketch, p):
    rng = np.random.default_rng(3)
    d, y = rng.normal(size=p), rng.normal(size=sketch.k)
    z = hidden_part(d, sketch, [LEAKED])
    assert np.abs(sketch(z[None], seed=LEAKED)).max() < 1e-10
    assert (d - z) @ z == pytest.approx(0, abs=1e-8)  # what is left lies across: no longer move is hidden in d
    P_ = Maps(sketch, (LEAKED,), p)
    assert P_.down(d) @ y == pytest.approx(d @ P_.up(y), rel=1e-10, abs=1e-8)


def test_several_projections_have_a_common_null_space_and_few_coordinates_none():
    d = np.random.default_rng(0).normal(size=1000)
    z = hidden_part(d, bz.Rotated(k=64), [1, 2, 3])
    assert z @ z > 0.5 * (d @ d)
    for seed in (1, 2, 3):
        assert np.abs(bz.Rotated(k=64)(z[None], seed=seed)).max() < 1e-10
    for sketch, p in ((bz.Rotated(k=64), 64), (bz.Gaussian(k=64), 40), (bz.Exact(), 1000)):
        assert not hidden_part(d[:p], sketch, [1]).any()


@pytest.mark.parametrize(("sketch", "library"), OF_A_LIBRARY)
def test_a_leaked_seed_breaks_the_projected_rule_and_its_norms_give_it_away(sketch, library):
    x = honest()
    sent = leaked("null_space", sketch)
    given = pytest.importorskip("torch").from_numpy(sent) if library == "torch" else sent
    for rule in RULES:
        assert error(undefended(rule, sketch, sent, LEAKED), x) > 5 * bound(rule)
        for out in (bz.aggregate(given, rule, sketch=sketch, seed=LEAKED), streamed(rule, sketch, given, seed=LEAKED)):
            assert list(out.quarantined) == ATTACKERS
            assert "it hides from the projection" in out.quarantined[H]
            assert not out.weights[H:].any()
            assert error(out.update, x) < bound(rule)


@pytest.mark.parametrize(("sketch", "library"), OF_A_LIBRARY)
def test_one_that_keeps_its_norm_is_found_out_by_the_second_look_alone(sketch, library):
    x = honest()
    sent = leaked("null_space_mirror", sketch)
    given = pytest.importorskip("torch").from_numpy(sent) if library == "torch" else sent
    for rule in RULES[:2]:
        for out in (
            bz.aggregate(given, rule, sketch=sketch, seed=LEAKED),
            streamed(rule, sketch, given, seed=LEAKED, recheck=False),
        ):
            assert not out.quarantined
            assert error(out.update, x) > bound(rule)
            assert out.recheck_seed is None
        out = streamed(rule, sketch, given, seed=LEAKED)
        assert list(out.quarantined) == ATTACKERS
        assert "by the projection drawn at close" in out.quarantined[H]
        assert error(out.update, x) < bound(rule)
        assert out.recheck_seed not in (None, LEAKED)


@pytest.mark.parametrize("name", ["null_space", "null_space_mirror"])
def test_exact_distances_are_broken_by_none_of_them(name):
    x = honest()
    sent = leaked(name, bz.Rotated(k=512))
    for rule in RULES:
        assert error(bz.aggregate(sent, rule, seed=LEAKED).update, x) < bound(rule)


@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_with_fresh_seeds_no_attacker_exceeds_the_projected_bound(sketch):
    rounds = 2
    eps = pairwise_distortion(sketch.k, H + F, 0.05, rounds) if sketch.k > 200 else 0.8  # too few for a promise
    factor = np.sqrt((1 + eps) / (1 - eps))
    p = P if isinstance(sketch, bz.Rotated) else 400  # dense matrices are slow
    past, course = [3], np.zeros(p)
    for t in range(rounds):
        x = honest(seed=t)[:, :p]

        def guessed(updates):
            return bz.aggregate(updates, bz.GeometricMedian(), sketch=sketch, seed=77).update

        known = {
            "null_space": {"leaked_seed": 4711},  # a guess: the seed is another
            "null_space_mirror": {"leaked_seed": 4711},
            "replay": {"past_seeds": past},
            "observer": {"past_seeds": past, "published": course},
            "blind_collision": {"size": 8 // 4**t},
            "optimised_null_space": {"aggregator": guessed, "tries": 9},
        }
        for name, more in known.items():
            sent = with_attackers(name, x, sketch=sketch, **more)
            for rule in RULES[:2]:
                update = undefended(rule, sketch, sent, fresh_seed())
                assert error(update, x) < factor * bound(rule), name
        out = bz.aggregate(x, bz.GeometricMedian(), sketch=sketch)
        past, course = [*past, out.seed], course + out.update


def test_an_attack_says_what_it_knows_of_the_server():

    asked = {name: attacks.needs(attacks.attack(name)) for name in attacks.ATTACKS}
    assert asked["null-space"] == asked["null-space-mirror"] == {"sketch", "leaked_seed"}
    assert asked["replay"] == {"sketch", "past_seeds"}
    assert asked["observer"] == {"sketch", "past_seeds", "published"}
    assert asked["blind-collision"] == {"sketch"}
    assert asked["optimised-null-space"] == {"sketch", "aggregator"}
    with pytest.raises(ValueError, match=r"null_space needs sketch, a sketch such as Rotated\(k=4096\); got 'rotated'"):
        attacks.null_space(honest(), 1, np.random.default_rng(0), sketch="rotated", leaked_seed=1)


def structured(k: int, n: int, p: int) -> dict[str, np.ndarray]:
    """Vectors that a sketch treats worst, and those that clients send."""
    rng, lanes = np.random.default_rng(7), np.zeros((6, p // k, n, k // n))
    for i, (blocks, rows) in enumerate([(2, 1), (2, 2), (2, 4), (3, 4), (2, n), (p // k, n)]):
        lanes[i, :blocks, :rows, 0] = 1
    kinds = {f"lanes {i}": lane.ravel() for i, lane in enumerate(lanes)}
    kinds |= {"dense": rng.normal(size=p), "heavy": rng.standard_cauchy(size=p), "constant": np.ones(p)}
    return kinds | {f"{c}-sparse": np.eye(p)[:c].sum(axis=0) for c in (1, 2, 8)}


@pytest.mark.parametrize(
    "sketch",
    [
        bz.Rotated(k=64, mixing=8),
        bz.Rotated(k=64),
        bz.Gaussian(k=16),
        bz.Achlioptas(k=64, s=4),
        bz.Achlioptas(k=32, s=1),
    ],
    ids=repr,
)
def test_a_vector_leaves_its_range_no_more_often_than_promised(sketch):
    odds, seeds = 0.01, 1000
    kinds = structured(64, 8, 512)
    x = np.array(list(kinds.values()))
    ratios = np.array([(sketch(x, seed=seed) ** 2).sum(axis=1) for seed in range(seeds)]) / (x**2).sum(axis=1)
    least, most = sketch.norm_ratio_range(odds)
    outside = np.maximum((ratios < least - 1e-9).sum(axis=0), (ratios > most + 1e-9).sum(axis=0))
    # 10 of 1,000 are promised; 26 would be five standard deviations more.
    assert outside.max() < 26, list(kinds)[outside.argmax()]


def test_where_a_sketch_promises_nothing_nobody_is_accused():
    assert bz.Rotated(k=4096, mixing=1).norm_ratio_range(1e-9)[0] == 0
    assert bz.Achlioptas(k=16).norm_ratio_range(1e-9)[0] == 0
    source = LocalUpdates(parse_updates(np.eye(4)))
    for sketch in (bz.Achlioptas(k=16), bz.Exact()):
        assert Recheck.of(source, source.measure(sketch, 1), bz.Rotated()) is None


def test_without_mixing_nobody_is_accused_of_two_numbers_that_cancel():
    sketch, x = bz.Rotated(k=64, mixing=1), np.random.default_rng(0).normal(size=(12, 256)).astype(np.float32)
    x[0, [3, 67]] += 100
    shown = {seed: (sketch(x[:1], seed=seed) ** 2).sum() for seed in range(300)}
    cancels = min(shown, key=shown.get)
    assert shown[cancels] < 0.1 * (x[0] ** 2).sum()
    assert not streamed(bz.GeometricMedian(), sketch, x, seed=cancels).quarantined


@pytest.mark.parametrize("sketch", [bz.Rotated(k=512), bz.Gaussian(k=64), bz.Achlioptas(k=256, s=3)], ids=repr)
def test_one_that_leaves_out_what_is_not_shown_is_found_out_by_its_norms(sketch):
    """It has the mean's sketch and next to no length: whoever takes it for the mean stands still."""
    x = honest()
    mean = x.mean(axis=0, dtype=np.float64)
    shown = mean - hidden_part(mean, sketch, [LEAKED])
    sent = np.concatenate([x, np.tile(shown, (F, 1))]).astype(np.float32)
    for rule in RULES:
        for out in (bz.aggregate(sent, rule, sketch=sketch, seed=LEAKED), streamed(rule, sketch, sent, seed=LEAKED)):
            assert list(out.quarantined) == ATTACKERS
            assert "it leaves out what the projection does not show" in out.quarantined[H]
            assert error(out.update, x) < bound(rule)


@pytest.mark.parametrize(("n_honest", "n_attackers", "outliers"), [(35, 15, 12), (26, 24, 2)])
def test_behind_honest_outliers_a_leaked_seed_moves_no_rule_that_reads_all_again(n_honest, n_attackers, outliers):
    """Attackers may be named or not, but no honest client is, and the update is the exact rule's."""
    sketch, rule, p, far = bz.Rotated(k=512), bz.GeometricMedian(), 9000, 1000
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n_honest, p)) * np.where(np.arange(n_honest) < outliers, far, 1)[:, None]
    middle, move = x[outliers:].mean(axis=0), hidden_part(rng.normal(size=p), sketch, [LEAKED])
    lie = middle + 0.9 * far * np.sqrt(p) * move / np.linalg.norm(move)
    sent = (np.concatenate([x, np.tile(lie, (n_attackers, 1))]) + 3 * far).astype(np.float32)

    def off(out):
        return np.linalg.norm(out.update - middle - 3 * far) / np.sqrt(p)

    assert off(streamed(rule, sketch, sent, seed=LEAKED, recheck=False)) > 500
    out = streamed(rule, sketch, sent, seed=LEAKED)
    assert set(out.quarantined) <= set(range(n_honest, len(sent)))
    assert off(out) < 3 * off(bz.aggregate(sent, rule))  # at 24 to 26 seeds differ by 5 of 30


def test_where_digits_are_short_a_row_is_read_about_once_however_many_leave():
    """Attackers who are found out one a turn must not cost a read each."""
    rng, read = np.random.default_rng(0), []
    near = rng.normal(size=P) + 1e-6 * rng.normal(size=(9, P))
    clients = parse_updates(near, column_pass=ColumnPass.of(None, lambda stage, done, total: read.append(done)))
    source, looks = LocalUpdates(clients), {}
    measured = source.measure(bz.Rotated(k=512), 3).on_host()  # a seed by which the medoid stays one
    whole = geometry_of(source, measured, looks)
    once = len(read)
    for n in (8, 7, 6):
        rows = sorted([whole.medoid, *[row for row in range(9) if row != whole.medoid]][:n])
        left = geometry_of(source, measured.of(rows), looks)
        np.testing.assert_array_equal(left.squared_distances, whole.squared_distances[np.ix_(rows, rows)])
    assert len(read) == once


def rows_of(kind: str, M: int, p: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.normal(size=(M, p))
    return {
        "dense": x,
        "heavy-tailed": rng.standard_cauchy(size=(M, p)),
        "one-sparse": np.eye(M, p),
        "one coordinate": 5 * np.eye(1, p) * rng.normal(size=(M, 1)),
        "identical": np.tile(x[:1], (M, 1)),
        "zero": np.zeros((M, p)),
        "far from the origin": 1e4 + 1e-3 * x,
        "tiny": 1e-42 * x,
        "one giant": x * np.where(np.arange(M) == 0, 1e12, 1.0)[:, None],
    }[kind].astype(np.float32)


HONEST = [
    *("dense", "heavy-tailed", "one-sparse", "one coordinate", "identical", "zero", "far from the origin", "tiny"),
    "one giant",
]


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize(
    "sketch", [bz.Rotated(k=64), bz.Rotated(k=512), bz.Gaussian(k=8), bz.Achlioptas(k=16), bz.Achlioptas(k=256, s=3)]
)
def test_no_honest_client_is_quarantined(sketch, kind):
    rng = np.random.default_rng(0)
    for M, p in [(1, 300), (2, 300), (3, 7), (9, 1), (8, 2500)]:
        x = rows_of(kind, M, p, rng)
        for rule in (bz.GeometricMedian(), bz.Krum((M - 3) // 2 if M > 2 else 0)) if M > 2 else (bz.GeometricMedian(),):
            assert not streamed(rule, sketch, x).quarantined


def test_an_honest_reference_and_trusted_update_do_not_change_who_is_found_out():
    sketch, x = bz.Rotated(k=512), honest()
    moved, far = x - x.mean(axis=0) + 1, np.full(P, 1000, np.float32)
    mean = moved.mean(axis=0)
    mirrored = mean - 2 * hidden_part(mean.astype(np.float64), sketch, [LEAKED]).astype(np.float32)
    for lies, settings in (
        (with_attackers("null_space", moved, sketch=sketch, leaked_seed=LEAKED)[H:], {}),
        (np.tile(50 * mirrored, (F, 1)), {"recheck": True}),
    ):
        sent = np.concatenate([moved, lies]) + far
        for rule, more in ((bz.GeometricMedian(), {}), (bz.MoNNA(F), {"trusted": moved[0] + far})):
            out = streamed(rule, sketch, sent, seed=LEAKED, reference=far, **settings, **more)
            assert set(out.quarantined) <= set(ATTACKERS)
            assert not out.weights[H:].any() or isinstance(rule, bz.GeometricMedian)
            assert error(out.update - far, moved) < bound(rule)


@pytest.mark.parametrize("name", ["null_space", "null_space_mirror"])
def test_under_strict_the_attacker_is_named_by_its_id(name):
    with bz.Aggregator(bz.Krum(F), bz.Rotated(k=512)).round(seed=LEAKED, strict=True) as r:
        for client, update in enumerate(leaked(name, bz.Rotated(k=512))):
            r.add(update, f"c{client:02}")
        with pytest.raises(bz.BadClientError) as bad:
            r.close()
    assert bad.value.client == "c20"


def test_too_many_who_hide_end_the_round_as_too_many_broken_ones_do():
    sent = leaked("null_space", bz.Rotated(k=512))
    with pytest.raises(bz.TooFewClientsError, match=r"6 of 26 clients are out \(6 quarantined"):
        bz.aggregate(sent, bz.Bulyan(F - 1), sketch=bz.Rotated(k=512), seed=LEAKED)


def test_few_are_read_again_where_few_have_weight():
    x = np.random.default_rng(0).normal(size=(50, 64))
    geometry, one = bz.Geometry.of(x), np.eye(50)[7]
    assert len(rows_to_recheck(Decision(one), geometry, 5)) == 12
    assert 7 in rows_to_recheck(Decision(one), geometry, 5)
    assert len(rows_to_recheck(Decision(one), geometry, 0)) == 3
    assert len(rows_to_recheck(Decision(one), geometry, None)) == 50
    assert len(rows_to_recheck(Decision(np.full(50, 0.02)), geometry, 5)) == 50


def test_who_was_read_again_is_not_read_a_third_time():
    """Attackers that Krum chooses first are out after one look; those who come next are looked at then."""
    sketch = bz.Rotated(k=512)
    read = []
    with bz.Aggregator(bz.Krum(F), sketch).round(seed=LEAKED) as r:
        for client, update in enumerate(leaked("null_space_mirror", sketch)):
            r.add(update, client)
        out = r.close(progress=lambda stage, done, total: read.append((stage, done)))
    assert list(out.quarantined) == ATTACKERS
    again = [done for stage, done in read if stage == "recheck"]
    assert sum(max(0, b - a) for a, b in zip([0, *again], again, strict=False)) <= (H + F) * P


def test_seeds_are_fresh_in_every_call_round_and_forked_child():
    x, aggregator = np.eye(9, 40, dtype=np.float32), bz.Aggregator(bz.Krum(1), bz.Rotated(k=64))
    seeds = [aggregator(x).seed for _ in range(20)] + [streamed(bz.Krum(1), bz.Rotated(k=64), x).seed for _ in range(5)]
    if hasattr(os, "fork"):
        out, into = os.pipe()
        for _ in range(3):
            child = os.fork()
            if not child:
                os.write(into, fresh_seed().to_bytes(16, "little"))
                os._exit(0)
            os.waitpid(child, 0)
            seeds += [int.from_bytes(os.read(out, 16), "little"), fresh_seed()]
        os.close(out)
        os.close(into)
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) > 2**120  # odds of less than 2^-200 to fail, were it not 128 bits
    assert max(seeds) < 2**128


def test_one_call_draws_its_seed_after_the_last_arrival(monkeypatch):
    happened = []

    def arriving():
        for row in np.eye(5, 40, dtype=np.float32):
            happened.append("arrival")
            yield row

    def drawn():
        happened.append("seed")
        return fresh_seed()

    monkeypatch.setattr(sys.modules["bartizan.sources.local"], "fresh_seed", drawn)
    bz.aggregate(arriving(), bz.Krum(1), sketch=bz.Rotated(k=64))
    assert happened == ["arrival"] * 5 + ["seed"]


def test_nothing_tells_the_seed_before_the_weights_are_fixed(caplog, capfd):
    told = []
    with caplog.at_level(logging.DEBUG), bz.Aggregator(bz.Krum(1), bz.Rotated(k=64)).round() as r:
        for client, row in enumerate(np.eye(9, 400, dtype=np.float32)):
            told += [repr(r.add(row, client)), repr(r), repr(r.quarantined)]
        before = caplog.text + "".join(capfd.readouterr()) + "".join(told)
        out = r.close()
    for seed in (out.seed, out.recheck_seed):
        assert str(seed) not in before
        assert f"{seed:x}" not in before


def test_a_projection_of_the_laboratory_is_another_in_every_round_and_the_same_after_a_resume():
    reproducible = pytest.importorskip("bartizan.lab.training.reproducible")
    seeds = [reproducible.round_seed(0, "projection", t) for t in range(1, 500)]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [reproducible.round_seed(0, "projection", t) for t in range(1, 500)]
    assert not set(seeds) & {reproducible.round_seed(0, "attacker", t) for t in range(1, 500)}


@pytest.mark.parametrize(
    ("n", "withstands", "attackers"),
    [
        (6000, None, 2700),
        (100_000, None, 45_000),
        (20_000, 2000, 2000),
        (20_000, 8000, 8000),
        (100_000, 47_000, 47_000),
    ],
)
def test_of_many_clients_a_sample_is_compared_whose_majority_is_honest(n, withstands, attackers):
    drawn = len(compared_with(n, withstands))
    assert drawn < n
    # The exact probability that at least half of the drawn clients are attackers.
    log = np.concatenate([[0], np.log(np.arange(1, n + 1)).cumsum()])

    def choices(of, some):
        return log[of] - log[some] - log[of - some]

    bad = np.arange(-(-drawn // 2), min(attackers, drawn) + 1)
    if len(bad):
        chances = choices(attackers, bad) + choices(n - attackers, drawn - bad) - choices(n, drawn)
        assert np.exp(chances).sum() <= 1e-9


@pytest.mark.parametrize(("n", "withstands"), [(4095, None), (4095, 3), (4144, None), (4096, 2047), (20_000, 9999)])
def test_few_clients_and_those_beside_nearly_as_many_attackers_are_all_compared(n, withstands):
    np.testing.assert_array_equal(compared_with(n, withstands), np.arange(n))


def compared_with(n_clients, withstands):
    return Recheck(None, bz.Rotated(), 2.0, None, seed=7)._compared_with(n_clients, withstands)
