"""Clients divided among workers: the result is that of one call, and only sketches and sums travel."""

from __future__ import annotations

import errno
import io
import pickle
import re
import weakref
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

import bartizan as bz
from bartizan import attacks, partitioned
from bartizan.errors import LostClients
from bartizan.partitioned import WorkerError
from bartizan.rules.coordinatewise import Median
from bartizan.sources.partitioned import opening, steps, workers
from bartizan.updates.files import create_update, open_update
from bartizan.updates.layout import leaves_of
from object_server import ObjectServer
from rule_cases import CASES

SEED, M, P = 11, 17, 1003
CUTS = {"one part": [], "three": [6, 11], "one client and none": [1, 1, 9], "an empty end": [5, 17]}
CUTS["a tree of seven"] = [2, 3, 6, 8, 11, 14]
SMALL = bz.Rotated(64, mixing=8)
COLUMNS = [Median(), bz.NNM(2) >> Median(), bz.NormFilter() >> (bz.ARC(1) >> bz.Bulyan(1, trim=True))]


class Pickling(workers.LocalWorkers):
    """As in other processes: nothing goes up or down but as a pickle, whose bytes are counted."""

    def __init__(self, parts):
        super().__init__(parts)
        self.down, self.up, self.tampered = 0, 0, lambda answer: answer

    def submit(self, step, calls):
        return [self._called(step, *arguments) for arguments in calls]

    def _called(self, step, part, *rest):
        sent = pickle.dumps(rest)
        answer = pickle.dumps(step(part, *pickle.loads(sent)))
        self.down, self.up = self.down + len(sent), self.up + len(answer)
        return self.tampered(pickle.loads(answer))


@pytest.fixture
def pickling(monkeypatch):
    made = []

    def workers_of(engine, parts, timeout):
        made.append(Pickling(parts))
        return made[-1]

    monkeypatch.setattr("bartizan.sources.partitioned.partitioned.workers_of", workers_of)
    return made


def numbers(dtype=np.float32, p=P):
    x = np.random.default_rng(3).normal(1, 1, size=(M, p)).astype(dtype)
    x[:2] *= -40
    x[4, 7], x[12, -1] = np.nan, np.inf
    return x


def cut(updates, at):
    return [updates[low:high] for low, high in zip([0, *at], [*at, M], strict=True)]


def same(out, flat, rtol=1e-6):
    """Weights, scores and reasons to the bit; the update up to the rounding of the workers' sums."""
    assert out.quarantined == flat.quarantined
    for name in ("weights", "scores"):
        assert (getattr(out, name) is None) == (getattr(flat, name) is None)
        if getattr(flat, name) is not None:
            np.testing.assert_array_equal(getattr(out, name), getattr(flat, name))
    assert (out.seed, out.sketch, out.clients) == (flat.seed, flat.sketch, flat.clients)
    assert (out.history, out.n_byzantine) == (flat.history, flat.n_byzantine)
    mine, theirs = leaves_of(out.update), leaves_of(flat.update)
    assert list(mine) == list(theirs)
    assert type(out.update) is type(flat.update)
    for path, leaf in theirs.items():
        assert mine[path].dtype == leaf.dtype
        assert type(mine[path]) is type(leaf)
        np.testing.assert_allclose(mine[path], leaf, rtol=rtol, atol=rtol * max(np.abs(np.asarray(leaf)).max(), 1))


@pytest.mark.parametrize("rule", [case.rule for case in CASES], ids=repr)
def test_the_result_is_that_of_one_call(pickling, rule):
    x = numbers()
    given = {"reference": 0.1 * x[9], "trusted": x[5:11].mean(axis=0), "sizes": np.arange(1.0, M + 1), "seed": SEED}
    given["sketch"] = SMALL if rule.needs_distances else "auto"
    same(partitioned.aggregate(cut(x, CUTS["three"]), rule, **given), bz.aggregate(x, rule, **given))


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("sketch", [bz.Rotated(), bz.Gaussian(24), bz.Achlioptas(24, s=3)], ids=repr)
def test_so_it_is_with_every_sketch_and_division(pickling, cuts, sketch):
    x, rule = numbers(np.float64), bz.NNM(2) >> bz.GeometricMedian()
    flat = bz.aggregate(x, rule, sketch=sketch, seed=SEED)
    same(partitioned.aggregate(cut(x, CUTS[cuts]), rule, sketch=sketch, seed=SEED), flat, 1e-13)
    assert set(flat.quarantined) == {4, 12}


