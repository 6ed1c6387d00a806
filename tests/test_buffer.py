"""A buffer of updates that arrive at any time: the synchronous answer where nobody waits, and what clients can't do."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import bartizan as bz
from bartizan.attacks.nullspace import hidden_part
from bartizan.measure.sketches import Rotated
from bartizan.records import CorruptFileError
from places import spilled_bytes

M = 9
RULES = [
    bz.Krum(2),
    bz.ARC(2) >> bz.CAF(2),
    bz.GeometricMedian(),
    bz.CGE(2),
    bz.FLAME(noise=0.1),
    bz.NNM(2) >> bz.coordinatewise.TrimmedMean(2),
]


def numbers(seed: int = 5, n: int = M, dim: int = 30_001) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32) + 3


def as_state_dicts(x: np.ndarray) -> list:
    return [{"w": torch.tensor(row[1:]), "n": torch.tensor(3), "b": torch.tensor(row[:1]).bfloat16()} for row in x]


# The synchronous round.


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("kind", [list, as_state_dicts], ids=["arrays", "state dicts"])
@pytest.mark.parametrize("more", [{}, {"spill": True}], ids=["memory", "spilled"])
def test_with_all_clients_and_no_staleness_it_is_the_synchronous_round_to_the_bit(rule, kind, more, tmp_path):
    more = {"spill": tmp_path} if more else {}
    updates, sizes = kind(numbers()), np.arange(1.0, M + 1)
    updates[3] = {"w": "nothing"}
    aggregator = bz.Aggregator(rule, bz.Rotated(k=64) if rule.needs_distances else "auto")
    staleness = None if rule.ends_coordinate_wise() else "polynomial"
    buffer = aggregator.buffer(M, seed=11, recheck=False, epoch=1, staleness=staleness, **more)
    with aggregator.round(buffer._state.arrivals.seed, recheck=False) as r:
        for client in np.random.default_rng(1).permutation(M).tolist():
            assert r.add(updates[client], client, sizes[client]) == buffer.add(
                updates[client], client, size=sizes[client]
            )
        same = r.close()
    out = buffer.aggregate()
    for one, other in zip(_leaves(out.update), _leaves(same.update), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(out.weights, same.weights)
    assert (out.clients, out.quarantined, out.seed) == (same.clients, same.quarantined, same.seed)
    assert out.ages == (0,) * M
    assert not out.remembered
    assert not out.rejected


def _leaves(update):
    return [
        np.asarray(one.double() if hasattr(one, "double") else one)
        for one in getattr(update, "values", lambda: [update])()
    ]


# Random arrivals against an oracle.


class Oracle:
    """A buffer of Multi-Krum with f = 1 and n = 3 selected, as its definition says: no sketch, no clever sums."""

    def __init__(self, size, max_staleness, max_age, remember, sum_remembered):
        self.size, self.max_staleness, self.max_age = size, max_staleness, max_age
        self.remember, self.sum_remembered = remember, sum_remembered
        self.version, self.entries, self.memory, self.seen = 0, {}, {}, set()

    def add(self, x, client, version):
        known = self.entries.get(client) or self.memory.get(client)
        if version > self.version or self.version - version > self.max_staleness:
            return False
        if (known and version < known[1]) or (client, x.tobytes()) in self.seen:
            return False
        self.seen.add((client, x.tobytes()))
        self.entries[client] = (x, version)
        return True

    def full(self):
        return len(self.entries) >= self.size and len(self.entries | self.memory) >= 5

    def aggregate(self):
        fresh = {c: e for c, e in self.entries.items() if self.version - e[1] <= self.max_staleness}
        absent = {c: e for c, e in self.memory.items() if c not in fresh}
        every = dict(sorted((fresh | absent).items()))
        if not fresh or len(every) < 5:
            return None
        x = np.array([e[0] for e in every.values()])
        ages = np.array([self.version - e[1] for e in every.values()])
        D = ((x[:, None] - x[None]) ** 2).sum(-1)
        scores = np.sort(D, axis=1)[:, 1 : len(x) - 2].sum(axis=1)
        weights = np.zeros(len(x))
        weights[np.argsort(scores, kind="stable")[:3]] = 1 / 3
        remembered = np.array([c in absent for c in every])
        if remembered.any() and not self.sum_remembered:
            weights = np.where(remembered, 0, weights) * len(x) / (~remembered).sum()
            weights /= max(1, weights.sum())
        weights = weights / np.sqrt(1 + ages)
        self.version += 1
        if self.remember:
            self.memory = {c: e for c, e in every.items() if self.version - e[1] <= self.max_age}
        self.entries = {}
        return weights @ x, weights, tuple(every)


def play(seed, orders, recheck=False):
    rng = np.random.default_rng(seed)
    for _ in range(orders):
        remember, in_sum = rng.random(2) < 0.5
        settings = {"max_staleness": int(rng.integers(0, 4)), "max_age": int(rng.integers(1, 5))}
        aggregator = bz.Aggregator(bz.MultiKrum(1, n_selected=3), bz.Exact())
        size = int(rng.integers(1 if remember else 5, 8))
        buffer = aggregator.buffer(
            size, remember=bool(remember), sum_remembered=bool(in_sum), recheck=recheck, epoch=2, **settings
        )
        oracle = Oracle(size, **settings, remember=remember, sum_remembered=in_sum)
        sent = {}
        for _ in range(int(rng.integers(5, 20))):
            client, version = int(rng.integers(8)), int(oracle.version - rng.integers(-1, 5) // 2)
            x = sent[client] if client in sent and rng.random() < 0.1 else rng.normal(size=4)
            sent[client] = x
            said = buffer.add(x, client, version=version)
            assert (said is None) == (version >= 0 and oracle.add(x, client, version)), said
            assert buffer.full == oracle.full()
            if buffer.full or rng.random() < 0.05:
                wanted = oracle.aggregate()
                if wanted is None:
                    with pytest.raises(bz.TooFewClientsError):
                        buffer.aggregate()
                    continue
                out = buffer.aggregate()
                assert out.clients == wanted[2]
                assert buffer.version == oracle.version
                # Float64 sums of four numbers around 1, in another order.
                np.testing.assert_allclose(out.weights, wanted[1], atol=1e-14)
                np.testing.assert_allclose(out.update, wanted[0], atol=1e-13)
    return True


def test_random_arrivals_are_judged_as_by_the_definition():
    assert play(0, 2000)


def test_many_random_arrivals_are_judged_as_by_the_definition_whatever_the_recheck():
    # Multi-Krum reads all again where every client is selected only; other weights stay, as no client is a suspect.
    assert play(1, 8000)
    assert play(2, 50, recheck=True)


# Arrival: threads, order, one entry per client.


def test_neither_threads_nor_the_order_of_arrival_change_a_result():
    x = numbers()

    def result(order, threads):
        buffer = bz.Aggregator(n_byzantine=2).buffer(M, seed=3, recheck=False, remember=True)
        for shift in range(2):
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda m: buffer.add(x[m] + 10 * shift, m, version=m % (shift + 1)), order))  # noqa: B023
            out = buffer.aggregate(deadline=60)
        return out

    first = result(range(M), 1)
    for seed, threads in ((0, 4), (1, 1), (2, 9)):
        out = result(np.random.default_rng(seed).permutation(M).tolist(), threads)
        np.testing.assert_array_equal(out.update, first.update)
        np.testing.assert_array_equal(out.weights, first.weights)


def test_a_client_that_sends_20_times_has_one_entry_the_newest():
    x, buffer = numbers(dim=50), bz.Aggregator(bz.Mean()).buffer(5)
    for nth in range(20):
        assert buffer.add(x[0] + nth, "eve") is None
    assert len(buffer) == 1
    assert not buffer.full
    for m in range(1, 5):
        buffer.add(x[m], f"client {m}")
    out = buffer.aggregate()
    assert len(out.clients) == 5
    np.testing.assert_allclose(out.update, (x[:5].sum(axis=0) + 19) / 5, rtol=1e-6)  # float32 sums


def test_an_older_update_does_not_replace_a_newer_one():
    x, buffer = numbers(dim=50), bz.Aggregator(bz.Mean()).buffer(1)
    buffer.add(x[0], "amy")
    buffer.aggregate()
    assert buffer.add(x[1], "amy", version=1) is None
    assert "of version 0, and the client's last update of version 1" in buffer.add(x[2], "amy", version=0)
    np.testing.assert_allclose(buffer.aggregate().update, x[1])


def test_updates_that_arrive_during_a_judgement_are_for_the_next_one():
    x, started, go = numbers(dim=5000), threading.Event(), threading.Event()
    buffer = bz.Aggregator(bz.Mean(), "rotated").buffer(2)
    buffer.add(x[0], 0), buffer.add(x[1], 1)

    def progress(stage, done, total):
        started.set()
        go.wait(60)

    with ThreadPoolExecutor(1) as pool:
        judged = pool.submit(buffer.aggregate, progress=progress)
        assert started.wait(60)
        assert buffer.add(x[2], 1) is None
        assert buffer.clients == (1,)
        go.set()
        assert judged.result().clients == (0, 1)
    assert buffer.aggregate().ages == (1,)


def test_a_deadline_judges_what_is_there_and_a_full_buffer_does_not_wait():
    x, buffer = numbers(dim=50), bz.Aggregator(bz.Mean()).buffer(3)
    buffer.add(x[0], 0)
    assert buffer.aggregate(deadline=0.01).clients == (0,)
    with ThreadPoolExecutor(1) as pool:
        judged = pool.submit(buffer.aggregate, deadline=3600)
        for m in range(3):
            buffer.add(x[m + 1], m, version=1)
        assert judged.result(60).clients == (0, 1, 2)


def test_a_judgement_that_is_refused_keeps_all_entries():
    x, buffer = numbers(dim=50), bz.Aggregator(bz.Krum(1)).buffer(5)
    for m in range(2):
        buffer.add(x[m], m)
    buffer.add(x[2], 2, version=7)
    with pytest.raises(bz.TooFewClientsError, match="at least"):
        buffer.aggregate()
    assert buffer.clients == (0, 1)
    assert buffer.version == 0
    assert list(buffer.rejected) == [2]
    for m in range(3, 6):
        buffer.add(x[m], m)
    out = buffer.aggregate()
    assert out.clients == (0, 1, 3, 4, 5)
    assert out.rejected == {2: "expected a model version from 0 to 0, got 7"}
    assert not buffer.rejected
    assert not len(buffer)


# What clients can't do.


@pytest.mark.parametrize("version", [-1, 1, 2**70, "0", None.__class__, 0.0, True, np.nan])
def test_a_wrong_version_is_a_reason_not_an_error(version):
    buffer = bz.Aggregator(bz.Mean()).buffer(2)
    assert buffer.add([1.0], "eve", version=version).startswith("expected a model version from 0 to 0, got")


def test_a_replayed_old_update_is_told_under_whatever_version():
    x, buffer = numbers(dim=5000), bz.Aggregator(bz.Mean(), "rotated").buffer(3, epoch=1)
    for t in range(4):
        for m in range(3):
            assert buffer.add(x[m] * (t + 1), m, version=t) is None
        assert "the same numbers before" in buffer.add(x[0] * (t + 1), 0, version=t)
        if t:
            assert "the same numbers before" in buffer.add(x[0].copy(), 0, version=t)
        out = buffer.aggregate()
        assert list(out.rejected) == [0]
        np.testing.assert_allclose(out.update, x[:3].mean(axis=0) * (t + 1), rtol=1e-6)
    assert buffer.add(np.zeros(5000, "float32"), 0, version=4) is None  # a client without data has nothing to replay
    buffer.aggregate()
    assert buffer.add(np.zeros(5000, "float32"), 0, version=5) is None


def test_too_old_updates_are_out_with_a_reason_also_those_that_grew_old_in_the_buffer():
    x, buffer = numbers(dim=50), bz.Aggregator(bz.Mean()).buffer(1, max_staleness=1)
    for t in range(3):
        buffer.add(x[t], "amy", version=t)
        buffer.aggregate()
    said = "it is of version 1, 2 versions old, where max_staleness is 1"
    assert buffer.add(x[3], "bob", version=1) == said
    assert buffer.add(x[3], "bob", version=2) is None
    buffer._state.version = 4  # as if another judgement had been made meanwhile
    buffer.add(x[4], "amy", version=4)
    out = buffer.aggregate()
    assert out.clients == ("amy",)
    assert out.rejected == {"bob": said.replace("1, 2", "2, 2")}


def test_a_false_version_never_buys_weight():
    """Whoever says that an update is fresh keeps the weight that the rule gave; the others' does not move to it."""
    x, rule = numbers(dim=500), bz.ARC(2) >> bz.CAF(2)

    def weights(versions):
        buffer = bz.Aggregator(rule).buffer(M, seed=1, recheck=False)
        buffer._state.version = 5
        for m in range(M):
            buffer.add(x[m], m, version=versions[m])
        return buffer.aggregate().weights

    fresh = weights([5] * M)
    stale = weights([5, 5, 0, 0, 1, 2, 3, 4, 4])
    ages = np.array([0, 0, 5, 5, 4, 3, 2, 1, 1])
    np.testing.assert_allclose(stale, fresh / np.sqrt(1 + ages), rtol=1e-12)
    assert (stale <= fresh).all()


