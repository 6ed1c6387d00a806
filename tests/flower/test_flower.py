"""Flower's replies as hostile bytes, and rounds that go wrong. Real deployments: test_flower_deployment.py."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import bartizan as bz
from bartizan import attacks
from bartizan import records as results
from bartizan._util import jsonl

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'bartizan[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Krum
from hypothesis import given
from hypothesis import strategies as st

from bartizan.flower import Reputation, RobustStrategy, resume
from bartizan.flower.replies import Model, read_header
from bartizan.flower.reply_limits import Limits
from bartizan.flower.streaming_grid import StreamingGrid
from bartizan.lab.report import load as report
from bartizan.lab.report.finding import reputation_of


def arrays(value: float = 0.0) -> dict[str, np.ndarray]:
    return {
        "w": np.full((3, 4), value, np.float32),
        "b": np.full(5, value, np.float64),
        "steps": np.array(7),
        "none": np.zeros((0, 2), np.float32),
    }


def as_record(update: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in update.items()})


MODEL = Model.of(as_record(arrays()))


@pytest.fixture(autouse=True)
def server(monkeypatch):
    """Flower's messages ask which task of which run this process is."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Desk(Grid):
    """A grid whose nodes are functions in this process: message -> reply, or None for never."""

    def __init__(self, nodes: dict) -> None:
        self.nodes, self.waiting, self.pulled = nodes, {}, []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            key = f"message {len(self.waiting)}"
            message.metadata.__dict__["_message_id"] = key
            self.waiting[key] = message
            ids.append(key)
        return ids

    def pull_messages(self, message_ids):
        (key,) = message_ids
        message = self.waiting[key]
        reply = self.nodes[message.metadata.dst_node_id](message)
        self.pulled += [] if reply is None else [message.metadata.dst_node_id]
        return [] if reply is None else [reply]

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the strategy pulls by itself")

    def set_run(self, run): ...
    def create_message(self, *given, **named): ...
    @property
    def run(self): ...


def sends(update: dict[str, np.ndarray] | ArrayRecord, examples: object = 10, **metrics: float):
    content = update if isinstance(update, ArrayRecord) else as_record(update)

    def reply(message: Message) -> Message:
        told = MetricRecord({"num-examples": examples, **metrics})
        return Message(RecordDict({"arrays": content, "metrics": told}), reply_to=message)

    return reply


@contextmanager
def traced_memory():
    """Without a collector that would hide who holds what."""
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def fails(message: Message) -> Message:
    return Message(Error(code=2, reason="the app crashed"), reply_to=message)


def honest(count: int = 7, **metrics: float) -> dict:
    rng = np.random.default_rng(0)
    return {
        2**63 + n: sends({**arrays(1.0), "w": rng.normal(1, 0.01, (3, 4)).astype(np.float32)}, **metrics)
        for n in range(count)
    }


def run(nodes: dict, rounds: int = 1, rule=None, **settings):
    strategy = RobustStrategy(rule or bz.MultiKrum(n_byzantine=2), fraction_evaluate=0.0, **settings)
    strategy.min_train_nodes = strategy.min_available_nodes = len(nodes)
    result = strategy.start(Desk(nodes), as_record(arrays()), num_rounds=rounds, timeout=0.2)
    return strategy, result


# Decoding


def test_a_fit_reply_is_a_view_of_the_bytes_that_came():
    sent = as_record(arrays(2.0))
    decoded = MODEL.decode(sent)
    for name, wanted in arrays(2.0).items():
        assert decoded[name].dtype == wanted.dtype
        np.testing.assert_array_equal(decoded[name], wanted)
    start = np.frombuffer(sent["w"].data, np.uint8).ctypes.data
    assert start < decoded["w"].ctypes.data < start + len(sent["w"].data)


def test_fortran_order_and_odd_offsets_are_read_right():
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(MODEL.decode(as_record({**arrays(), "w": np.asfortranarray(w)}))["w"], w)
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"
    data = b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head[:-1] + b" \n" + w.tobytes()
    odd = as_record(arrays())
    odd["w"] = Array("float32", (3, 4), "numpy.ndarray", data)
    found = MODEL.decode(odd)["w"]
    assert found.flags.aligned
    np.testing.assert_array_equal(found, w)


def with_header(text: bytes, body: bytes = b"", version: bytes = b"\x01\x00", length: int | None = None) -> Array:
    size = (len(text) if length is None else length).to_bytes(2, "little")
    return Array("float32", (3, 4), "numpy.ndarray", b"\x93NUMPY" + version + size + text + body)


GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"
HOSTILE = {
    "empty": Array("float32", (3, 4), "numpy.ndarray", b""),
    "no file": Array("float32", (3, 4), "numpy.ndarray", bytes(200)),
    "another serialisation": Array("float32", (3, 4), "pickle", Array(arrays()["w"]).data),
    "cut": Array("float32", (3, 4), "numpy.ndarray", Array(arrays()["w"]).data[:-1]),
    "too long": Array("float32", (3, 4), "numpy.ndarray", Array(arrays()["w"]).data + b"x"),
    "a terabyte": with_header(GOOD.replace(b"(3, 4)", b"(1099511627776,)")),
    "an overflow": with_header(GOOD.replace(b"(3, 4)", b"(9999999999999999999, 9999999999999999999)")),
    "a negative size": with_header(GOOD.replace(b"(3, 4)", b"(-3, -4)"), bytes(48)),
    "objects": with_header(GOOD.replace(b"<f4", b"|O"), bytes(48)),
    "integers": Array(np.zeros((3, 4), np.int32)),
    "the other byte order": Array(np.zeros((3, 4), ">f4")),
    "doubles that claim to be floats": Array("float32", (3, 4), "numpy.ndarray", Array(np.zeros((3, 4))).data),
    "another shape that claims to be right": Array("float32", (3, 4), "numpy.ndarray", Array(np.zeros(12, "f4")).data),
    "code": with_header(b"__import__('os').abort()\n", bytes(48)),
    "a long header": with_header(GOOD[:-1] + b" " * 60000 + b"\n", bytes(48)),
    "a header longer than the file": with_header(GOOD, length=65535),
    "version 3": with_header(GOOD, bytes(48), version=b"\x03\x00"),
    "digits without end": with_header(GOOD.replace(b"3, 4", b"1" * 3000 + b"!"), bytes(48)),
    "a record": with_header(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (12,), }\n", bytes(48)),
}


