"""A round whose updates come one by one: one call's answer to the bit, whoever comes first, wherever they are kept."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import bartizan as bz
from bartizan.round import in_order
from bartizan.sources.arriving import load_kernels
from places import spilled_bytes

M = 9
RULES = [
    bz.Krum(2),
    bz.MultiKrum(2),
    bz.GeometricMedian(),
    bz.CGE(2),
    bz.Mean(),
    bz.ClippedClustering(),
    bz.FLAME(noise=0.1),
    bz.NormFilter() >> bz.GeometricMedian(),
    bz.Bucketing(2) >> bz.GeometricMedian(),
    bz.coordinatewise.Median(),
    bz.NNM(2) >> bz.coordinatewise.TrimmedMean(2),
]
SKETCHES = [bz.Rotated(k=256), bz.Gaussian(k=8), bz.Achlioptas(k=16), bz.Exact()]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(M, *shape)).astype(np.float32) + 3


def matrix() -> list:
    return list(numbers(70_003))


def state_dicts() -> list:
    """Big layers, small layers, a counter."""
    w, b, v = numbers(300, 200), numbers(7), numbers(5000)
    return [
        {"w": torch.tensor(w[m]), "b": torch.tensor(b[m]), "n": torch.tensor(40 + m), "v": torch.tensor(v[m])}
        for m in range(M)
    ]


def halves() -> list:
    x = numbers(40_001)
    return [{"a": torch.tensor(row).bfloat16(), "b": torch.tensor(row[:9]).half()} for row in x]


def strided() -> list:
    """Each lies in memory in another way."""
    x = numbers(100, 90).astype(np.float64)
    ways = [
        np.asfortranarray,
        np.ascontiguousarray,
        lambda a: a.astype(">f8"),
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    ]
    return [[ways[m % len(ways)](x[m]), x[m, 0]] for m in range(M)]


def mixed_orders() -> list:
    """Most send b first; two others a."""
    a, b = numbers(5000), numbers(30, 40)
    return [OrderedDict(b=b[m], a=a[m]) if m not in (1, 4) else OrderedDict(a=a[m], b=b[m]) for m in range(M)]


CONTAINERS = [matrix, state_dicts, halves, strided, mixed_orders]


def leaves(update) -> list[np.ndarray]:
    if isinstance(update, dict):
        return [part for key in update for part in leaves(update[key])]
    if isinstance(update, list):
        return [part for child in update for part in leaves(child)]
    return [update.float().numpy() if isinstance(update, torch.Tensor) else np.asarray(update)]


def assert_same(came: bz.Aggregation, wanted: bz.Aggregation) -> None:
    assert type(came.update) is type(wanted.update)
    for one, other in zip(leaves(came.update), leaves(wanted.update), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    np.testing.assert_equal(came.weights, wanted.weights)
    assert came.quarantined == wanted.quarantined
    assert came.history == wanted.history
    assert came.seed == wanted.seed


def in_a_round(aggregator, updates, order, *, sizes=None, out=None, recheck=False, **settings) -> bz.Aggregation:
    """Without a second look the seed that is given decides all."""
    with aggregator.round(recheck=recheck, **settings) as r:
        for client in order:
            r.add(updates[client], client, size=1 if sizes is None else sizes[client])
        return r.close(out=out)


def orders() -> list[list[int]]:
    return [list(range(M)), list(reversed(range(M))), [4, 8, 0, 1, 7, 2, 6, 5, 3]]


@pytest.mark.parametrize("keep", ["reference", "copy", "spill"])
@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("sketch", SKETCHES, ids=repr)
def test_a_round_is_one_call_to_the_bit_in_any_order_and_wherever_updates_are_kept(sketch, container, keep, tmp_path):
    updates, sizes = container(), np.arange(1, M + 1)
    aggregator = bz.Aggregator(bz.NNM(2) >> bz.GeometricMedian(), sketch=sketch)
    kept = {"reference": {}, "copy": {"copy": True}, "spill": {"spill": tmp_path}}[keep]
    wanted = aggregator(updates, seed=11, sizes=sizes)
    for order in orders():
        assert_same(in_a_round(aggregator, updates, order, sizes=sizes, seed=11, **kept), wanted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sketch", [bz.Rotated(k=64), bz.Rotated(k=4096), bz.Rotated(k=8192)], ids=repr)
@pytest.mark.parametrize("rule", [bz.GeometricMedian(), bz.CGE(2), bz.MoNNA(2)], ids=repr)
def test_long_updates_are_summed_alike_alone_and_in_company(rule, sketch):
    """Several units of 2^19 columns: the sums of a row must not depend on how the work was cut."""
    updates = list(numbers(1_300_001))
    aggregator = bz.Aggregator(rule, sketch=sketch)
    trusted = updates[2] if rule.needs_trusted else None
    wanted = aggregator(updates, seed=7, trusted=trusted)
    assert_same(in_a_round(aggregator, updates, orders()[1], seed=7, trusted=trusted), wanted)


@pytest.mark.parametrize("rule", [*RULES, bz.Krum(2), bz.MoNNA(2), bz.CenteredClipping()], ids=repr)
@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c.__name__)
def test_with_a_second_look_the_seed_and_sketch_of_the_result_replay_the_round_to_the_bit(rule, container):
    updates, sizes = container(), np.arange(1, M + 1)
    points = {"reference": updates[0]} | ({"trusted": updates[3]} if rule.needs_trusted else {})
    projected = bz.Exact() if isinstance(rule, bz.coordinatewise.Median) else bz.Rotated(k=64)
    aggregator = bz.Aggregator(rule, sketch=projected)
    came = in_a_round(aggregator, updates, orders()[2], sizes=sizes, seed=3, recheck=True, **points)
    assert_same(came, bz.Aggregator(rule, came.sketch)(updates, seed=came.seed, sizes=sizes, **points))
    if came.seed == 3:
        assert came.sketch == (projected if rule.needs_distances else bz.Exact())
    else:
        assert (came.seed, came.sketch) == (came.recheck_seed, bz.Rotated())


def test_who_reads_all_again_weighs_by_the_seed_drawn_at_close_and_else_by_the_rounds():
    updates = matrix()
    for rule, again in (
        (bz.GeometricMedian(), True),
        (bz.Bucketing(2) >> bz.GeometricMedian(), True),
        (bz.Krum(2), False),
    ):
        came = in_a_round(bz.Aggregator(rule, bz.Rotated()), updates, range(M), seed=3, recheck=True)
        assert came.seed == (came.recheck_seed if again else 3)


def unfit() -> list:
    good = [{"w": row, "n": np.int64(m)} for m, row in enumerate(numbers(5000))]
    nan, huge = numbers(5000)[0], numbers(5000)[1]
    nan[17], huge[3] = np.nan, 1e30
    return [
        *good,
        {"w": nan, "n": np.int64(3)},
        {"w": huge, "n": np.int64(3)},
        {"w": numbers(4999)[0], "n": np.int64(3)},
        {"n": np.int64(3)},
        {"w": np.zeros(5000, complex), "n": np.int64(3)},
        "not an update",
    ]


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("sketch", [bz.Rotated(k=64), bz.Exact()], ids=repr)
@pytest.mark.parametrize("with_reference", [False, True])
def test_the_unfit_are_quarantined_for_one_calls_reasons(sketch, spilled, with_reference, tmp_path):
    updates = unfit()
    points = {"reference": updates[0]} if with_reference else {}
    aggregator = bz.Aggregator(bz.GeometricMedian(), sketch=sketch)
    order = list(np.random.default_rng(0).permutation(len(updates)))
    came = in_a_round(aggregator, updates, order, seed=1, spill=tmp_path if spilled else None, **points)
    wanted = aggregator(updates, seed=1, **points)
    assert list(wanted.quarantined) == list(range(M, len(updates)))
    assert_same(came, wanted)


def test_what_is_wrong_with_the_numbers_is_said_at_once():
    updates = unfit()
    with bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated(k=64)).round() as r:
        reasons = {client: r.add(update, client) for client, update in enumerate(updates)}
        assert "NaN, first at 17" in reasons[M]
        assert "overflow" in reasons[M + 1]
        assert "not a NumPy array" in reasons[M + 5]
        assert all(reasons[m] is None for m in range(M))
        assert r.quarantined == {client: reason for client, reason in reasons.items() if reason}


def test_under_strict_the_unfit_are_refused_at_once_and_may_send_again():
    nan = np.full(40, np.nan)
    with bz.Aggregator(bz.Mean()).round(strict=True) as r:
        with pytest.raises(bz.BadClientError, match=r"client eve: the update .* holds NaN"):
            r.add(nan, "eve")
        r.add(np.ones(40), "eve")
        assert r.close().update.tolist() == [1.0] * 40


def test_a_layout_that_only_others_can_refute_is_refused_at_close_by_the_clients_name():
    with bz.Aggregator(bz.Krum(1), sketch=bz.Rotated(k=64)).round(strict=True) as r:
        for client in ("amy", "bob", "cal", "dan", "eve"):
            r.add(np.ones(9 if client == "bob" else 8), client)
        with pytest.raises(bz.BadClientError, match=r"client bob: wanted .* got float64 of shape"):
            r.close()


def test_results_go_by_the_clients_ids():
    sent = {"dan": 1.0, "amy": 1.1, "bob": 0.9, "eve": 80.0, "fay": np.nan}
    with bz.Aggregator(bz.MultiKrum(2), sketch=bz.Rotated(k=64)).round() as r:
        for client, value in sent.items():
            r.add(np.full(50, value), client)
        with pytest.raises(bz.TooFewClientsError, match=r"needs at least.*client fay: the update .* holds NaN"):
            r.close()  # four are left, and Krum wants 2f + 3 = 5 ...
        r.add(np.full(50, 1.05), "cal")  # ... and the round is still open
        out = r.close()
    assert out.clients == ("amy", "bob", "cal", "dan", "eve", "fay")
    weights = dict(zip(out.clients, out.weights, strict=True))
    assert weights["eve"] == weights["fay"] == 0 < weights["amy"]
    assert list(out.quarantined) == ["fay"]
    assert bz.aggregate(np.ones((3, 4)), bz.Mean()).clients == (0, 1, 2)


def test_whoever_comes_twice_late_or_to_nobody_is_told_so():
    aggregator = bz.Aggregator(bz.Mean())
    with aggregator.round() as r:
        with pytest.raises(bz.TooFewClientsError, match="No client's update was added"):
            r.close()
        r.add([1.0, 2.0], "amy")
        with pytest.raises(ValueError, match="client 'amy' has sent an update in this round already"):
            r.add([1.0, 2.0], "amy")
        out = r.close()
        assert r.close() is out
        for client in ("amy", "bob"):
            with pytest.raises(RuntimeError, match=f"client '{client}' came too late: the round is closed"):
                r.add([1.0, 2.0], client)
    assert r.close() is out
    with aggregator.round() as r:
        r.add([1.0, 2.0], 7)
    with pytest.raises(RuntimeError, match="left without being closed"):
        r.close()
    with pytest.raises(RuntimeError, match="client 8 came too late: the round is discarded"):
        r.add([1.0, 2.0], 8)


def test_a_wrong_size_is_the_callers_mistake():
    wrong = [0, math.inf, math.nan, -1, True, np.True_, "5", b"5", None, [5], 5j, 10**400, 10**6000]
    wrong += [Fraction(10**400), Fraction(1, 10**400), Decimal("1e400"), Decimal("sNaN")]
    wrong += [5e-324, 2.0**-65, 2**65, 1e308]
    said = r"client 'amy': size must be a positive number from 2\^-64 to 2\^64, got .+\."
    with bz.Aggregator(bz.Mean()).round() as r:
        for size in wrong:
            with pytest.raises(ValueError, match=said):
                r.add([1.0], "amy", size)


@pytest.mark.parametrize("size", [5, 5.0, np.int64(5), np.float32(5), np.array(5), Fraction(5), Decimal(5)])
def test_a_size_may_be_any_number(size):
    with bz.Aggregator(bz.Mean()).round() as r:
        r.add([1.0], "amy", size)
        r.add([0.0], "bob", 5)
        assert r.close().update.tolist() == [0.5]


def test_a_wrong_reference_does_not_wait_for_the_first_client():
    with pytest.raises(ValueError, match="reference must be finite"):
        bz.Aggregator(bz.Mean()).round(reference=[np.nan])
    with pytest.raises(ValueError, match="needs an update that the server trusts"):
        bz.Aggregator(bz.FLTrust()).round()


def test_ids_have_an_order_if_any_can_be_found():
    assert in_order([3, "b", 1, "a", 2.5]) == [1, 2.5, 3, "a", "b"]
    assert in_order([(2, "a"), (1, "b")]) == [(1, "b"), (2, "a")]
    for ids in ([frozenset({1}), frozenset({2})], [object(), object()], [1j, 2j]):
        with pytest.warns(UserWarning, match="ids have no order"):
            assert in_order(ids) == ids


@pytest.mark.parametrize("settings", [{"copy": True}, {"spill": True}, {"copy": True, "spill": True}], ids=repr)
def test_a_copied_or_spilled_update_may_be_written_over(settings, tmp_path, monkeypatch):
    """Network code may do so once it has called `add`, and with `copy` even before the sketch is taken."""
    x, buffer, measure = numbers(500), np.empty(500, np.float32), bz.Rotated.measure

    def overwritten(self, clients, seed, *more):
        buffer[:] = np.nan
        return measure(self, clients, seed, *more)

    aggregator = bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated(k=64))
    wanted = aggregator(x, seed=1)
    with aggregator.round(
        seed=1, recheck=False, **settings | ({"spill": tmp_path} if "spill" in settings else {})
    ) as r:
        with monkeypatch.context() as patch:
            if "copy" in settings:
                patch.setattr(bz.Rotated, "measure", overwritten)
            for m in range(M):
                buffer[:] = x[m]
                assert r.add(buffer, m) is None
        buffer[:] = np.nan
        assert_same(r.close(), wanted)


def test_threads_that_add_at_once_make_one_calls_answer(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 30_000)).astype(np.float32)
    aggregator = bz.Aggregator(bz.MultiKrum(8), sketch=bz.Rotated(k=256))
    wanted = aggregator(x, seed=2)
    for place in (None, tmp_path):
        with aggregator.round(seed=2, spill=place, recheck=False) as r, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda m, r=r: r.add(x[m], m), reversed(range(40))))
            assert_same(r.close(), wanted)


def test_of_twins_that_come_at_once_one_is_taken():
    x = np.ones(400_000, np.float32)
    with bz.Aggregator(bz.Mean()).round() as r, ThreadPoolExecutor(6) as pool:
        tries = [pool.submit(r.add, x, "amy") for _ in range(6)]
        refused = [isinstance(t.exception(), ValueError) for t in tries]
        assert sum(refused) == 5
        assert r.close().clients == ("amy",)


class Slow(Mapping):
    """An update that takes its time to be read."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __iter__(self):
        self.begun.set()
        assert self.go_on.wait(60)
        return iter(["w"])

    def __getitem__(self, key):
        return np.array([3.0])

    def __len__(self):
        return 1