def test_an_update_of_another_form_is_not_kept_once_the_form_is_known(tmp_path):
    x, buffer = numbers(dim=5000), bz.Aggregator(bz.Mean(), "rotated").buffer(2, spill=tmp_path)
    for m in range(2):
        buffer.add(x[m], m)
    buffer.aggregate()
    before = spilled_bytes(tmp_path)
    for _ in range(20):
        assert "got float64" in buffer.add(np.ones(10**6), "eve")
    assert spilled_bytes(tmp_path) == before
    assert buffer.clients == ()


def test_a_client_that_floods_takes_bounded_memory():
    buffer = bz.Aggregator(bz.Mean()).buffer(2)
    for nth in range(3000):
        buffer.add([float(nth + 1)], "eve")
    assert len(buffer) == 1
    assert len(buffer._state.fingerprints["eve"]) == 64


def test_what_breaks_one_update_breaks_nothing_else():
    x, buffer = numbers(dim=50), bz.Aggregator(n_byzantine=2).buffer(M)
    x[0, 7] = np.nan
    assert "holds NaN" in buffer.add(x[0], 0)
    assert "not a NumPy array" in buffer.add({"a": "b"}, 1)
    for m in range(2, M):
        assert buffer.add(x[m], m) is None
    assert buffer.full
    out = buffer.aggregate()
    assert sorted(out.quarantined) == [0, 1]
    assert out.n_byzantine == 2
    assert np.isfinite(out.update).all()