@pytest.mark.parametrize("rule", [bz.GeometricMedian(), bz.CGE(2)], ids=repr)
def test_clients_of_other_layouts_leave_as_in_one_call(pickling, rule):
    """One part holds mostly another layout, one the common layout in another order, and some clients none."""
    x, sketch = numbers(), SMALL
    x[12, -1] = 1
    updates = [OrderedDict(a=row[:500].reshape(5, 100), n=np.array([m]), b=row[500:]) for m, row in enumerate(x)]
    for m in (6, 7, 8):
        updates[m] = {"a": x[m]}
    for m in (9, 11, 13, 14, 15, 16):
        updates[m] = OrderedDict(reversed(updates[m].items()))
    updates[1], updates[2], updates[3] = "nothing", {}, {**updates[3], "a": updates[3]["a"].astype("f8")}
    updates[16] = OrderedDict({**updates[16], "b": updates[16]["b"][:-1]})
    for reference in (None, {"b": 0.1 * x[9, 500:], "a": np.zeros((5, 100)), "n": np.array([3])}):
        flat = bz.aggregate(updates, rule, sketch=sketch, seed=SEED, reference=reference)
        out = partitioned.aggregate(cut(updates, [5, 10]), rule, sketch=sketch, seed=SEED, reference=reference)
        same(out, flat)
        assert len(flat.quarantined) == 8


def test_a_reference_that_no_client_fits_and_parts_without_usable_clients_are_errors_of_the_caller(pickling):
    x = numbers()
    with pytest.raises(ValueError, match="No client's update has the names and shapes of the reference"):
        partitioned.aggregate(cut(x, [6]), bz.Mean(), reference=np.zeros(4))
    with pytest.raises(bz.TooFewClientsError, match="3 of 3 clients are out"):
        partitioned.aggregate([["a"], [{}, "b"]], bz.Mean())
    with pytest.raises(ValueError, match="no floating-point numbers"):
        partitioned.aggregate([[np.arange(3)], [np.arange(3)]], bz.Mean())
    with pytest.raises(bz.TooFewClientsError):
        partitioned.aggregate([[], []], bz.Mean())
    with pytest.raises(bz.BadClientError, match="client 4"):
        partitioned.aggregate(cut(x, [6]), bz.Krum(2), sketch=SMALL, strict=True)
    with pytest.raises(ValueError, match=r"Exact\(\) would send every update to every worker. Use a projection"):
        partitioned.aggregate(cut(x, [6]), bz.Krum(2), sketch="exact")
    with pytest.raises(ValueError, match="sizes must be 17 positive numbers"):
        partitioned.aggregate(cut(x, [6]), bz.Mean(), sizes=[1, 2])
    with pytest.raises(TypeError, match="engine must be None, a Dask Client, 'ray' or"):
        workers.workers_of("spark", [x], 1)


@pytest.mark.parametrize("rule", COLUMNS, ids=repr)
def test_rules_that_end_coordinate_wise_are_refused_before_a_worker_begins(rule):
    def never():
        raise AssertionError("a worker has begun")

    with pytest.raises(ValueError, match=r"ends coordinate-wise.* columns \(bartizan\.distributed\), or end with"):
        partitioned.aggregate([never], rule)


def test_so_are_those_that_tell_it_only_by_their_decision():
    class Silent(bz.Bulyan):
        def ends_coordinate_wise(self):
            return False

    with pytest.raises(ValueError, match="ends coordinate-wise"):
        partitioned.aggregate([list(numbers())], Silent(2, trim=True), sketch=SMALL)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("distributed.client", "parts holds Dask futures.*: pass engine=client, the Dask Client"),
        ("ray", "parts holds Ray object references.*: pass engine='ray'"),
    ],
)
def test_futures_without_their_engine_are_an_error_that_names_it(module, message):
    future = type("Future", (), {"__module__": module})()
    for parts in ([future], [[np.ones(3)], [future, future]]):
        with pytest.raises(TypeError, match=message):
            partitioned.aggregate(parts, bz.Mean())


