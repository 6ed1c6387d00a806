"""Replies are read as they arrive, and what goes wrong on the way is the right node's."""

from __future__ import annotations

import time

import httpx
import numpy as np
import pytest
from flwr.app import Error, Message

import bartizan as bz
from bartizan.flower import RobustStrategy
from flower_nodes import LocalGrid, arrays, as_record, fails, honest, questions, raises, run, sends, train_message


def test_a_node_that_fails_or_never_answers_has_failed():
    strategy, result = run({**honest(), 5: fails, 6: lambda message: None})
    told = result.train_metrics_clientapp[1]
    assert strategy.failed == {5: "the app crashed", 6: "no reply within 0.2 s"}
    assert told["bartizan-failed"] == [5, 6]
    assert told["bartizan-nodes"] == sorted(honest())
    assert not strategy.suspects()


def test_a_reply_that_flower_can_not_unpack_or_under_another_id_is_quarantined():
    def broken(message):
        raise KeyError("children")

    def disguised(message):
        return sends(arrays(9.0))(train_message(node=2**63))

    strategy, _ = run({**honest(), 5: broken, 6: disguised})
    assert set(strategy.quarantined) == {5, 6}
    assert "can't be unpacked: KeyError" in strategy.quarantined[5]
    assert "another node's id" in strategy.quarantined[6]


def test_a_reply_that_waited_behind_a_slow_one_counts_after_the_timeout():
    asked = []

    def not_yet(message):
        asked.append(message)
        return sends(arrays(1.0))(message) if len(asked) > 1 else None

    def slow(message):
        time.sleep(0.3)  # longer than the round's timeout
        return sends(arrays(1.0))(message)

    _, result = run({**honest(), 5: not_yet, 6: slow})
    assert {5, 6} <= set(result.train_metrics_clientapp[1]["bartizan-nodes"])


class Unplugged(LocalGrid):
    """A SuperLink that is gone as soon as messages are out."""

    def get_node_ids(self):
        if self.waiting:
            raise ConnectionError("gone")
        return super().get_node_ids()


def test_a_broken_network_is_raised():
    with pytest.raises(ConnectionError):
        run({**honest(), 5: raises(ConnectionError("gone"))}, grid=Unplugged)


REQUEST = httpx.Request("POST", "http://superlink")
NOT_ITS_FAULT = {
    "the SuperLink fails on its reply": httpx.HTTPStatusError("", request=REQUEST, response=httpx.Response(500)),
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


class Simulated(LocalGrid):
    """As the simulation's grid: what could not be stored is left out of the ids."""

    def push_messages(self, messages):
        return super().push_messages([one for one in messages if one.metadata.dst_node_id != 2**63 + 2])


class Small(LocalGrid):
    """As Flower's grid where all messages together are too large for one request."""

    def push_messages(self, messages):
        return super().push_messages(messages) if len(messages) == 1 else []


class Unreachable(LocalGrid):
    """As Flower's grid where one message can't be stored."""

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        return [None if one.metadata.dst_node_id == 2**63 + 2 else key for key, one in zip(ids, messages, strict=True)]


@pytest.mark.parametrize(("desk", "absent"), [(Simulated, True), (Small, False), (Unreachable, True)])
def test_a_node_whose_message_can_not_be_sent_has_failed(desk, absent):
    strategy, result = run(honest(), rule=bz.MultiKrum(1), grid=desk)
    assert not strategy.quarantined
    assert strategy.failed == ({2**63 + 2: "it could not be reached"} if absent else {})
    assert {*result.train_metrics_clientapp[1]["bartizan-nodes"], *strategy.failed} == set(honest())


FORGED = "bad\nWARNING :   Suspect: node 9223372036854775808: quarantined in 5 of 5 rounds\x1b[31m" + 10_000 * "x"


@pytest.mark.parametrize("code", [-1, 0, 3])
def test_an_error_that_a_node_sends_is_logged_on_one_short_line_and_quarantines_nobody(code, caplog):
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
    strategy, nodes = RobustStrategy(bz.MultiKrum(1), min_train_nodes=7), honest()
    asked = questions(strategy, nodes, arrays())
    replies = [nodes[question.metadata.dst_node_id](question) for question in asked]
    _, once = strategy.aggregate_train(1, replies)
    again = [*replies, sends(arrays(1e6))(asked[0]), replies[3]]
    updated, twice = strategy.aggregate_train(1, again)
    assert once["bartizan-nodes"] == twice["bartizan-nodes"]
    np.testing.assert_allclose(updated["w"].numpy(), 1, atol=0.05)


def test_replies_are_read_as_they_arrive():
    seen = []
    strategy = RobustStrategy(bz.MultiKrum(1), min_train_nodes=7, fraction_evaluate=0.0)
    desk = LocalGrid(honest())
    read = strategy._read_reply

    def watched(*given):
        seen.append(len(desk.pulled))
        read(*given)

    strategy._read_reply = watched
    strategy.start(desk, as_record(arrays()), num_rounds=1)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