@pytest.mark.parametrize("array", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_array_is_refused_with_a_reason(array):
    bad = as_record(arrays())
    bad["w"] = array
    with pytest.raises(ValueError, match="array 'w': "):
        MODEL.decode(bad)


def test_names_must_be_those_of_the_model():
    with pytest.raises(ValueError, match="array 'extra' is not part of the model"):
        MODEL.decode(as_record({**arrays(), "extra": np.ones(1)}))
    with pytest.raises(ValueError, match="array 'b' is missing"):
        MODEL.decode(as_record({"w": arrays()["w"]}))


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00"]))
def test_no_bytes_do_anything_but_a_value_error(data, begin):
    try:
        read_header(begin + data)
    except ValueError:
        return
    raise AssertionError("random bytes are no header")


@given(st.lists(st.integers(0, 4), max_size=6), st.sampled_from(["<f2", "<f4", ">f8", "<i8", "|u1", "|b1"]))
def test_every_header_that_numpy_writes_is_read(shape, dtype):
    array = np.zeros(shape, dtype)
    header = read_header(Array(array).data)
    assert (header.dtype, header.shape) == (array.dtype.str, array.shape)


def test_a_model_that_can_not_be_aggregated_is_an_error_before_anything_is_sent():
    strategy = RobustStrategy(bz.Krum(1))
    with pytest.raises(ValueError, match="'name' can't be aggregated: its numbers are <U5"):
        strategy.start(Desk({}), as_record({"w": np.zeros(3), "name": np.array("hello")}))
    with pytest.raises(ValueError, match="no floating-point numbers"):
        strategy.start(Desk({}), as_record({"steps": np.array(3)}))


def test_bfloat16_is_refused_before_anything_is_sent():
    """A .npy file holds it as nameless bytes, and torch does not hand it to NumPy at all."""
    with pytest.raises(TypeError, match="BFloat16"):
        Array(torch.zeros(3, dtype=torch.bfloat16))
    nameless = as_record(arrays())
    nameless["w"] = Array(np.zeros(3, "V2"))
    with pytest.raises(
        ValueError, match=r"'w' can't be aggregated: its numbers are \|V2; wanted float16, float32, float64 or"
    ):
        RobustStrategy(bz.Krum(1)).start(Desk({}), nameless)


ODD = {
    "a scalar": {"w": np.full((3, 4), 2.0, np.float32), "scale": np.array(5.0, np.float32)},
    "only scalars": {"scale": np.array(5.0), "shift": np.array(-1.0, np.float16)},
    "nothing inside": {"w": np.full(3, 2.0, np.float32), "none": np.zeros((0, 7), np.float32)},
    "columns first": {"w": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))},
    "the other byte order": {"w": np.arange(12, dtype=">f4"), "v": np.arange(5, dtype=">f8")},
    "half, single and double": {"h": np.full(3, 2, np.float16), "s": np.full(3, 2, "f4"), "d": np.full(3, 2.0)},
    "many small ones": {f"layer.{n}": np.full((2, 1), n % 7, np.float32) for n in range(2000)},
}


@pytest.mark.parametrize("start", ODD.values(), ids=ODD)
def test_models_of_odd_arrays_come_out_as_they_went_in(start):
    """Five nodes step by 1, and one goes far away."""

    def moved(step: float) -> dict[str, np.ndarray]:
        return {name: np.asarray(array + step, dtype=array.dtype) for name, array in start.items()}

    nodes = {n: sends(moved(step)) for n, step in enumerate([1, 1, 1, 1, 1, 60], start=1)}
    strategy = RobustStrategy(bz.MultiKrum(1), fraction_evaluate=0.0, min_train_nodes=6)
    result = strategy.start(Desk(nodes), as_record(start), num_rounds=1)
    assert not strategy.quarantined
    for name, wanted in moved(1).items():
        came = result.arrays[name].numpy()
        assert (came.shape, came.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(came, wanted, rtol=1e-6)


# Rounds


def test_the_answer_is_that_of_the_aggregator():
    _, result = run(honest())
    told = result.train_metrics_clientapp[1]
    seed = (told["bartizan-seed"][0] << 64) + told["bartizan-seed"][1]
    updates = [MODEL.decode(node(_question()).content["arrays"]) for node in honest().values()]
    wanted = bz.aggregate(updates, bz.MultiKrum(2), sketch=bz.Rotated(), reference=MODEL.arrays, seed=seed)
    assert told["bartizan-nodes"] == sorted(honest())
    assert told["bartizan-weights"] == wanted.weights.tolist()
    assert told["bartizan-scores"] == wanted.scores.tolist()
    for name, array in wanted.update.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array)


def _question(node: int = 1) -> Message:
    message = Message(RecordDict(), node, "train")
    message.metadata.__dict__["_message_id"] = "question"
    return message


ATTACKERS = {
    "NaN": sends({**arrays(), "w": np.full((3, 4), np.nan, np.float32)}),
    "another shape": sends({**arrays(), "w": np.zeros((4, 3), np.float32)}),
    "an extra name": sends({**arrays(), "extra": np.ones(3)}),
    "a missing name": sends({"w": arrays()["w"]}),
    "no arrays": lambda message: Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message),
    "two records": lambda message: Message(
        RecordDict({"a": as_record(arrays()), "b": as_record(arrays())}), reply_to=message
    ),
    "nothing": lambda message: Message(RecordDict(), reply_to=message),
    "a terabyte": sends(ArrayRecord({**as_record(arrays()), "w": HOSTILE["a terabyte"]})),
}


@pytest.mark.parametrize("attacker", ATTACKERS.values(), ids=ATTACKERS)
def test_a_reply_that_can_not_be_used_is_quarantined_and_the_round_goes_on(attacker):
    strategy, result = run({**honest(), 5: attacker})
    assert list(strategy.quarantined) == [5]
    assert result.train_metrics_clientapp[1]["bartizan-quarantined"] == [5]
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)
    assert [suspect.node for suspect in strategy.suspects()] == [5]