def begin_adding(pool, r, client, slow=None):
    """Begin to add a slow update, and return it and what its add will return."""
    slow = slow or Slow()
    adding = pool.submit(r.add, slow, client)
    assert slow.begun.wait(60)
    return slow, adding


def test_close_waits_for_adds_that_have_begun():
    with bz.Aggregator(bz.Mean()).round() as r, ThreadPoolExecutor(2) as pool:
        slow, adding = begin_adding(pool, r, "amy")
        closing = pool.submit(r.close)
        while "closing" not in repr(r):
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="client 'bob' came too late: the round is closing"):
            r.add([3.0], "bob")
        assert not closing.done()
        slow.go_on.set()
        adding.result(60)
        assert closing.result(60).clients == ("amy",)


def test_a_close_that_is_interrupted_while_it_waits_leaves_the_round_open():
    with bz.Aggregator(bz.Mean()).round() as r, ThreadPoolExecutor(1) as pool:
        slow, adding = begin_adding(pool, r, "amy")
        interrupt = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            r.close()
        interrupt.join()
        assert "open" in repr(r)
        slow.go_on.set()
        adding.result(60)
        r.add({"w": np.array([5.0])}, "bob")
        assert r.close().clients == ("amy", "bob")


CUT = "its update was still being added at the deadline"


