"""Committed rounds of honest clients give what `aggregate` gives, and what they can't serve is refused."""

from __future__ import annotations

import numpy as np
import pytest

import bartizan as bz
from bartizan.client import Commitment
from bartizan.errors import ServerResourceError, TooFewClientsError
from bartizan.sources.committed.round_messages import Fetch, Listing, decoded
from bartizan.sources.committed.transcript import bytes_sent, projection_from, rule_from
from bartizan.sources.committed.update_bytes import LEAF
from committed_clients import NAMES, F, Loopback, M, P, honest
from rule_cases import CASES

SMALL = bz.Rotated(k=64)


def run_round(aggregator, updates, like=None, cheats=(), sizes=(), clients=(), **options):
    like = next(iter(updates.values())) if like is None else like
    exchange = Loopback(updates, cheats, sizes, **dict(clients))
    opened = aggregator.committed_round(like, expected=list(updates), **options)
    return opened, opened.run(exchange)


STREAMING = [case.rule for case in CASES if not case.rule.needs_trusted and not case.rule.ends_coordinate_wise()]


DISTANCES_ALONE = [bz.Krum(F), bz.MultiKrum(F), bz.GeometricMedian(), bz.NNM(F) >> bz.GeometricMedian(), bz.MDA(F)]


@pytest.mark.parametrize("rule", [*STREAMING, *DISTANCES_ALONE], ids=repr)
def test_weights_and_update_are_those_of_one_call_with_that_seed(rule):
    """To the bit, but for norms: those are committed to before the seed, and float32 sums of one call depend on it."""
    updates = honest(5000) | {f"d{m}": x for m, x in enumerate(honest(5000, seed=1).values())}
    sizes = {name: 1.0 + n % 3 for n, name in enumerate(updates)}
    opened, out = run_round(bz.Aggregator(rule, SMALL), updates, sizes=sizes)
    names = sorted(updates)
    same = bz.aggregate([updates[n] for n in names], rule, sketch=SMALL, seed=out.seed, sizes=[sizes[n] for n in names])
    assert out.clients == tuple(names)
    rounding = 0.0 if rule in DISTANCES_ALONE else 1e-7
    np.testing.assert_allclose(out.weights, same.weights, rtol=rounding, atol=0)
    np.testing.assert_allclose(out.update, same.update, rtol=10 * rounding, atol=10 * rounding)
    if rule.needs_distances:
        np.testing.assert_allclose(out.scores, same.scores, rtol=rounding, atol=0)
    assert not out.failed
    assert not out.quarantined
    assert out.head == opened.record.head


@pytest.mark.parametrize("sketch", [bz.Gaussian(k=64), bz.Achlioptas(k=64)], ids=repr)
def test_every_projection_serves(sketch):
    updates = honest(1000)
    _, out = run_round(bz.Aggregator(bz.MultiKrum(F), sketch), updates)
    same = bz.aggregate(list(updates.values()), bz.MultiKrum(F), sketch=sketch, seed=out.seed)
    np.testing.assert_array_equal(out.weights, same.weights)


def test_a_reference_is_the_origin_for_clients_and_server():
    model = np.random.default_rng(9).normal(0, 100, P).astype(np.float32)
    updates = {name: model + x for name, x in honest().items()}
    aggregator = bz.Aggregator(n_byzantine=F)
    _, out = run_round(aggregator, updates, reference=model, clients={"reference": lambda opening: model})
    same = bz.aggregate(list(updates.values()), aggregator.rule, sketch=bz.Rotated(), seed=out.seed, reference=model)
    np.testing.assert_allclose(out.weights, same.weights, rtol=1e-7)
    np.testing.assert_allclose(out.update, same.update, rtol=1e-6, atol=1e-6)