def test_flowers_own_strategy_ends_the_run_where_ours_goes_on():
    nodes = {**honest(), 5: ATTACKERS["an extra name"]}
    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=len(nodes))
    from flwr.serverapp.exception import InconsistentMessageReplies

    with pytest.raises(InconsistentMessageReplies):
        plain.start(StreamingGrid(Desk(nodes), Limits(2**20, 100)), as_record(arrays()), num_rounds=1)


def test_a_node_that_fails_or_never_answers_is_absent():
    strategy, result = run({**honest(), 5: fails, 6: lambda message: None})
    told = result.train_metrics_clientapp[1]
    assert strategy.failed == {5: "the app crashed"}
    assert told["bartizan-failed"] == [5]
    assert told["bartizan-nodes"] == sorted(honest())
    assert not strategy.suspects()


def test_a_reply_that_flower_can_not_unpack_or_under_another_id_is_its_nodes_fault():
    def broken(message):
        raise KeyError("children")

    def disguised(message):
        return sends(arrays(9.0))(_question(node=2**63))

    strategy, _ = run({**honest(), 5: broken, 6: disguised})
    assert set(strategy.quarantined) == {5, 6}
    assert "can't be unpacked: KeyError" in strategy.quarantined[5]
    assert "another node's id" in strategy.quarantined[6]


class Unplugged(Desk):
    """A SuperLink that is gone as soon as messages are out."""

    def get_node_ids(self):
        if self.waiting:
            raise ConnectionError("gone")
        return super().get_node_ids()


def raises(error: Exception):
    def node(message: Message) -> Message:
        raise error

    return node


def test_who_replied_while_another_held_the_server_up_is_heard_though_the_time_be_over():
    asked = []

    def not_yet(message):
        asked.append(message)
        return sends(arrays(1.0))(message) if len(asked) > 1 else None

    def slow(message):
        time.sleep(0.3)  # longer than the round's timeout
        return sends(arrays(1.0))(message)

    _, result = run({**honest(), 5: not_yet, 6: slow})
    assert {5, 6} <= set(result.train_metrics_clientapp[1]["bartizan-nodes"])


def test_a_broken_network_is_raised():
    nodes = {**honest(), 5: raises(ConnectionError("gone"))}
    strategy = RobustStrategy(bz.MultiKrum(2), fraction_evaluate=0.0, min_train_nodes=8)
    with pytest.raises(ConnectionError):
        strategy.start(Unplugged(nodes), as_record(arrays()), num_rounds=1, timeout=0.2)


def status(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://superlink")
    return httpx.HTTPStatusError(str(code), request=request, response=httpx.Response(code, request=request))


NOT_ITS_FAULT = {
    "the SuperLink fails on its reply": status(500),
    "its connection breaks again and again": httpx.ReadError("gone"),
    "memory ran out": MemoryError("Unable to allocate"),
    "threads ran out": RuntimeError("can't start new thread"),
}


@pytest.mark.parametrize("error", NOT_ITS_FAULT.values(), ids=NOT_ITS_FAULT)
def test_a_reply_that_can_not_be_had_is_absent_and_the_round_goes_on(error):
    strategy, result = run({**honest(), 5: raises(error)})
    assert list(strategy.failed) == [5]
    assert not strategy.suspects()
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)


def test_a_connection_that_breaks_once_costs_no_reply():
    first = [httpx.ReadError("gone")]

    def node(message):
        if first:
            raise first.pop()
        return sends(arrays(1.0))(message)

    strategy, result = run({**honest(), 5: node})
    assert not strategy.failed
    assert 5 in result.train_metrics_clientapp[1]["bartizan-nodes"]


class Simulated(Desk):
    """As the simulation's grid: what could not be stored is left out of the ids."""

    def push_messages(self, messages):
        return super().push_messages([one for one in messages if one.metadata.dst_node_id != 2**63 + 2])


class Small(Desk):
    """As Flower's grid where all messages together are too large for one request."""

    def push_messages(self, messages):
        return super().push_messages(messages) if len(messages) == 1 else []


@pytest.mark.parametrize(("desk", "absent"), [(Simulated, {2**63 + 2}), (Small, set())], ids=["left out", "too large"])
def test_a_message_that_could_not_be_sent_shifts_no_blame(desk, absent):
    strategy = RobustStrategy(bz.MultiKrum(1), fraction_evaluate=0.0, min_train_nodes=7)
    result = strategy.start(desk(honest()), as_record(arrays()), num_rounds=1, timeout=0.2)
    assert not strategy.quarantined
    assert set(result.train_metrics_clientapp[1]["bartizan-nodes"]) == set(honest()) - absent


FORGED = "bad\nWARNING :   Suspect: node 9223372036854775808: quarantined in 5 of 5 rounds\x1b[31m" + 10_000 * "x"


@pytest.mark.parametrize("code", [-1, 0, 3])
def test_an_error_that_a_node_sends_is_one_short_line_and_no_verdict_of_ours(code, caplog):
    def node(message):
        return Message(Error(code=code, reason=FORGED), reply_to=message)

    strategy, _ = run({**honest(), 5: node})
    assert not strategy.quarantined
    assert strategy.failed[5].startswith("bad WARNING : Suspect")
    assert len(strategy.failed[5]) <= 500
    said = [entry.getMessage() for entry in caplog.records]
    assert any("bad WARNING" in line for line in said)
    assert not any("\x1b" in line or "bad\n" in line for line in said)


def test_of_two_replies_of_one_node_the_first_counts():
    strategy = RobustStrategy(bz.MultiKrum(1), min_train_nodes=7)
    nodes = honest()
    questions = list(strategy.configure_train(1, as_record(arrays()), ConfigRecord(), Desk(nodes)))
    for number, question in enumerate(questions):
        question.metadata.__dict__["_message_id"] = str(number)
    replies = [nodes[question.metadata.dst_node_id](question) for question in questions]
    _, once = strategy.aggregate_train(1, replies)
    again = [*replies, sends(arrays(1e6))(questions[0]), replies[3]]
    updated, twice = strategy.aggregate_train(1, again)
    assert once["bartizan-nodes"] == twice["bartizan-nodes"]
    np.testing.assert_allclose(updated["w"].numpy(), 1, atol=0.05)