@pytest.mark.parametrize("spilled", [False, True])
def test_a_deadline_takes_what_is_there_and_nothing_that_is_still_added_leaks_in(spilled, tmp_path):
    """The deadline is 0, so that nothing depends on time; one add begins before it and ends after the close."""
    x = np.random.default_rng(0).normal(size=(6, 1))
    place = tmp_path / "spill" if spilled else None
    with bz.Aggregator(bz.MultiKrum(2)).round(seed=3, spill=place) as r, ThreadPoolExecutor(1) as pool:
        for client, row in enumerate(x):
            r.add({"w": row}, client)
        slow, adding = begin_adding(pool, r, 6)
        out = r.close(expected=range(8), deadline=0)
        assert out.failed == {6: CUT, 7: "it sent no update in time"} == r.failed
        assert (out.clients, out.n_byzantine) == (tuple(range(6)), 1)
        slow.go_on.set()
        with pytest.raises(RuntimeError, match=f"client 6 came too late: {CUT}"):
            adding.result(60)
        assert r.close() is out
        assert r.clients == tuple(range(6))
    np.testing.assert_array_equal(out.weights, bz.aggregate(x, bz.MultiKrum(1)).weights)


def test_before_its_deadline_a_close_waits_for_all_who_are_expected():
    with bz.Aggregator(bz.Mean()).round() as r, ThreadPoolExecutor(2) as pool:
        closing = pool.submit(r.close, expected=["amy", "bob", "cal"], deadline=3600)
        r.add({"w": np.array([5.0])}, "bob")
        slow, adding = begin_adding(pool, r, "amy")
        r.fail("cal", "its connection was lost")
        assert not closing.done()
        slow.go_on.set()
        adding.result(60)
        out = closing.result(60)
    assert (out.clients, out.update["w"].tolist()) == (("amy", "bob"), [4.0])
    assert out.failed == {"cal": "its connection was lost"}