# Seeds: one per epoch, which nobody learns before its end.


def test_a_seed_serves_an_epoch_and_is_published_at_its_end():
    x, buffer = numbers(dim=5000), bz.Aggregator(bz.Krum(2), "rotated").buffer(M, epoch=3)
    results = []
    for t in range(7):
        for m in range(M):
            buffer.add(x[m] * (1 + t), m, version=t)
        results.append(buffer.aggregate())
        assert len(buffer.seeds) == (t + 1) // 3
    assert [out.seed is None for out in results] == [True, True, False] * 2 + [True]
    assert [version for version, _ in buffer.seeds] == [0, 3]
    assert [seed for _, seed in buffer.seeds] == [results[2].seed, results[5].seed]
    assert len({seed for _, seed in buffer.seeds}) == 2
    (began, seed), *_ = buffer.seeds
    for t in range(began, 3):  # the published seed replays each judgement
        same = bz.aggregate(list(x * (1 + t)), bz.Krum(2), sketch=Rotated(), seed=seed)
        np.testing.assert_array_equal(results[t].weights, same.weights)


def test_at_the_end_of_an_epoch_what_stays_is_sketched_again_from_the_stored_bytes(tmp_path):
    x = numbers(dim=5000)
    buffer = bz.Aggregator(bz.GeometricMedian(), "rotated").buffer(
        3, epoch=1, seed=5, recheck=False, remember=True, sum_remembered=True, staleness=None, spill=tmp_path
    )
    for m in range(M):
        buffer.add(x[m], m)
    first = buffer.aggregate()
    x[0] += 1
    buffer.add(x[0], 0)
    out = buffer.aggregate()
    same = bz.aggregate(list(x), bz.GeometricMedian(), sketch=Rotated(), seed=out.seed)
    assert out.seed != first.seed
    np.testing.assert_array_equal(out.weights, same.weights)
    np.testing.assert_array_equal(out.update, same.update)