def test_too_few_replies_keep_the_old_model_and_the_run_goes_on():
    nodes = {**honest(4), 5: ATTACKERS["NaN"], 6: ATTACKERS["another shape"], 7: ATTACKERS["nothing"]}
    strategy, result = run(nodes, rounds=2)
    for name, array in arrays().items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array)
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [1, 1]
    assert {suspect.node for suspect in strategy.suspects()} == {5, 6, 7}


def test_no_replies_at_all_keep_the_old_model():
    _, result = run(dict.fromkeys(range(7), lambda message: None))
    np.testing.assert_array_equal(result.arrays["w"].numpy(), 0)


def test_replies_are_read_as_they_arrive():
    seen = []
    strategy = RobustStrategy(bz.MultiKrum(1), min_train_nodes=7, fraction_evaluate=0.0)
    desk = Desk(honest())
    read = strategy._read_reply

    def watched(*given):
        seen.append(len(desk.pulled))
        read(*given)

    strategy._read_reply = watched
    strategy.start(desk, as_record(arrays()), num_rounds=1)
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_a_common_offset_eats_no_digits():
    """Weights of 1000 that move by 0.001: whole weights in float32 tell nothing apart, changes do."""
    rng = np.random.default_rng(1)
    start = rng.normal(1000, 1, 2000).astype(np.float32)
    nodes = {n: start + rng.normal(0.01, 0.001, 2000).astype(np.float32) for n in range(9)}
    nodes |= {n: start - np.float32(0.01) for n in (20, 21)}
    strategy = RobustStrategy(bz.Krum(2), fraction_evaluate=0.0, min_train_nodes=len(nodes))
    desk = Desk({n: sends({"w": update}) for n, update in nodes.items()})
    result = strategy.start(desk, as_record({"w": start}), num_rounds=1)
    told = result.train_metrics_clientapp[1]
    assert told["bartizan-nodes"][int(np.argmax(told["bartizan-weights"]))] < 9


def test_flowers_krum_picks_attackers_on_the_replies_where_ours_does_not():
    """Steps of 1e-4 of the weights: lost in float32 between whole weights, plain from the model that was sent."""
    caught = {"theirs": 0, "ours": 0}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        start = (1 + rng.normal(size=20_000)).astype(np.float32)
        steps = rng.normal(size=20_000) * np.where(np.arange(20) < 4, -1, 1)[:, None]
        sent = (start + 1e-4 * (steps + 0.3 * rng.normal(size=(20, 20_000)))).astype(np.float32)
        nodes = {n: sends({"w": row}) for n, row in enumerate(sent, start=1)}
        both = {
            "theirs": Krum(num_malicious_nodes=4, fraction_evaluate=0.0, min_train_nodes=20),
            "ours": RobustStrategy(bz.Krum(4), fraction_evaluate=0.0, min_train_nodes=20),
        }
        for name, strategy in both.items():
            result = strategy.start(
                StreamingGrid(Desk(nodes), Limits(2**30, 100)), as_record({"w": start}), num_rounds=1
            )
            caught[name] += np.abs(sent - result.arrays["w"].numpy()).sum(axis=1).argmin() < 4
    assert caught["ours"] == 0
    assert caught["theirs"] > 0


LEAKED = 2**90 + 5