def test_without_a_deadline_only_running_adds_are_waited_for():
    with bz.Aggregator(bz.Mean()).round(strict=True) as r, ThreadPoolExecutor(2) as pool:
        r.add({"w": np.array([5.0])}, "bob")
        slow, adding = begin_adding(pool, r, "amy")
        closing = pool.submit(r.close, expected=["amy", "bob", "cal"])
        while "closing" not in repr(r):
            time.sleep(0.001)
        slow.go_on.set()
        adding.result(60)
        out = closing.result(60)
    assert (out.clients, list(out.failed)) == (("amy", "bob"), ["cal"])


def test_an_expected_client_whose_add_raises_has_failed():
    class Broken(Slow):
        def __getitem__(self, key):
            raise ValueError("torn")

    with bz.Aggregator(bz.Mean()).round(strict=True) as r, ThreadPoolExecutor(2) as pool:
        for client in ("bob", "cal"):
            r.add({"w": np.array([5.0])}, client)
        slow, adding = begin_adding(pool, r, "amy", Broken())
        closing = pool.submit(r.close, expected=["amy", "bob"])
        while "closing" not in repr(r):
            time.sleep(0.001)
        slow.go_on.set()
        with pytest.raises(bz.BadClientError, match="torn"):
            adding.result(60)
        assert closing.result(60).failed == {"amy": "it sent no update in time"}