def test_clients_that_hardly_differ_and_tiny_ones_are_read_once_more(pickling):
    rng = np.random.default_rng(0)
    for x in (rng.normal(size=(M, P)) + 3e6, 1e-170 * rng.normal(size=(M, P))):
        for reference in (None, x[3] * 0.5):
            given = {"sketch": SMALL, "seed": SEED, "reference": reference}
            flat = bz.aggregate(x, bz.GeometricMedian(), **given)
            same(partitioned.aggregate(cut(x, [6, 11]), bz.GeometricMedian(), **given), flat, 1e-12)
            assert flat.weights.max() < 0.2


@pytest.mark.parametrize("rule", [bz.GeometricMedian(), bz.MultiKrum(3)], ids=repr)
def test_a_recheck_finds_who_knew_the_seed(pickling, rule):
    honest = np.random.default_rng(0).normal(size=(M - 3, 5000))
    sketch = bz.Rotated(64, mixing=16)
    hidden = attacks.null_space(honest, 3, np.random.default_rng(1), sketch=sketch, leaked_seed=SEED)
    x = np.concatenate([hidden, honest])
    out = partitioned.aggregate(cut(x, [6, 11]), rule, sketch=sketch, seed=SEED, recheck=True)
    with bz.Aggregator(rule, sketch).round(SEED) as r:
        for client, update in enumerate(x):
            r.add(update, client)
        known = r.close()
    assert set(out.quarantined) == set(known.quarantined)
    assert out.weights[:3].sum() == pytest.approx(0, abs=1e-2)
    assert out.recheck_seed is not None


def test_workers_open_paths_and_functions_a_few_at_a_time(pickling, tmp_path, monkeypatch):
    x, rule, alive, most = numbers(), bz.GeometricMedian(), set(), []
    monkeypatch.setattr(opening, "HELD_BYTES", 3 * x[0].nbytes)

    def opened(client):
        update = x[client].copy()
        alive.add(client)
        weakref.finalize(update, alive.discard, client)
        most.append(len(alive))
        return update

    paths = []
    for m in range(6):
        paths.append(tmp_path / f"{m}.npy")
        with create_update(paths[-1], x[m]) as file:
            file[...] = x[m]
    paths[3] = tmp_path / "missing.npy"
    parts = [paths, [lambda m=m: opened(m) for m in range(6, M)]]
    out = partitioned.aggregate(parts, rule, sketch=SMALL, seed=SEED)
    flat = bz.aggregate([*paths, *x[6:]], rule, sketch=SMALL, seed=SEED)
    same(out, flat)
    assert max(most) == 4  # three, and the one that was too many
    assert "missing.npy" in out.quarantined[3]


def test_a_request_of_a_worker_to_a_store_has_a_time_limit(pickling):
    pytest.importorskip("aiohttp")
    x, buffer = numbers(), io.BytesIO()
    np.save(buffer, x[6])
    with ObjectServer() as server:
        slow = server.put("/slow.npy", buffer.getvalue())
        server.faults["/slow.npy"] = "slow", 0  # each answer stops half way
        out = partitioned.aggregate([list(x[:6]), [slow, *x[7:]]], bz.GeometricMedian(), sketch=SMALL, timeout=0.5)
    assert list(out.quarantined) == [4, 6, 12]
    assert "no answer in 0.5 s" in out.quarantined[6]


class Rereading:
    """Functions that open the clients' updates; some clients send something else at some of their readings."""

    def __init__(self, x, changes):
        self.x, self.changes, self.reads = x, changes, dict.fromkeys(range(len(x)), 0)

    def __call__(self, client):
        self.reads[client] += 1
        answer = self.changes.get(client, {}).get(self.reads[client], self.x[client])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def parts(self):
        functions = [lambda m=m: self(m) for m in range(len(self.x))]
        return [list(self.x[:5]), functions[5:]]