class Leaky(bz.Aggregator):
    """Draws a seed that the nodes know."""

    def round(self, seed=None, **settings):
        return super().round(LEAKED, **settings)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("null_space", "it hides from the projection"), ("null_space_mirror", "by the projection drawn at close")],
)
@pytest.mark.parametrize("rule", [bz.Krum(4), bz.GeometricMedian()], ids=repr)
def test_nodes_that_know_the_seed_of_the_open_round_are_found_out(rule, name, reason):
    """Replies come after the seed is drawn: what keeps its sketch and its norm is seen by the second look."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=15_000).astype(np.float32)
    steps = (3 * rng.normal(size=15_000) + rng.normal(size=(10, 15_000))).astype(np.float32)
    lies = getattr(attacks, name)(steps, 4, rng, sketch=bz.Rotated(), leaked_seed=LEAKED)
    nodes = {n: sends({"w": start + step}) for n, step in enumerate([*steps, *lies])}
    strategy = RobustStrategy(rule, fraction_evaluate=0.0, min_train_nodes=len(nodes))
    strategy.aggregator = Leaky(rule, strategy.aggregator.sketch)
    result = strategy.start(Desk(nodes), as_record({"w": start}), num_rounds=1)
    told = result.train_metrics_clientapp[1]
    weighed_by_the_leaked = (told["bartizan-seed"][0] << 64) + told["bartizan-seed"][1] == LEAKED
    assert weighed_by_the_leaked == (rule.max_byzantine() is not None)  # who names no f looks at all once more
    assert told["bartizan-quarantined"] == [10, 11, 12, 13]
    assert all(reason in why for why in strategy.quarantined.values())
    middle = steps.mean(axis=0)
    off = np.linalg.norm(result.arrays["w"].numpy() - start - middle)
    assert off <= 1.001 * np.linalg.norm(steps - middle, axis=1).max()  # as honest ones are


def test_sample_counts_are_believed_only_if_told_to_and_up_to_the_cap():
    nodes = {n: sends(arrays(1.0)) for n in range(6)} | {9: sends(arrays(4.0), examples=10**15)}
    plain = run(nodes, rule=bz.Mean())[1].arrays["w"].numpy()
    np.testing.assert_allclose(plain, 10 / 7, rtol=1e-6)
    capped = run(nodes, rule=bz.Mean(), sizes="reported", size_cap=40)[1].arrays["w"].numpy()
    np.testing.assert_allclose(capped, (60 + 160) / 100, rtol=1e-6)
    known = run(nodes, rule=bz.Mean(), sizes=dict.fromkeys(nodes, 1.0) | {9: 3.0})[1].arrays["w"].numpy()
    np.testing.assert_allclose(known, 2, rtol=1e-6)
    with pytest.raises(ValueError, match="needs size_cap"):
        RobustStrategy(bz.Mean(), sizes="reported")


@pytest.mark.parametrize("examples", [0, -3, float("nan"), float("inf"), [1.0]], ids=repr)
def test_a_sample_count_that_is_none_is_quarantined(examples):
    strategy, _ = run({**honest(), 5: sends(arrays(1.0), examples=examples)}, sizes="reported", size_cap=100)
    assert "'num-examples' once, as a positive number" in strategy.quarantined[5]


def test_no_node_spoils_the_metrics():
    odd = sends(arrays(1.0), loss=float("nan"), odd=1.0)
    wild = sends({**arrays(1.0), "w": np.full((3, 4), 1.001, np.float32)}, loss=-1e300)
    _, result = run({**honest(loss=0.5), 5: odd, 6: wild})
    told = result.train_metrics_clientapp[1]
    assert told["loss"] == 0.5
    assert "odd" not in told

    def picky(contents, key):
        return MetricRecord({"worst": max(content["metrics"]["loss"] for content in contents)})

    _, result = run({**honest(), 5: wild}, train_metrics_aggr_fn=picky)
    assert "worst" not in result.train_metrics_clientapp[1]
    assert len(result.train_metrics_clientapp[1]["bartizan-nodes"]) == 8


def test_only_those_who_are_trusted_are_heard():
    """Two who lie are quarantined, and two have no weight."""
    lies = {"loss": 9.0}
    nodes = {2**63 + n: sends(arrays(1.0), loss=0.5) for n in range(6)}
    nodes |= {n: sends(arrays(50.0), **lies) for n in (1, 2)} | {
        n: sends({**arrays(), "b": np.full(5, np.nan)}, **lies) for n in (3, 4)
    }
    heard = []

    def own(contents, key):
        heard.append([content["metrics"]["loss"] for content in contents])
        return MetricRecord()

    run(nodes, rule=bz.CGE(n_byzantine=4), train_metrics_aggr_fn=own)
    assert heard == [[0.5] * 6]


def test_an_own_function_for_metrics_may_give_nothing_be_set_later_and_sees_all_but_arrays():
    seen = []
    strategy = RobustStrategy(bz.MultiKrum(2), fraction_evaluate=0.0, min_train_nodes=7)
    strategy.train_metrics_aggr_fn = lambda contents, key: seen.append([sorted(content) for content in contents])

    def node(message):
        content = sends(arrays(1.0))(message).content
        return Message(RecordDict({**content, "extra": ConfigRecord({"name": "a"})}), reply_to=message)

    result = strategy.start(Desk(dict.fromkeys(range(7), node)), as_record(arrays()), num_rounds=1)
    assert seen == [[["extra", "metrics"]] * 5]
    assert result.train_metrics_clientapp[1]["bartizan-nodes"] == list(range(7))


@pytest.mark.parametrize("own", [None, lambda contents, key: MetricRecord()], ids=["medians", "own function"])
def test_of_a_nodes_metrics_little_is_kept(own):
    """Three are quarantined, one is trusted and sends much: a megabyte of each would be seen."""

    def large(message):
        content = sends(arrays(1.0))(message).content
        return Message(RecordDict({**content, "more": MetricRecord({"a": [0.5] * 500_000})}), reply_to=message)

    def attacker(message):
        return Message(RecordDict({"more": MetricRecord({"a": [0.5] * 500_000})}), reply_to=message)

    strategy = RobustStrategy(bz.MultiKrum(3), min_train_nodes=11, train_metrics_aggr_fn=own)
    nodes = {**honest(7), 1: large, 2: attacker, 3: attacker, 4: attacker}
    questions = list(strategy.configure_train(1, as_record(arrays()), ConfigRecord(), Desk(nodes)))
    questions.sort(key=lambda question: question.metadata.dst_node_id)
    held = []

    def replies():
        for n, question in enumerate(questions):
            question.metadata.__dict__["_message_id"] = str(n)
            held.append(tracemalloc.get_traced_memory()[0])
            yield nodes[question.metadata.dst_node_id](question)

    with traced_memory():
        strategy.aggregate_train(1, replies())
    assert held[-1] - held[0] < 1.5e6
    assert set(strategy.quarantined) == {2, 3, 4}


def evaluates(accuracy: float, train=None):
    def node(message):
        if message.metadata.message_type == "evaluate":
            told = MetricRecord({"num-examples": 1, "accuracy": accuracy})
            return Message(RecordDict({"metrics": told}), reply_to=message)
        return (train or judged)(message)

    return node


def test_what_nodes_say_of_accuracy_is_a_median_of_the_trusted_and_not_in_the_lines(tmp_path, caplog):
    nodes = {n: evaluates(0.5) for n in range(6)} | {n: evaluates(1e6, ATTACKERS["NaN"]) for n in (10, 11)}
    nodes[12] = lambda message: fails(message) if message.metadata.message_type == "evaluate" else judged(message)
    heard = []

    def own(contents, key):
        heard.append([content["metrics"]["accuracy"] for content in contents])
        return MetricRecord()

    strategy = RobustStrategy(
        bz.Mean(), folder=tmp_path, min_train_nodes=9, min_evaluate_nodes=9, evaluate_metrics_aggr_fn=own
    )
    strategy.start(Desk(nodes), as_record(arrays()), num_rounds=1, timeout=0.2)
    assert heard == [[0.5] * 6]
    (line,) = results.read(tmp_path).rounds
    assert "accuracy" not in line
    assert "aggregate_evaluate: heard 6 nodes, 1 failed; 2 trained without being trusted" in caplog.text
    assert "Node 12 failed: the app crashed" in caplog.text


def test_a_rule_that_needs_a_trusted_update_gets_the_servers():
    with pytest.raises(ValueError, match="pass trusted="):
        RobustStrategy(bz.FLTrust())
    nodes = {**honest(), 5: sends(arrays(-3.0)), 6: sends(arrays(-3.0))}
    asked = []

    def own(server_round, model):
        asked.append((server_round, model["w"].numpy().mean()))
        return as_record(arrays(1.0))

    _, result = run(nodes, rule=bz.FLTrust(), trusted_fn=own)
    assert asked == [(1, 0.0)]
    weights = dict(
        zip(*(result.train_metrics_clientapp[1][f"bartizan-{key}"] for key in ("nodes", "weights")), strict=True)
    )
    assert weights[5] == weights[6] == 0


def test_spilled_replies_give_the_same_model_and_leave_nothing(tmp_path):
    nodes = {**honest(), 5: sends(arrays(90.0))}
    _, kept = run(nodes)
    _, spilled = run(nodes, spill=tmp_path)
    np.testing.assert_array_equal(spilled.arrays["w"].numpy(), kept.arrays["w"].numpy())
    assert not list(tmp_path.iterdir())


def test_a_spilled_reply_is_let_go_at_once(tmp_path):
    """By counting, not when Python looks for circles: with that switched off, one reply is held at a time."""
    strategy = RobustStrategy(bz.MultiKrum(1), spill=tmp_path, min_train_nodes=8)
    start = as_record({"w": np.zeros(250_000, np.float32)})
    questions = list(strategy.configure_train(1, start, ConfigRecord(), Desk(honest(8))))
    held = []

    def replies():
        for n, question in enumerate(questions):
            question.metadata.__dict__["_message_id"] = str(n)
            reply = sends({"w": np.full(250_000, n, np.float32)})(question)
            held.append(tracemalloc.get_traced_memory()[0])
            yield reply
            del reply

    with traced_memory():
        strategy.aggregate_train(1, replies())
    assert held[-1] - held[1] < 1e6  # six replies of a megabyte each came in between


def test_as_many_nodes_are_asked_as_the_rule_needs():
    assert RobustStrategy(bz.Bulyan(2)).min_train_nodes == 11
    assert RobustStrategy(bz.NNM(3) >> bz.GeometricMedian()).min_available_nodes == 7
    assert RobustStrategy(bz.Mean()).min_train_nodes == 2
    assert RobustStrategy(bz.Mean(), min_train_nodes=5).min_available_nodes == 5


# Reputation, lines, restarts


def test_who_is_left_out_more_often_than_chance_is_a_suspect():
    rng = np.random.default_rng(3)
    reputation = Reputation()
    for _ in range(60):  # Krum: one has all the weight, mostly, and node 9 never
        reputation.add({n: float(n == winner) for winner in [rng.integers(9)] for n in range(10)}, {})
    assert [suspect.node for suspect in reputation.suspects()] == [9]
    assert Reputation.from_dict(json.loads(json.dumps(reputation.as_dict()))).suspects() == reputation.suspects()


def test_honest_nodes_are_seldom_suspects():
    rng = np.random.default_rng(4)
    found = 0
    for _ in range(200):
        reputation = Reputation()
        for _ in range(20):
            out = rng.choice(10, 3, replace=False)
            reputation.add({n: float(n not in out) / 7 for n in range(10)}, {})
        found += len(reputation.suspects(odds=0.01))
    # 2000 nodes at odds of at most 0.01 each: 20 expected at most, 40 has odds below 1e-4.
    assert found <= 40


@pytest.mark.parametrize("sizes", ["reported", "known"])
def test_nodes_of_few_examples_are_no_suspects(tmp_path, sizes):
    examples = {n: 5 if n < 3 else 1000 for n in range(9)}
    nodes = {n: sends(arrays(1.0), examples=size) for n, size in examples.items()} | {9: ATTACKERS["NaN"]}
    given = {"sizes": "reported", "size_cap": 1000} if sizes == "reported" else {"sizes": {**examples, 9: 1}}
    strategy, _ = run(nodes, rounds=5, rule=bz.Mean(), folder=tmp_path, **given)
    assert [one.node for one in strategy.suspects()] == [9]
    assert strategy.reputation.shares() == pytest.approx({**dict.fromkeys(range(9), 1.0), 9: 0.0})
    (drawn,) = report.load(tmp_path).runs
    assert [drawn.clients[one.node] for one in reputation_of(drawn).suspects()] == ["9"]


def test_a_size_of_next_to_nothing_ends_no_run():
    strategy, _ = run({**honest(), 5: sends(arrays(1.0), examples=5e-324)}, sizes="reported", size_cap=100)
    assert all(np.isfinite(share) for share in strategy.reputation.shares().values())


def test_a_large_node_is_no_suspect_where_the_rule_makes_nothing_of_sizes():
    reputation = Reputation()
    for _ in range(9):
        reputation.add(dict.fromkeys(range(20), 0.05), {}, sizes={n: 1e6 if n == 0 else 1.0 for n in range(20)})
    assert not reputation.suspects()


@pytest.mark.parametrize("rule", [bz.rule("trimmed-mean", n_byzantine=2), bz.MultiKrum(2)], ids=repr)
def test_a_round_in_which_a_node_took_part_counts_with_weights_or_without(tmp_path, rule):
    def once(message):
        bad = message.content["config"]["server-round"] == 1
        return (ATTACKERS["NaN"] if bad else sends(arrays(1.0)))(message)

    nodes = {n: sends(arrays(1.0)) for n in range(7)} | {9: once}
    strategy, result = run(nodes, rounds=3, rule=rule, folder=tmp_path)
    records = {one.node: one.record for one in strategy.suspects()}
    assert records[9].endswith("quarantined in 1 of 3 rounds")
    weighs = isinstance(rule, bz.MultiKrum)
    assert all(("bartizan-shares" in told) == weighs for told in result.train_metrics_clientapp.values())
    (drawn,) = report.load(tmp_path).runs
    found = reputation_of(drawn).suspects()
    assert {drawn.clients[one.node]: one.record for one in found} == {str(n): text for n, text in records.items()}


def test_a_refused_round_counts_for_those_who_took_part():
    nodes = {**honest(4), 5: ATTACKERS["NaN"], 6: ATTACKERS["NaN"], 7: ATTACKERS["NaN"]}
    strategy, result = run(nodes, rounds=2)
    assert [standing.rounds for standing in strategy.reputation.nodes.values()] == [2] * 7
    assert "bartizan-shares" not in result.train_metrics_clientapp[1]


def judged(message: Message) -> Message:
    """About a step of 1 from wherever the model is: what a resumed run sends depends on what it was given."""
    t, node = message.content["config"]["server-round"], message.metadata.dst_node_id
    rng = np.random.default_rng([t, node])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    return sends(
        {
            name: (array + 1 + 0.01 * rng.normal(size=array.shape)).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in model.items()
        }
    )(message)


def test_a_run_is_drawn_by_the_report(tmp_path):
    nodes = {**dict.fromkeys(range(2**63, 2**63 + 7), judged), 5: ATTACKERS["NaN"], 6: fails}
    strategy = RobustStrategy(bz.MultiKrum(2), folder=tmp_path / "run", fraction_evaluate=0.0, min_train_nodes=9)

    def accuracy(server_round, model):
        return MetricRecord({"accuracy": 0.1 * server_round, "loss": 1.0})

    strategy.start(Desk(nodes), as_record(arrays()), num_rounds=3, timeout=0.2, evaluate_fn=accuracy)
    found = report.load(tmp_path)
    assert not found.broken
    (shown,) = found.runs
    assert shown.status == "finished"
    assert shown.n_rounds == 3
    assert shown.best == pytest.approx(0.3)
    assert set(shown.clients) == {str(n) for n in nodes}
    assert shown.quarantined[:, shown.clients.index("5")].all()
    assert reputation_of(shown).suspects()[0].record == strategy.suspects()[0].record == "quarantined in 3 of 3 rounds"
    made = subprocess.run(
        [sys.executable, "-m", "bartizan.cli", "report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


def test_a_node_that_joins_late_is_in_the_lines_too(tmp_path):
    nodes = dict.fromkeys(range(7), judged)
    desk = Desk(nodes)
    strategy = RobustStrategy(bz.MultiKrum(2), folder=tmp_path, fraction_evaluate=0.0)
    strategy.start(
        desk,
        as_record(arrays()),
        num_rounds=3,
        evaluate_fn=lambda server_round, model: desk.nodes.update({100 + server_round: judged}),
    )
    recorded = results.read(tmp_path)
    assert [len(line["clients"]) for line in recorded.rounds] == [8, 9, 10]
    assert len(recorded.run["clients"]) == 10


def test_a_kill_between_the_lines_and_the_checkpoint_loses_nothing(tmp_path, monkeypatch):
    """The last round's line is there, rewritten for a node that joined, and the checkpoint is the one before."""

    def kill(folder, saved):
        if saved.round == 3:
            raise Killed
        save(folder, saved)

    save = resume.save
    desk = Desk(dict.fromkeys(range(7), judged))

    def go():
        strategy = RobustStrategy(bz.MultiKrum(2), folder=tmp_path, fraction_evaluate=0.0)
        return strategy.start(
            desk,
            as_record(arrays()),
            num_rounds=4,
            evaluate_fn=lambda server_round, model: desk.nodes.update({100 + server_round: judged}),
        )

    with monkeypatch.context() as patch:
        patch.setattr(resume, "save", kill)
        with pytest.raises(Killed):
            go()
    assert len(results.read(tmp_path).rounds) == 3
    result = go()
    np.testing.assert_allclose(result.arrays["w"].numpy(), 4, atol=0.05)
    assert [line["round"] for line in results.read(tmp_path).rounds] == [1, 2, 3, 4]
    assert not report.load(tmp_path).broken