def test_layouts_of_many_kinds_of_arrays_are_sent_whole():
    rng = np.random.default_rng(0)

    def update(m):
        made = {
            "half": rng.normal(1, 1, (7, 3)).astype(np.float16),
            "steps": np.array(m),
            "nested": [rng.normal(1, 1, 1000), {"flags": np.array([True, False, m % 2 == 0])}],
            "wide": rng.normal(1, 1, (300, 1000)).astype(np.float32).T,
        }
        return dict(reversed(made.items())) if m % 2 else made

    updates = {name: update(m) for m, name in enumerate(NAMES)}
    like = updates[NAMES[0]]
    _, out = run_round(bz.Aggregator(bz.GeometricMedian()), updates, like)
    same = bz.aggregate(list(updates.values()), bz.GeometricMedian(), sketch=bz.Rotated(), seed=out.seed)
    np.testing.assert_array_equal(out.weights, same.weights)
    for key in ("half", "steps", "wide"):
        np.testing.assert_array_equal(out.update[key], same.update[key])
        assert out.update[key].dtype == same.update[key].dtype
    np.testing.assert_array_equal(out.update["nested"][1]["flags"], same.update["nested"][1]["flags"])


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    updates = {
        name: {"w": torch.from_numpy(x[:6000]).reshape(60, 100), "b": torch.from_numpy(x[6000:7000]).bfloat16()}
        for name, x in honest(7000).items()
    }
    _, out = run_round(bz.Aggregator(bz.MultiKrum(F), SMALL), updates)
    same = bz.aggregate(list(updates.values()), bz.MultiKrum(F), sketch=SMALL, seed=out.seed)
    assert torch.equal(out.update["w"], same.update["w"])
    assert torch.equal(out.update["b"], same.update["b"])


def test_only_clients_with_weight_and_audited_ones_send_their_update():
    updates = honest()
    _, out = run_round(bz.Aggregator(bz.Krum(F)), updates, audit=0)
    assert out.fetched_bytes == 4 * P
    assert (out.weights > 0).sum() == 1
    _, out = run_round(bz.Aggregator(bz.Krum(F)), updates, audit=1)
    assert out.fetched_bytes == 9 * 4 * P
    assert len(out.audited) == 8


def test_bytes_on_the_wire_are_the_sketches_and_the_updates_with_weight():
    """Per client 32 KB of sketch, and less than 4 KB of the rest."""
    updates = honest()
    exchange = Loopback(updates)
    bz.Aggregator(bz.Krum(F)).committed_round(updates[NAMES[0]], expected=NAMES, audit=0).run(exchange)
    assert exchange.n_bytes < 4 * P + 10 * 8 * 4096 + 9 * 8000


@pytest.mark.parametrize(("rule", "sketch"), [(bz.Krum(F), SMALL), (bz.GeometricMedian(), bz.Rotated())], ids=repr)
def test_what_the_laboratory_counts_is_what_clients_send(rule, sketch):
    """The laboratory's count leaves out the ids: their two bytes are in six messages per client at most."""
    updates = honest()
    exchange = Loopback(updates)
    opened = bz.Aggregator(rule, sketch).committed_round(updates[NAMES[0]], expected=NAMES, audit=0)
    weights = opened.run(exchange).weights
    sent = sum(len(reply) for _, reply in exchange.replies)
    assert 0 <= sent - bytes_sent(weights, 4 * P, sketch.k) <= 6 * 2 * M


def test_audits_are_drawn_with_the_stated_probability():
    """Of 9 clients with audit=0.5 all or none are drawn with probability 0.004; six times alike, below 1e-14."""
    updates, counts = honest(1000), set()
    for _ in range(6):
        _, out = run_round(bz.Aggregator(bz.Krum(F), SMALL), updates, audit=0.5)
        counts.add(len(out.audited))
    assert counts - {0, 8}


def test_fetched_updates_are_spilled_to_a_folder(tmp_path):
    updates = honest()
    _, out = run_round(bz.Aggregator(bz.GeometricMedian()), updates, spill=tmp_path)
    same = bz.aggregate(list(updates.values()), bz.GeometricMedian(), sketch=bz.Rotated(), seed=out.seed)
    np.testing.assert_array_equal(out.update, same.update)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ServerResourceError, match="can't be kept"):
        run_round(bz.Aggregator(bz.GeometricMedian()), updates, spill=tmp_path / "missing")


def test_a_rule_with_a_memory_takes_and_returns_it():
    updates = honest(1000)
    rule = bz.ClippedClustering()
    _, first = run_round(bz.Aggregator(rule, SMALL), updates)
    _, out = run_round(bz.Aggregator(rule, SMALL), updates, history=first.history)
    same = bz.aggregate(list(updates.values()), rule, sketch=SMALL, seed=out.seed, history=first.history)
    np.testing.assert_allclose(out.history, same.history, rtol=1e-7)
    np.testing.assert_allclose(out.weights, same.weights, rtol=1e-7)