@pytest.mark.parametrize("shift", [0, 3e6])  # by which distances are short of digits, and clients read once more
@pytest.mark.parametrize("rule", [bz.GeometricMedian(), bz.Bulyan(2)], ids=repr)
def test_a_client_that_is_another_one_when_it_is_read_again_is_quarantined(pickling, rule, shift):
    x = np.random.default_rng(3).normal(shift, size=(M, P))
    to_sum = 4 if shift else 2  # clients are read thrice before they are summed if digits are short
    changes = {8: {to_sum: -x[8]}, 9: dict.fromkeys(range(2, 9), OSError("gone"))}  # of the same norm, and none
    out = partitioned.aggregate(Rereading(x, changes).parts(), rule, sketch=SMALL, seed=SEED)
    left = [m for m in range(M) if m not in (8, 9)]
    flat = bz.aggregate([x[m] if m in left else np.full(P, np.nan) for m in range(M)], rule, sketch=SMALL, seed=SEED)
    np.testing.assert_array_equal(out.weights, flat.weights)
    np.testing.assert_allclose(out.update, flat.update, rtol=1e-12, atol=1e-12)
    assert "changed between sketching and summing" in out.quarantined[8]
    assert "gone" in out.quarantined[9]
    with pytest.raises(bz.BadClientError, match="client 9" if shift else "client 8"):
        partitioned.aggregate(Rereading(x, changes).parts(), rule, sketch=SMALL, seed=SEED, strict=True)