class Killed(BaseException):
    pass


def test_a_killed_run_goes_on_with_its_model_its_reputation_and_its_lines(tmp_path):
    def go(nodes, rounds=4, folder=tmp_path / "a", stop=None):
        strategy = RobustStrategy(bz.MultiKrum(2), folder=folder, fraction_evaluate=0.0, min_train_nodes=8)
        rounds_seen = []

        def watch(server_round, model):
            rounds_seen.append(server_round)
            if server_round == stop:
                raise Killed
            return None

        result = strategy.start(Desk(nodes), as_record(arrays()), num_rounds=rounds, timeout=0.2, evaluate_fn=watch)
        return strategy, result, rounds_seen

    nodes = {**dict.fromkeys(range(7), judged), 50: ATTACKERS["NaN"]}
    with pytest.raises(Killed):
        go(nodes, stop=3)
    strategy, result, rounds = go(nodes)
    assert rounds == [2, 3, 4]
    assert sorted(result.train_metrics_clientapp) == [3, 4]
    np.testing.assert_allclose(result.arrays["w"].numpy(), 4, atol=0.05)
    assert [(one.node, one.quarantined) for one in strategy.suspects()] == [(50, 4)]
    recorded = results.read(tmp_path / "a")
    assert [line["round"] for line in recorded.rounds] == [1, 2, 3, 4]
    assert recorded.end["status"] == "finished"

    _, again, _ = go(nodes)  # a finished run is not run again, and its lines stay
    np.testing.assert_array_equal(again.arrays["w"].numpy(), result.arrays["w"].numpy())
    assert results.read(tmp_path / "a").end == recorded.end