@pytest.mark.parametrize(
    ("rule", "sketch", "message"),
    [
        (bz.FLTrust(), "auto", "an update that the server trusts"),
        (bz.Median(), "auto", "every coordinate of all clients"),
        (bz.NNM(2) >> bz.TrimmedMean(2), "auto", "every coordinate of all clients"),
        (bz.Krum(2), bz.Exact(), "needs a projection such as Rotated"),
    ],
)
def test_what_a_committed_round_can_not_serve_is_refused_when_it_opens(rule, sketch, message):
    with pytest.raises(ValueError, match=message):
        bz.Aggregator(rule, sketch).committed_round(np.zeros(9), expected=NAMES)


def test_adapters_by_two_sided_are_refused():
    from bartizan.lora import TwoSided

    with pytest.raises(ValueError, match="needs a projection such as Rotated"):
        bz.Aggregator(bz.Krum(2), TwoSided()).committed_round(np.zeros(9), expected=NAMES)


def test_noise_and_updates_short_of_digits_are_refused_and_recorded():
    updates = honest(1000)
    opened = bz.Aggregator(bz.FLAME(noise=0.1), SMALL).committed_round(updates["c0"], expected=NAMES)
    with pytest.raises(ValueError, match="adds no noise"):
        opened.run(Loopback(updates))
    assert "adds no noise" in opened.transcript.closing.problem
    far = {name: 1e7 + x.astype(np.float64) * 1e-3 for name, x in updates.items()}
    opened = bz.Aggregator(bz.Krum(F), SMALL).committed_round(far["c0"], expected=NAMES)
    with pytest.raises(ValueError, match="too few digits for a committed round"):
        opened.run(Loopback(far))
    with pytest.raises(RuntimeError, match="This round is closed"):
        opened.run(Loopback(far))


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ([], "1 to 10,000"),
        (["a", "a"], "each once"),
        ("abc", "1 to 10,000"),
        ([7], "printable"),
        (["a\n"], "printable"),
    ],
)
def test_ids_are_distinct_printable_texts(expected, message):
    with pytest.raises(ValueError, match=message):
        bz.Aggregator(bz.Krum(0)).committed_round(np.zeros(9), expected=expected)


def test_too_few_clients_refuse_the_round():
    updates = dict(list(honest(1000).items())[:3])
    with pytest.raises(TooFewClientsError, match="Krum with n_byzantine=2 needs"):
        run_round(bz.Aggregator(bz.Krum(F), SMALL), updates)


def test_a_client_refuses_an_update_that_can_not_take_part():
    opened = bz.Aggregator(bz.Krum(F)).committed_round({"w": np.zeros(9, np.float32)}, expected=NAMES)
    for wrong, message in [
        ({"w": np.full(9, np.nan, np.float32)}, "holds NaN"),
        ({"w": np.zeros(9)}, "not of the round's layout"),
        ({"v": np.zeros(9, np.float32)}, "not of the round's layout"),
    ]:
        with pytest.raises(ValueError, match=message):
            Commitment.of(wrong, opened.opening, "c0")
    own = {"w": np.zeros(9, np.float32)}
    with pytest.raises(ValueError, match="size must be"):
        Commitment.of(own, opened.opening, "c0", size=np.inf)
    with pytest.raises(ValueError, match="did not ask 'eve'"):
        Commitment.of(own, opened.opening, "eve")
    with pytest.raises(ValueError, match="reference is not the one"):
        Commitment.of(own, opened.opening.encoded, "c0", reference=own)


def test_rules_and_sketches_are_made_of_their_repr_and_nothing_else_is():
    for case in CASES:
        if not case.rule.ends_coordinate_wise():
            assert rule_from(repr(case.rule)) == case.rule
    assert projection_from("Gaussian(k=7)") == bz.Gaussian(7)
    wrong = "", "Krum", "Krum(2)", "Krum(n_byzantine=2).weigh", "__import__('os')", "Krum(n_byzantine=-1)", "(" * 900
    for text in wrong:
        with pytest.raises(ValueError, match="of bartizan's own"):
            rule_from(text)
    for text in ("Rotated(k=131072, mixing=32)", "Exact()", "Rotated(k=4096)", "Gaussian(k=10**9)"):
        with pytest.raises(ValueError, match=r"projection"):
            projection_from(text)


def test_a_client_sends_no_more_at_a_time_than_a_message_holds():
    updates = honest()
    exchange = Loopback(updates)
    bz.Aggregator(bz.Krum(F)).committed_round(updates["c0"], expected=NAMES, audit=1).run(exchange)
    asked = [decoded(request) for _, request in exchange.requests]
    assert {type(one) for one in asked} >= {Listing, Fetch}
    assert all(len(reply) <= 5 * LEAF for _, reply in exchange.replies)