def test_a_client_may_fail_while_it_is_added_and_then_its_add_came_too_late():
    with bz.Aggregator(bz.Mean()).round() as r, ThreadPoolExecutor(1) as pool:
        slow, adding = begin_adding(pool, r, "amy")
        r.fail("amy", "no answer within 60 s")
        for client in ("bob", "cal"):
            r.add({"w": np.array([5.0])}, client)
        out = r.close()
        slow.go_on.set()
        with pytest.raises(RuntimeError, match="client 'amy' came too late: no answer within 60 s"):
            adding.result(60)
    assert (out.clients, out.failed) == (("bob", "cal"), {"amy": "no answer within 60 s"})


def test_too_few_at_the_deadline_refuse_the_round_which_stays_open_for_others():
    x = np.random.default_rng(0).normal(size=(5, 1))
    with bz.Aggregator(bz.MultiKrum(1)).round() as r, ThreadPoolExecutor(1) as pool:
        slow, adding = begin_adding(pool, r, "amy")
        with pytest.raises(bz.TooFewClientsError, match="2 of 2 clients are out") as refused:
            r.close(expected=["amy", "bob"], deadline=0)
        assert refused.value.failed == {"amy": CUT, "bob": "it sent no update in time"}
        slow.go_on.set()
        with pytest.raises(RuntimeError, match="client 'amy' came too late"):
            adding.result(60)
        for client, row in enumerate(x):
            r.add({"w": row}, client)
        with pytest.raises(ValueError, match="client 'bob' has failed in this round already"):
            r.add({"w": x[0]}, "bob")
        out = r.close(deadline=float("inf"))
    assert (out.clients, out.n_byzantine, set(out.failed)) == (tuple(range(5)), 1, {"amy", "bob"})


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"deadline": -1}, ValueError, "deadline must be a number of seconds, 0 or more, got -1"),
        ({"deadline": float("nan")}, ValueError, "deadline must be"),
        ({"deadline": "3"}, ValueError, "deadline must be a number of seconds, 0 or more, got '3'"),
        ({"expected": 3}, TypeError, "expected must be a list of clients' ids, got 3"),
        ({"expected": "amy"}, TypeError, "expected must be a list of clients' ids, got 'amy'"),
        ({"expected": [[1]]}, TypeError, "id must be hashable"),
        ({"expected": [float("nan")]}, ValueError, "id must equal itself"),
    ],
)
def test_a_wrong_deadline_or_id_closes_nothing(options, error, says):
    with bz.Aggregator(bz.Mean()).round() as r:
        r.add([3.0], "amy")
        with pytest.raises(error, match=says):
            r.close(**options)
        assert r.close().update == [3.0]


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed as Linux does")
@pytest.mark.parametrize("how", ["close", "exit", "error", "forgotten"])
def test_no_spilled_file_outlives_its_round(how, tmp_path):
    r = bz.Aggregator(bz.Mean()).round(spill=tmp_path)
    r.add(np.ones(10), 1)
    assert spilled_bytes(tmp_path) > 0
    if how == "close":
        out = r.close()
        assert out.update.tolist() == [1.0] * 10
    elif how == "exit":
        with r:
            pass
    elif how == "error":
        with pytest.raises(KeyError), r:
            raise KeyError
    else:
        del r
    assert spilled_bytes(tmp_path) == 0