KILLED = """
import os, signal, sys
import test_flower as t
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
def node(message):
    if message.content["config"]["server-round"] == 3 and message.metadata.dst_node_id == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return t.judged(message)
nodes = {**dict.fromkeys(range(7), node), 50: t.ATTACKERS["NaN"]}
t.run(nodes, rounds=4, folder=sys.argv[1], spill=sys.argv[2])
"""


def test_kill_9_in_the_middle_of_a_round_leaves_a_run_that_goes_on(tmp_path):
    folder, spill = tmp_path / "run", tmp_path / "spill"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", KILLED, str(folder), str(spill)]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(spill.iterdir())
    strategy, result = run(
        {**dict.fromkeys(range(7), judged), 50: ATTACKERS["NaN"]}, rounds=4, folder=folder, spill=spill
    )
    assert sorted(result.train_metrics_clientapp) == [3, 4]
    assert [(one.node, one.quarantined) for one in strategy.suspects()] == [(50, 4)]
    assert [line["round"] for line in results.read(folder).rounds] == [1, 2, 3, 4]
    assert not list(spill.iterdir())  # what the killed process left is gone too


def test_a_resumed_run_has_the_rules_memory(tmp_path):
    """Clipped clustering clips at the median norm of all rounds: what was remembered changes the third."""
    rule = bz.rule("clipped-clustering")
    nodes = dict.fromkeys(range(7), judged)
    strategy, whole = run(nodes, rounds=3, rule=rule, folder=tmp_path / "whole")
    assert len(strategy._history) == 21
    run(nodes, rounds=2, rule=rule, folder=tmp_path / "parts")
    strategy, parts = run(nodes, rounds=3, rule=rule, folder=tmp_path / "parts")
    assert len(strategy._history) == 21
    np.testing.assert_allclose(parts.arrays["w"].numpy(), whole.arrays["w"].numpy(), rtol=1e-5)


