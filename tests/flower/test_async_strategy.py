"""Rounds of `AsyncRobustStrategy`: slow, dead and hostile nodes, and a server that is killed."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Error, Message

import bartizan as bz
from bartizan import records as results
from bartizan.flower import AsyncRobustStrategy
from flower_nodes import ATTACKERS, LocalGrid, arrays, as_record, fails, sends, steps_by_one


class Enough(Exception):
    """Raised to interrupt a run."""


def slow(node, polls: int):
    """A node that answers at the nth poll of each message."""
    seen: dict[str, int] = {}

    def reply(message):
        key = message.metadata.message_id
        seen[key] = seen.get(key, 0) + 1
        return node(message) if seen[key] >= polls else None

    return reply


def trained(nodes: dict, rounds: int = 6, *, evaluate_fn=None, grid=LocalGrid, timeout=30, **settings):
    settings = {"size": 5, "n_byzantine": 2, "deadline": 5.0, "min_available_nodes": 1, **settings}
    strategy = AsyncRobustStrategy(**settings)
    result = strategy.start(
        grid(nodes), as_record(arrays()), num_rounds=rounds, timeout=timeout, evaluate_fn=evaluate_fn
    )
    return strategy, result


NODES = {2**63 + n: steps_by_one for n in range(6)}


def told(result, name):
    return [metrics[f"bartizan-{name}"] for metrics in result.train_metrics_clientapp.values()]


def test_slow_nodes_are_not_waited_for_and_count_when_they_come():
    nodes = {**NODES, 1: slow(steps_by_one, 4), 2: slow(steps_by_one, 40)}
    _, result = trained(nodes, rounds=12)
    assert told(result, "kept-old-model") == [0] * 12
    assert told(result, "version") == list(range(1, 13))
    judged = [set(clients) for clients in told(result, "nodes")]
    assert 1 in set.union(*judged)
    assert 1 not in judged[0]
    assert 2 not in judged[0] | judged[1]
    # Each step is about 1; those of late nodes count less, and nobody's more.
    assert 8 < result.arrays["w"].numpy().mean() < 12.1


@pytest.mark.parametrize("attacker", ATTACKERS.values(), ids=ATTACKERS)
def test_hostile_nodes_are_quarantined_and_fast_ones_have_one_entry(attacker):
    strategy, result = trained({**NODES, 5: attacker, 6: sends(arrays(1e6))}, size=7)
    assert told(result, "kept-old-model") == [0] * 6
    np.testing.assert_allclose(result.arrays["w"].numpy(), 6, atol=0.3)
    assert 5 in {suspect.node for suspect in strategy.suspects()}
    assert result.arrays["steps"].numpy() == 7


def test_a_node_that_answers_at_once_is_asked_once_per_judgement():
    sent = []

    def fast(message):
        sent.append(message.metadata.message_id)
        return sends(arrays(1e6))(message)

    trained({**{2**63 + n: slow(steps_by_one, 20) for n in range(6)}, 5: fast}, rounds=3)
    assert len(sent) <= 3


def test_every_reply_is_accounted_for():
    nodes = {**NODES, 1: fails, 3: slow(steps_by_one, 3), 4: ATTACKERS["NaN"]}
    replies = []

    def counted(node):
        def reply(message):
            came = node(message)
            if came is not None:
                replies.append(message.metadata.dst_node_id)
            return came

        return reply

    strategy, result = trained({key: counted(node) for key, node in nodes.items()}, rounds=8, timeout=0.3, deadline=2)
    assert told(result, "kept-old-model") == [0] * 8
    heard = [node for t in range(8) for node in (*told(result, "nodes")[t], *told(result, "failed")[t])]
    # The last replies may be of nodes that still worked when the run ended, and were not heard.
    assert {node: heard.count(node) for node in (1, 4)} == {node: replies.count(node) for node in (1, 4)}
    assert strategy.reputation.nodes[1].failed > 0
    assert strategy.reputation.nodes[4].quarantined > 0


def test_a_node_that_never_answers_has_failed_and_is_asked_again():
    strategy, result = trained({**NODES, 2: lambda message: None}, rounds=60, timeout=0.1)
    assert told(result, "kept-old-model") == [0] * 60
    assert "no reply within 0.1 s" in strategy.reputation.nodes[2].reason
    assert strategy.reputation.nodes[2].failed > 1


def test_replies_that_are_too_old_or_replayed_have_failed(caplog):
    """Replies are read in random order: one of node 2 that is read after six others is too old, too."""
    first = {}

    def replays(message):
        return sends(first.setdefault("update", arrays(1.0)))(message)

    nodes = {**NODES, 1: slow(steps_by_one, 12), 2: replays}
    strategy, result = trained(nodes, rounds=15, max_staleness=0, size=6)
    assert "versions old, where max_staleness is 0" in strategy.reputation.nodes[1].reason
    assert "Node 2 failed: it has sent the same numbers before" in caplog.text
    assert told(result, "kept-old-model") == [0] * 15


def test_few_nodes_at_a_time_are_judged_with_those_that_are_remembered():
    nodes = {**NODES, 7: sends(arrays(1e3)), 8: sends(arrays(-1e3)), 9: steps_by_one}
    _, result = trained(nodes, rounds=12, size=2, remember=True, fraction_train=0.25, min_train_nodes=2)
    assert told(result, "kept-old-model")[4:] == [0] * 8
    assert abs(result.arrays["w"].numpy()).max() < 15
    with pytest.raises(ValueError, match="n_byzantine counts all attackers of the federation"):
        AsyncRobustStrategy(n_byzantine=2, size=2)


def test_nodes_that_die_and_come_back(monkeypatch):
    class Changing(LocalGrid):
        calls = 0

        def get_node_ids(self):
            Changing.calls += 1
            gone = {2**63} if Changing.calls > 15 else set()
            come = {77} if Changing.calls <= 25 else set()
            return [node for node in self.nodes if node not in gone | come]

        def pull_messages(self, message_ids):
            (key,) = message_ids
            message = self.waiting[key]
            if message.metadata.dst_node_id == 2**63 and Changing.calls > 15:
                return [Message(Error(code=3, reason="the node is gone"), reply_to=message)]
            return super().pull_messages(message_ids)

    _, result = trained({**NODES, 77: steps_by_one}, rounds=30, grid=Changing)
    assert told(result, "kept-old-model") == [0] * 30
    assert any(2**63 in nodes for nodes in told(result, "nodes")[:2])
    assert 2**63 not in told(result, "nodes")[-1]
    assert any(77 in nodes for nodes in told(result, "nodes"))


def test_a_killed_server_goes_on_with_model_buffer_and_memory(tmp_path):
    nodes = {**NODES, 1: slow(steps_by_one, 3), 7: sends(arrays(1e6))}
    settings = {"folder": tmp_path, "remember": True, "size": 3}

    def stop(t, _):
        if t == 4:
            raise Enough

    with pytest.raises(Enough):
        trained(nodes, evaluate_fn=stop, **settings)
    strategy, result = trained(nodes, rounds=8, **settings)
    assert sorted(result.train_metrics_clientapp) == [4, 5, 6, 7, 8]
    assert told(result, "version")[0] > 4
    assert len(results.read(tmp_path).rounds) == 8
    assert strategy._buffer.seeds
    with pytest.raises(ValueError, match="holds a run with buffer"):
        trained(nodes, rounds=9, **settings | {"size": 5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fraction_evaluate": 0.5}, "fraction_evaluate must be 0"),
        ({"trusted_fn": lambda t, model: model}, "trusted_fn is for rounds"),
        ({"deadline": 0}, "deadline must be a number of seconds above 0"),
        ({"size": 4}, "size=4 is too small"),
        ({"max_staleness": -1}, "max_staleness must be"),
    ],
)
def test_a_wrong_setting_is_an_error_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        AsyncRobustStrategy(**{"n_byzantine": 2, "size": 5, **settings})


def test_the_rule_may_be_any():
    _, result = trained(NODES, n_byzantine=None, rule=bz.GeometricMedian(), rounds=3)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3, atol=1)