KILLED = """
import sys, numpy as np, bartizan as bz
r = bz.Aggregator(bz.Mean(), sketch=bz.Exact()).round(spill=sys.argv[1])
for m in range(10_000):
    r.add(np.full(2**22, m, np.float32), m)
    print(m, flush=True)
"""


def test_a_round_that_is_killed_leaves_nothing(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "0\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_files_can_be_added_and_bad_ones_are_quarantined(tmp_path):
    x = numbers(5000)
    for m in range(M):
        np.save(tmp_path / f"{m}.npy", x[m])
    (tmp_path / "0.npy").write_bytes(b"rubbish")
    paths = [tmp_path / f"{m}.npy" for m in range(M)]
    aggregator = bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated(k=64))
    with aggregator.round(seed=1, spill=tmp_path / "spill", recheck=False) as r:
        assert "0.npy can't be opened" in r.add(paths[0], 0)
        for m in range(1, M):
            assert r.add(paths[m], m) is None
        assert spilled_bytes(tmp_path / "spill") == 0  # they are on disk already
        assert_same(r.close(), aggregator(paths, seed=1))


def test_a_round_can_write_its_result_where_it_is_told(tmp_path):
    updates = state_dicts()
    aggregator = bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated(k=64))
    with bz.files.create_update(tmp_path / "out.safetensors", like=updates[0]) as place:
        out = in_a_round(aggregator, updates, range(M), seed=1, out=place, memory="64 MiB")
        assert out.update is place
    assert_same(out, aggregator(updates, seed=1, out={key: value.clone() for key, value in updates[0].items()}))


def test_failed_clients_count_with_the_quarantined_and_the_result_names_them():
    x = np.random.default_rng(0).normal(size=(7, 40))
    x[0] = 1e6
    with bz.Aggregator(bz.MultiKrum(2)).round(seed=3) as r:
        for client, row in enumerate(x[:6]):
            r.add(row, client)
        r.fail(6, "the app crashed\x1b[2J" + "!" * 10_000)
        with pytest.raises(ValueError, match="failed in this round already"):
            r.add(x[6], 6)
        with pytest.raises(ValueError, match="has sent an update in this round already"):
            r.fail(0, "late")
        out = r.close()
    assert (out.clients, out.n_byzantine, list(out.failed)) == (tuple(range(6)), 1, [6])
    assert len(out.failed[6]) <= 500
    assert out.failed[6].isprintable()
    assert r.failed == out.failed
    assert "1 failed" in repr(out)
    np.testing.assert_array_equal(out.weights, bz.aggregate(x[:6], bz.MultiKrum(1)).weights)
    assert not out.weights[0]