def medoid_of(x):
    D = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    return int(np.argsort(np.sort(D, axis=1)[:, len(x) // 2])[0])


@pytest.mark.parametrize("sent", [np.full(P, np.nan), np.full(P, 1e30), OSError("gone"), np.zeros(3)], ids=type)
def test_a_client_that_changes_when_others_are_measured_from_it_is_quarantined(pickling, sent):
    x = np.random.default_rng(3).normal(3e6, size=(M, P))  # so that distances are short of digits
    x[6:] = x[6:][np.argsort(np.abs(x[6:] - x.mean(axis=0)).sum(axis=1))]
    x[8] = x.mean(axis=0)  # the medoid, whose row is sent to all workers
    assert medoid_of(x) == 8
    given = {"sketch": SMALL, "seed": SEED}
    out = partitioned.aggregate(Rereading(x, {8: {2: sent}}).parts(), bz.Krum(2), **given)
    assert list(out.quarantined) == [8]
    x[8] = np.nan
    flat = bz.aggregate(x, bz.Krum(2), **given)
    np.testing.assert_array_equal(out.weights, flat.weights)
    np.testing.assert_array_equal(out.update, flat.update)


def test_a_client_that_is_honest_only_at_the_second_measurement_has_no_weight(pickling):
    x = np.random.default_rng(3).normal(3e6, size=(M, P))
    honest, x[8] = x[8].copy(), x[8] + 50  # far from all others, and yet short of digits
    reading = Rereading(x, {8: {2: honest}})
    out = partitioned.aggregate(reading.parts(), bz.GeometricMedian(), sketch=SMALL, seed=SEED)
    assert reading.reads[8] == 2
    assert out.quarantined == {8: steps.CHANGED}
    assert out.update.mean() == pytest.approx(3e6, abs=1)


@pytest.mark.parametrize("sent", ["NaN", "honest"])
def test_a_client_that_changes_for_the_recheck_is_quarantined(pickling, sent):
    honest, sketch = np.random.default_rng(0).normal(size=(M - 1, 5000)), bz.Rotated(64, mixing=16)
    hidden = attacks.null_space(honest, 1, np.random.default_rng(1), sketch=sketch, leaked_seed=SEED)[0]
    x = np.insert(honest, 7, hidden, axis=0)
    reading = Rereading(x, {7: {2: honest[0] if sent == "honest" else np.full(5000, np.nan)}})
    out = partitioned.aggregate(reading.parts(), bz.GeometricMedian(), sketch=sketch, seed=SEED, recheck=True)
    assert reading.reads[7] == 2
    assert out.quarantined == {7: steps.CHANGED}
    assert np.abs(out.update).max() < 5


@pytest.mark.parametrize("strict", [False, True])
def test_a_client_that_changes_before_the_layout_is_agreed_is_quarantined(pickling, strict):
    x = np.random.default_rng(3).normal(size=(M, P))
    reading = Rereading(x, {6: {2: OSError("gone")}, 7: {2: np.zeros(3)}})
    # Most of the second part sent another layout, so that its other clients are read once more.
    parts = [list(x[:5]), [*(np.zeros(2) for _ in range(4)), *(lambda m=m: reading(m) for m in (5, 6, 7))], list(x[8:])]
    given = {"sketch": SMALL, "seed": SEED, "strict": strict}
    if strict:
        with pytest.raises(bz.BadClientError, match="client 5: wanted"):
            partitioned.aggregate(parts, bz.GeometricMedian(), **given)
        parts[1] = parts[1][4:]
        reading.reads.update({5: 0, 6: 1, 7: 1})
        with pytest.raises(bz.BadClientError, match=r"client 6: .*gone"):
            partitioned.aggregate(parts, bz.GeometricMedian(), **given)
        return
    out = partitioned.aggregate(parts, bz.GeometricMedian(), **given)
    assert list(out.quarantined) == [5, 6, 7, 8, 10, 11]
    assert "gone" in out.quarantined[10]
    np.testing.assert_allclose(out.update, x[[m for m in range(M) if m not in (6, 7)]].mean(axis=0), atol=2)


# A fault of the server is never a client's.


def test_a_memory_budget_that_is_too_small_is_no_fault_of_a_client(pickling):
    parts = [[lambda row=row: row for row in part] for part in cut(numbers(), [6])]
    for rule, sketch in ((bz.GeometricMedian(), SMALL), (bz.Mean(), "auto")):
        with pytest.raises(ValueError, match="memory=1 MiB is too little: at least"):
            partitioned.aggregate(parts, rule, sketch=sketch, memory="1 MiB")
    with pytest.raises(ValueError, match="memory must be a number of bytes"):
        partitioned.aggregate(parts, bz.Mean(), memory="much")


def test_workers_set_no_memory_aside_for_distances(pickling):
    x = np.random.default_rng(0).normal(size=(2000, 10))
    for rule in (bz.Mean(), bz.CGE(3)):  # 2000 squared are 512 MB of distances
        out = partitioned.aggregate([x], rule, memory="128 MiB")
        np.testing.assert_array_equal(out.weights, bz.aggregate(x, rule).weights)


class Raising(dict):
    """A client's container whose methods raise."""

    def __init__(self, error):
        super().__init__(w=np.zeros(P))
        self.error = error

    def items(self):
        raise self.error

    keys = values = __iter__ = items


@pytest.mark.parametrize(
    "error",
    [WorkerError("no"), LostClients({0: "no"}), ValueError("no"), MemoryError("no"), OSError(errno.EMFILE, "no")],
    ids=type,
)
def test_what_a_clients_container_raises_is_the_clients_fault_and_what_opening_lacks_the_workers(error):
    x = np.random.default_rng(3).normal(size=(M, P))

    def failing():
        raise error

    for sent in (Raising(error), lambda: Raising(error)):
        out = partitioned.aggregate([[*x[:5], sent], list(x[6:])], bz.GeometricMedian(), sketch=SMALL)
        assert list(out.quarantined) == [5]
    if isinstance(error, (MemoryError, OSError)):
        with pytest.raises(WorkerError, match=r"client 5 of the part can't be opened: .*no\. Give this worker"):
            partitioned.aggregate([[*x[:5], failing], list(x[6:])], bz.GeometricMedian(), sketch=SMALL)
    else:
        out = partitioned.aggregate([[*x[:5], failing], list(x[6:])], bz.GeometricMedian(), sketch=SMALL)
        assert list(out.quarantined) == [5]


def test_a_client_that_claims_to_be_larger_than_memory_is_quarantined(pickling, tmp_path):
    x = np.random.default_rng(3).normal(size=(M, P)).astype(np.float32)
    with create_update(tmp_path / "huge.npy", np.zeros(1)) as file:
        file[...] = 1
    head = (tmp_path / "huge.npy").read_bytes()[:-8].replace(b"(1,), }            ", b"(1099511627776,), }")
    (tmp_path / "huge.npy").write_bytes(head)
    with open(tmp_path / "huge.npy", "r+b") as file:
        try:
            file.truncate(len(head) + 8 * 2**40)
        except OSError:
            pytest.skip("this file system has no sparse files of 8 TiB")
    parts = [[*x[:5], tmp_path / "huge.npy"], list(x[6:])]
    out = partitioned.aggregate(parts, bz.GeometricMedian(), sketch=SMALL, seed=SEED)
    assert list(out.quarantined) == [5]


@pytest.mark.parametrize("scale", [0, 1e-30, 1e-170])
@pytest.mark.parametrize("rule", [bz.FLTrust(), bz.GeometricMedian(), bz.CenteredClipping(1.0), bz.CGE(2)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_trusted_update_beside_zero_or_tiny_clients(pickling, scale, rule, dtype):
    x = (scale * np.random.default_rng(3).normal(size=(M, P))).astype(dtype)
    for trusted in (np.ones(P), x[3]):
        given = {"sketch": SMALL if rule.needs_distances else "auto", "seed": SEED, "trusted": trusted}
        try:
            flat = bz.aggregate(x, rule, **given)
        except ValueError as refused:
            with pytest.raises(ValueError, match=re.escape(str(refused))):
                partitioned.aggregate(cut(x, CUTS["three"]), rule, **given)
        else:
            same(partitioned.aggregate(cut(x, CUTS["three"]), rule, **given), flat)


def test_a_client_without_weight_has_no_say_in_the_container(pickling):
    x = np.random.default_rng(3).normal(size=(5, P))
    honest = [OrderedDict(w=x[0]), OrderedDict(w=x[1]), {"w": x[2]}, {"w": x[3]}]
    for attacker in ({"w": x[4] + 1e6}, OrderedDict(w=x[4] + 1e6), {"w": np.full(P, np.nan)}, None):
        out = partitioned.aggregate([[attacker, *honest[:2]], honest[2:]], bz.MultiKrum(1), sketch=SMALL, seed=SEED)
        assert out.weights[0] == 0 if 0 not in out.quarantined else True
        assert type(out.update) is OrderedDict


def test_the_update_goes_into_arrays_or_into_a_file(pickling, tmp_path):
    x, flat = numbers(), bz.aggregate(numbers(), bz.GeometricMedian(), sketch=SMALL, seed=SEED).update
    given = {"sketch": SMALL, "seed": SEED}
    own = np.empty(P, np.float32)
    assert partitioned.aggregate(cut(x, [6]), bz.GeometricMedian(), out=own, **given).update is own
    there = partitioned.aggregate(cut(x, [6]), bz.GeometricMedian(), out=tmp_path / "next.npy", **given).update
    for update in (own, there, open_update(tmp_path / "next.npy")):
        np.testing.assert_allclose(update, flat, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="out must have the names, shapes and dtypes"):
        partitioned.aggregate(cut(x, [6]), bz.GeometricMedian(), out=np.empty(3), **given)
    for wrong in ("next.npy", "workers"):
        with pytest.raises(ValueError, match="out must be like a client's update"):
            partitioned.aggregate(cut(x, [6]), bz.GeometricMedian(), out=wrong, **given)


def test_sketches_go_up_weights_go_down_and_one_sum_a_part_comes_back(pickling):
    x, k = np.random.default_rng(3).normal(size=(M, 200_000)).astype(np.float32), 4096
    partitioned.aggregate([list(part) for part in cut(x, [6, 11])], bz.GeometricMedian(), sketch=bz.Rotated(k))
    (counted,) = pickling
    sketches, sums = 8 * M * (k + 1), 4 * 3 * x.shape[1]
    assert sketches + sums < counted.up < sketches + sums + 3 * 2000 + 200 * M
    assert counted.down < 3 * 2000 + 200 * M


def test_workers_of_another_version_are_named(monkeypatch):
    def workers_of(engine, parts, timeout):
        made = Pickling(parts)
        made.tampered = lambda answer: replace(answer, version="0.0")
        return made

    monkeypatch.setattr("bartizan.sources.partitioned.partitioned.workers_of", workers_of)
    with pytest.raises(
        WorkerError, match=r"part 0: its worker runs bartizan 0\.0 and this process .* install the same"
    ):
        partitioned.aggregate(cut(numbers(), [6]), bz.GeometricMedian(), sketch=SMALL)


def test_a_rule_may_be_given_by_its_name_or_by_n_byzantine_alone(pickling):
    x = numbers()
    for rule, given in (("geometric-median", {}), (None, {"n_byzantine": 3})):
        out = partitioned.aggregate([x[:9], x[9:]], rule, seed=SEED, **given)
        same(out, bz.aggregate(x, rule, sketch=bz.Rotated(), seed=SEED, **given))
    with pytest.raises(TypeError, match="rule='krum' needs settings"):
        partitioned.aggregate([x[:9], x[9:]], "krum")