def test_subclasses_of_a_resumed_run_see_the_rounds_of_the_whole(tmp_path):
    seen = []

    class Mine(RobustStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            seen.append(server_round)
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            seen.append(-server_round)
            return super().aggregate_train(server_round, replies)

    for rounds in (2, 4):
        strategy = Mine(bz.MultiKrum(2), fraction_evaluate=0.0, folder=tmp_path)
        strategy.start(Desk(dict.fromkeys(range(7), judged)), as_record(arrays()), num_rounds=rounds)
    assert seen == [1, -1, 2, -2, 3, -3, 4, -4]


def test_a_subclass_may_configure_rounds_by_itself(tmp_path):
    class Mine(RobustStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            content = RecordDict({"model": arrays, "config": ConfigRecord({"server-round": server_round})})
            return self._construct_messages(content, list(grid.get_node_ids())[:5], "train")

    def node(message):
        model = {name: array.numpy() for name, array in message.content["model"].items()}
        return sends({name: array + 1 if array.dtype.kind == "f" else array for name, array in model.items()})(message)

    strategy = Mine(bz.MultiKrum(1), fraction_evaluate=0.0, folder=tmp_path)
    result = strategy.start(Desk(dict.fromkeys(range(7), node)), as_record(arrays()), num_rounds=2)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 2)
    assert [line["norm"] for line in results.read(tmp_path).rounds] == pytest.approx([17**0.5] * 2)
    assert results.read(tmp_path).run["clients"] == ["0", "1", "2", "3", "4"]


OTHERS = {
    "rule": {"rule": bz.Mean()},
    "sketch": {"sketch": bz.Exact()},
    "sizes": {"sizes": "reported", "size_cap": 10},
}


@pytest.mark.parametrize("setting", OTHERS)
def test_a_folder_of_a_run_that_aggregates_otherwise_is_an_error(tmp_path, setting):
    nodes = dict.fromkeys(range(7), judged)
    run(nodes, folder=tmp_path)
    with pytest.raises(ValueError, match=f"holds a run with {setting} .* Take another folder"):
        run(nodes, rounds=2, folder=tmp_path, **OTHERS[setting])


def test_a_folder_of_a_finished_run_is_said(tmp_path, caplog):
    run(dict.fromkeys(range(7), judged), folder=tmp_path)
    assert "nothing is trained" not in caplog.text
    run(dict.fromkeys(range(7), judged), folder=tmp_path)
    assert "is done: nothing is trained" in caplog.text


def test_a_relative_folder_is_said_and_a_tilde_is_home(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run(dict.fromkeys(range(7), judged), folder="here")
    assert f"The run is recorded in {tmp_path / 'here'}: say folder= as a whole path." in caplog.text
    assert (tmp_path / "here" / results.NAME).exists()
    assert RobustStrategy(bz.Mean(), folder="~/runs").folder == tmp_path / "home" / "runs"


@pytest.mark.parametrize("what", ["checkpoint", "line", "first line"])
def test_a_full_disk_ends_no_run(tmp_path, monkeypatch, caplog, what):
    """In the second round, or the first, there is no room; then there is."""

    def full(*given, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    def node(message):
        t = message.content["config"]["server-round"]
        if t == bad:
            patch.setattr(*target, full)
        elif t == bad + 1:
            patch.undo()
        return judged(message)

    bad = 1 if what == "first line" else 2
    target = {"checkpoint": (resume, "save"), "line": (results.Writer, "write"), "first line": (jsonl, "rewrite")}
    target = target[what]
    with monkeypatch.context() as patch:
        _, result = run(dict.fromkeys(range(7), node), rounds=3, folder=tmp_path)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3, atol=0.05)
    assert "The run can't be recorded ([Errno 28] No space left on device)" in caplog.text
    found = results.read(tmp_path)
    assert [line["round"] for line in found.rounds] == [1, 2, 3]
    assert found.end["status"] == "finished"
    assert resume.load(tmp_path).round == 3


def test_a_spill_without_room_costs_a_node_its_reply_or_the_round(tmp_path, monkeypatch):
    from bartizan.updates import spill

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    keep = spill.Spill.keep
    with monkeypatch.context() as patch:
        patch.setattr(spill.Spill, "keep", lambda self, update, node: (full if node == 5 else keep)(self, update, node))
        strategy, result = run({**honest(), 5: sends(arrays(1.0))}, spill=tmp_path)
    assert strategy.failed == {5: "[Errno 28] No space left on device"}
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)

    with monkeypatch.context() as patch:
        patch.setattr(spill, "_locked", full)
        _, result = run(honest(), rounds=2, spill=tmp_path, folder=tmp_path / "run")
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [1, 1]
    assert "no room to keep replies" in results.read(tmp_path / "run").rounds[1]["note"]


def test_a_strategy_that_is_started_again_begins_anew():
    strategy = RobustStrategy(bz.MultiKrum(2), fraction_evaluate=0.0, min_train_nodes=8)
    for _ in range(2):
        strategy.start(Desk({**honest(), 9: ATTACKERS["NaN"]}), as_record(arrays()), num_rounds=2)
    assert strategy.suspects()[0].record == "quarantined in 2 of 2 rounds"


def test_a_folder_of_another_model_or_a_broken_checkpoint_is_an_error(tmp_path):
    run(dict.fromkeys(range(7), judged), folder=tmp_path)
    strategy = RobustStrategy(bz.MultiKrum(2), folder=tmp_path)
    with pytest.raises(ValueError, match="holds a run of another model"):
        strategy.start(Desk({}), as_record({"w": np.zeros(3)}))
    path = tmp_path / resume.NAME
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(results.CorruptFileError, match=r"checkpoint\.npz is not what RobustStrategy writes"):
        strategy.start(Desk({}), as_record(arrays()))


def test_importing_bartizan_imports_no_flower():
    code = "import sys, bartizan; print('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_without_flower_the_error_names_the_extra():
    code = "import sys; sys.modules['flwr'] = None; import bartizan.flower"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "bartizan.flower needs Flower: pip install 'bartizan[flower]'" in told