@pytest.mark.parametrize("rule", [bz.Krum(2), bz.MultiKrum(2), bz.ARC(2) >> bz.CAF(2)], ids=repr)
def test_whatever_is_learned_of_an_epochs_seed_the_recheck_tells_who_uses_it(rule):
    """An attacker sees what judgements of the epoch publish, all of which depends on its seed and on no other secret.

    So nobody can learn more within an epoch than the seed itself: these attackers have it, and hide a large change in
    the projection's null space in a later judgement. The seed of the recheck is drawn after they have sent. (An honest
    client is told with probability 1e-9.)
    """
    x, f, found = numbers(dim=20_000), 2, {}
    mean = x[f:].mean(axis=0) * np.float32(1.1)
    leaked = bz.Aggregator(rule, Rotated(k=512)).buffer(M, seed=77)._state.arrivals.seed
    hidden = hidden_part(np.random.default_rng(0).normal(size=20_000), Rotated(k=512), [leaked])
    hidden *= 0.6 * np.linalg.norm(mean) / np.linalg.norm(hidden)  # more would show beside the exact norm
    for recheck in (False, True):
        buffer = bz.Aggregator(rule, Rotated(k=512)).buffer(M, epoch=10, seed=77, recheck=recheck, remember=True)
        for t in range(2):
            for m in range(M):
                sent = (mean + hidden).astype(np.float32) if t and m < f else x[m] * np.float32(1 + t / 10)
                assert buffer.add(sent, m, version=t) is None
            found[recheck] = buffer.aggregate()
        assert not any(
            one.version == 1 for m, one in buffer._state.remembered.items() if m in found[recheck].quarantined
        )
    off = {recheck: np.linalg.norm(out.update - mean) for recheck, out in found.items()}
    assert found[False].weights[:f].max() > 0.09
    assert not found[False].quarantined
    assert found[True].quarantined.keys() == {0, 1}
    assert off[True] < 0.6 * off[False]