@pytest.mark.parametrize("bad", [np.full(3, np.nan), "text"], ids=["NaN", "text"])
@pytest.mark.parametrize("sketch", [bz.Exact(), bz.Rotated(k=64)], ids=repr)
def test_a_round_without_any_usable_update_tells_counts_and_reasons(bad, sketch):
    with bz.Aggregator(bz.Krum(1), sketch).round() as r:
        for client in "abc":
            r.add(bad, client)
        r.fail("d", "gone")
        with pytest.raises(bz.TooFewClientsError, match=r"^4 of 4 .* are out \(3 quarantined, 1 failed\)") as error:
            r.close()
    assert (set(error.value.quarantined), set(error.value.failed)) == (set("abc"), {"d"})
    with pytest.raises(bz.TooFewClientsError, match=r"^3 of 3 clients are out \(3 quarantined, 0 failed\)"):
        bz.aggregate([bad] * 3, bz.Krum(1), sketch=sketch)


def test_too_many_failures_refuse_the_round_which_stays_open():
    x = np.random.default_rng(0).normal(size=(5, 40))
    with bz.Aggregator(bz.MultiKrum(2)).round() as r:
        r.fail("a", "no answer within 60 s")
        said = r"1 of 1 clients are out \(0 quarantined, 1 failed\): .* Failed: client a: no answer"
        with pytest.raises(bz.TooFewClientsError, match=said):
            r.close()
        for client, row in zip("bcdef", x, strict=True):
            r.add(row, client)
        r.fail("g", "no answer within 60 s")
        assert r.close().n_byzantine == 1


def test_a_round_of_a_killed_server_is_found_again_in_its_folder(tmp_path):
    aggregator, updates = bz.Aggregator(bz.GeometricMedian(), bz.Rotated(k=64)), state_dicts()
    killed = aggregator.round(folder=tmp_path)
    for m in range(5):
        killed.add(updates[m], m, size=m + 1)
    assert "wanted texts or numbers for keys" in killed.add({frozenset(): np.ones(3)}, 7)
    with pytest.raises(TypeError, match="must be a text or a whole number with folder="):
        killed.add(updates[0], (1, 2))
    killed._folder.close()  # as if its process had ended: nothing of it is used again
    with aggregator.round(3, folder=tmp_path, recheck=False) as r:
        assert r.clients == (0, 1, 2, 3, 4)
        with pytest.raises(ValueError, match="already"):
            r.add(updates[0], 0)
        for m in range(5, M):
            r.add(updates[m], m, size=m + 1)
        out = r.close()
    same = aggregator(updates, seed=3, sizes=np.arange(1.0, M + 1))
    np.testing.assert_array_equal(out.weights, same.weights)
    assert all(torch.equal(out.update[name], same.update[name]) for name in same.update)
    with aggregator.round(folder=tmp_path) as r:
        assert not len(r)
        r.add(updates[0], 0)
        r.close()
    assert not list(tmp_path.iterdir())


def test_a_round_that_is_left_without_being_closed_keeps_its_folder(tmp_path):
    with bz.Aggregator(bz.Mean()).round(folder=tmp_path) as r:
        r.add([1.0, 2.0], "amy")
    with bz.Aggregator(bz.Mean()).round(folder=tmp_path) as r:
        assert r.close().update.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("points", [{}, {"reference": [np.zeros(3, "float32")]}])
def test_kernels_are_loaded_before_the_first_client_comes(points, monkeypatch):
    load_kernels.cache_clear()
    measured, measure = [], bz.Rotated.measure
    monkeypatch.setattr(bz.Rotated, "measure", lambda self, *args: measured.append(args) or measure(self, *args))
    with bz.Aggregator(bz.Krum(1)).round(**points):
        assert len(measured) == 1