# Whole weights.


def test_whole_weights_are_measured_from_the_version_that_they_were_trained_from():
    changes = numbers(n=6, dim=500) - 3
    models = [{"w": torch.full((500,), 100.0 * (t + 1)), "n": torch.tensor(7 * t)} for t in range(3)]
    buffer = bz.Aggregator(bz.Mean()).buffer(2, model=models[0], staleness=None)

    def weights(m, version):
        return {"w": models[version]["w"] + torch.tensor(changes[m]), "n": models[version]["n"] + 1}

    for m in range(2):
        assert buffer.add(weights(m, 0), m, version=0) is None
    out = buffer.aggregate()
    # Weights of 100 to 300 are exact to 2^-16 in float32.
    np.testing.assert_allclose(out.update["w"], changes[:2].mean(axis=0), atol=2**-15)
    assert out.update["n"] == 1
    kept = models[1]["w"].clone()
    buffer.publish(models[1])
    models[1]["w"] += 1000
    assert buffer.add({"w": kept + torch.tensor(changes[2]), "n": models[1]["n"]}, 2, version=1) is None
    assert buffer.add(weights(3, 0), 3, version=0) is None
    out = buffer.aggregate()
    assert out.ages == (0, 1)
    np.testing.assert_allclose(out.update["w"], changes[2:4].mean(axis=0), atol=2**-15)
    assert buffer.add(weights(4, 1), 4) == "the model of version 2 is not kept: it was not published"
    buffer.publish(models[2])
    assert buffer.add({"w": models[2]["w"][:9], "n": models[2]["n"]}, 4).startswith("wanted 'w' as in the model")
    assert buffer.add(models[2]["w"], 5) == "its names are not those of the model"
    assert "hostile" in buffer.add(_Hostile(), 1)


class _Hostile(dict):
    def items(self):
        raise RuntimeError("hostile")


def test_models_are_kept_as_long_as_updates_from_them_are_taken_and_replayed_weights_are_told(tmp_path):
    buffer = bz.Aggregator(bz.Mean()).buffer(1, model=np.zeros(10**6), max_staleness=2, spill=tmp_path)
    for t in range(5):
        assert buffer.add(np.ones(10**6) * (t + 2.5), "amy") is None
        assert "the same numbers before" in buffer.add(np.full(10**6, 2.5), "amy", version=t)
        buffer.aggregate()
        buffer.publish(np.ones(10**6) * (t + 1))
    assert sorted(buffer._models) == [3, 4, 5]
    assert spilled_bytes(tmp_path) > 3 * 8e6


# Staleness and settings.


def test_staleness_lowers_the_weights_and_votes_stay_as_they_are():
    x, buffer = numbers(dim=50), bz.Aggregator(bz.MultiKrum(1)).buffer(5, staleness=lambda age: 0.5**age)
    buffer._state.version = 3
    for m in range(5):
        buffer.add(x[m] + (1000 if m == 4 else 0), m, version=3 if m == 4 else m)
    out = buffer.aggregate()
    np.testing.assert_allclose(out.weights, [1 / 32, 1 / 16, 1 / 8, 1 / 4, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be a whole number from 1 up, got 0"),
        ({"size": True}, "size must be a whole number from 1 up"),
        ({"epoch": 0}, "epoch must be a whole number"),
        ({"max_staleness": -1}, "max_staleness must be a whole number from 0 up, got -1"),
        ({"max_staleness": 2.0}, "max_staleness must be a whole number"),
        ({"max_age": 0, "remember": True}, "max_age must be a whole number from 1 up"),
        ({"remember": 0.5}, "remember must be True, False or the most clients"),
        ({"staleness": "linear"}, "staleness must be 'polynomial', a function of the age or None, got 'linear'"),
        ({"staleness": lambda age: 1 + age}, "got 2 at age 1 after 1"),
        ({"staleness": lambda age: -age}, "got -1 at age 1 after 0"),
        ({"staleness": lambda age: float("nan")}, "got nan at age 0"),
        ({"size": 4, "rule": bz.Krum(2)}, "size=4 is too small: .* n_byzantine counts all attackers of the federation"),
        ({"rule": bz.FLTrust()}, "a buffer has none"),
        ({"rule": bz.coordinatewise.Median()}, "age can't lower their weights: pass staleness=None"),
        ({"rule": bz.coordinatewise.Median(), "staleness": None, "remember": True}, "sum_remembered=True"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_a_wrong_setting_says_what_is_expected(settings, message):
    settings = {"rule": bz.Mean(), "size": 5} | settings
    with pytest.raises(ValueError, match=message):
        bz.Aggregator(settings.pop("rule")).buffer(**settings)


def test_misuse_says_what_to_do():
    buffer = bz.Aggregator(bz.Mean()).buffer(2)
    with pytest.raises(ValueError, match="pass model="):
        buffer.publish([1.0])
    with pytest.raises(TypeError, match="hashable"):
        buffer.add([1.0], [])
    with pytest.raises(ValueError, match="size must be a positive number"):
        buffer.add([1.0], 1, size=0)
    with pytest.raises(ValueError, match="deadline must be"):
        buffer.aggregate(deadline=-1)
    with pytest.raises(bz.TooFewClientsError, match="No client's update was added since the last judgement"):
        buffer.aggregate()


# Memory of absent clients.


def test_remembered_clients_outvote_attackers_who_are_most_of_those_who_come():
    """Two attackers and one honest client send; six honest ones sent in earlier rounds."""
    x, f = numbers(dim=2000), 2
    found = {}
    for in_sum in (False, True):
        buffer = bz.Aggregator(bz.NNM(f) >> bz.GeometricMedian()).buffer(
            3, remember=True, sum_remembered=in_sum, staleness=None
        )
        for m in range(M):
            buffer.add(x[m], m)
        buffer.aggregate()
        for m in range(3):
            buffer.add(x[m] + 1 if m == 2 else -100 * x[m], m)
        assert buffer.full
        found[in_sum] = out = buffer.aggregate()
        assert out.remembered == {3, 4, 5, 6, 7, 8}
        assert out.ages == (0,) * 3 + (1,) * 6
        assert out.weights[:2].max() < 1e-3
        assert out.weights[2] > 0
    assert found[False].weights[3:].max() == 0
    assert found[True].weights[3:].min() > 0
    assert found[False].weights.sum() <= 1 + 1e-12
    np.testing.assert_allclose(found[True].update, x[3:].mean(axis=0), atol=1.5)
    with pytest.raises(bz.TooFewClientsError):  # without a memory there is no such judgement
        bz.aggregate(x[:3], bz.Krum(f))


def test_without_their_sum_the_only_fresh_client_gets_its_share_at_most():
    x, buffer = numbers(dim=500), bz.Aggregator(bz.ARC(2) >> bz.CAF(2)).buffer(1, remember=True, staleness=None)
    for m in range(M):
        buffer.add(x[m], m)
    buffer.aggregate()
    buffer.add(x[0] * 500, 0)
    out = buffer.aggregate()
    assert out.weights.sum() == out.weights[0] < 0.05


@pytest.mark.parametrize(
    ("settings", "kept"), [({"remember": 3}, "cal dan eve"), ({"remember": True, "max_age": 2}, "dan eve")]
)
def test_as_many_clients_are_remembered_as_wanted_and_for_as_long(settings, kept):
    x, buffer = numbers(n=9, dim=50), bz.Aggregator(bz.Mean()).buffer(1, **settings, max_staleness=0)
    for t, client in enumerate(["amy", "bob", "amy", "cal", "dan", "eve"]):
        buffer.add(x[t], client)
        buffer.aggregate()
    assert buffer.remembered == {client: {"cal": 3, "dan": 4, "eve": 5}[client] for client in kept.split()}


def test_a_quarantined_update_is_not_remembered():
    x, buffer = numbers(dim=50), bz.Aggregator(bz.Krum(1)).buffer(6, remember=True)
    x[0, 3] = np.inf
    for m in range(6):
        buffer.add(x[m], m)
    buffer.aggregate()
    assert sorted(buffer.remembered) == [1, 2, 3, 4, 5]


# A server that is killed.


def test_a_buffer_goes_on_from_its_folder_with_entries_memory_version_and_seeds(tmp_path):
    x = numbers(n=12, dim=5000)
    settings = {"remember": True, "sum_remembered": True, "recheck": False, "epoch": 3, "folder": tmp_path / "state"}
    aggregator = bz.Aggregator(bz.GeometricMedian(), "rotated")
    last = aggregator.buffer(3, **settings)
    whole = aggregator.buffer(3, **settings | {"folder": None})
    for t in range(4):
        for m in range(3):
            for buffer in (last, whole):
                assert buffer.add({"w": torch.tensor(x[3 * t + m])}, f"client {m + t}", version=t, size=m + 1) is None
        if t < 3:
            last.aggregate(), whole.aggregate()
        last.close()  # as if its process had been killed: nothing else of it is used again
        last = aggregator.buffer(3, **settings)
        assert last.version == whole.version
        assert last.clients == whole.clients
        assert last.remembered == whole.remembered
        assert "the same numbers before" in last.add({"w": torch.tensor(x[3 * t])}, f"client {t}", version=t)
    assert [began for began, _ in last.seeds] == [0, 1, 2]
    assert len({seed for _, seed in last.seeds}) == 3
    out, same = last.aggregate(), whole.aggregate()
    assert out.clients == same.clients
    assert out.ages == same.ages
    assert out.remembered == same.remembered
    assert type(out.update["w"]) is torch.Tensor
    # Weights by two seeds of a projection to 4096 numbers of updates whose distances differ by some per cent.
    np.testing.assert_allclose(out.weights, same.weights, rtol=0.2)
    files = {path.suffix for path in (tmp_path / "state").iterdir()}
    assert files == {".jsonl", ".safetensors"}
    assert len(list((tmp_path / "state").iterdir())) == 6 + 1


KILLED = """
import sys, numpy as np, bartizan as bz
from pathlib import Path
folder, log = Path(sys.argv[1]), open(sys.argv[2], "a")
buffer = bz.Aggregator(bz.Mean()).buffer(2, folder=folder, remember=3, staleness=None, sum_remembered=True)
print("open", buffer.version, len(buffer), file=log, flush=True)
for nth in range(10**6):
    client = nth % 5
    if buffer.add(np.full(1000, buffer.version * 5.0 + client + 1), client) is None:
        print("added", buffer.version, client, file=log, flush=True)
    if buffer.full:
        out = buffer.aggregate()
        print("judged", out.version, file=log, flush=True)
"""


def test_a_server_that_is_killed_at_any_time_loses_nothing_that_was_added(tmp_path):
    log = tmp_path / "log"
    for nth in range(6):
        ran = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "state", log])
        before = log.read_text().count("judged") if log.exists() else 0
        while log.read_text().count("judged") < before + 3 + nth if log.exists() else True:
            assert ran.poll() is None
            time.sleep(0.01)
        ran.send_signal(signal.SIGKILL)
        ran.wait()
    lines = [line.split() for line in log.read_text().splitlines() if line]
    judged = [int(line[1]) for line in lines if line[0] == "judged"]
    assert len(judged) == len(set(judged))  # none is made twice
    assert len(judged) >= max(judged) + 1 - 6  # and at most that is lost which was under way
    buffer = bz.Aggregator(bz.Mean()).buffer(
        2, folder=tmp_path / "state", remember=3, staleness=None, sum_remembered=True
    )
    since = list(lines[max(n for n, line in enumerate(lines) if line[0] == "judged") :])
    added = {int(line[2]) for line in since if line[0] == "added"}
    assert added <= set(buffer.clients) | set(buffer.remembered)
    assert len(list((tmp_path / "state").glob("*.safetensors"))) <= 3 + 5 + 1


def test_a_folder_serves_one_process_and_one_rule(tmp_path):
    buffer = bz.Aggregator(bz.Mean()).buffer(2, folder=tmp_path)
    with pytest.raises(FileExistsError, match="Another process is at work"):
        bz.Aggregator(bz.Mean()).buffer(2, folder=tmp_path)
    with pytest.raises(TypeError, match="must be a text or a whole number with folder="):
        buffer.add([1.0], (1, 2))
    assert "wanted texts or numbers for keys" in buffer.add({frozenset(): np.ones(3)}, 1)
    assert buffer.add([1.0], 1) is None
    buffer.close()
    with pytest.raises(ValueError, match=r"holds a buffer with rule Mean\(\), not GeometricMedian"):
        bz.Aggregator(bz.GeometricMedian()).buffer(2, folder=tmp_path)


@pytest.mark.parametrize("name", ["*.jsonl", "*.safetensors"])
@pytest.mark.parametrize("kept", [0, 40, -3])
def test_a_damaged_folder_is_named_and_nothing_in_it_is_removed(tmp_path, name, kept):
    buffer = bz.Aggregator(bz.Mean()).buffer(1, folder=tmp_path, remember=True)
    buffer.add([1.0], "amy")
    buffer.aggregate()
    buffer.close()
    path = next(tmp_path.glob(name))
    path.write_bytes(path.read_bytes()[:kept])
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    with pytest.raises(CorruptFileError, match=r"Put back a copy"):
        bz.Aggregator(bz.Mean()).buffer(1, folder=tmp_path, remember=True)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
