"""Committed rounds in Flower: the app of a node is unchanged, and its mod does its part."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import bartizan as bz
from bartizan.flower import RobustStrategy, committed_mod
from bartizan.flower.committed_mod import KEY
from bartizan.sources.committed.replay import replayed
from bartizan.sources.committed.round_messages import Fetch, decoded
from flower_nodes import MODEL, arrays, fails, honest, run, sends, train_message


class CommittedNode:
    """A node with the mod, whose messages find nothing of each other but the node's state."""

    def __init__(self, number, app, cheat=lambda request, reply: reply):
        self.context, self.app, self.cheat = Context(1, number, {}, RecordDict(), {}), app, cheat
        self.kinds = []

    def __call__(self, message):
        request = decoded(bytes(message.content[KEY]["request"])) if KEY in message.content else None
        self.kinds.append(type(request).__name__)
        reply = committed_mod(message, self.context, lambda asked, _: self.app(asked))
        return self.cheat(request, reply)


def committed(nodes):
    return {number: CommittedNode(number, app) for number, app in nodes.items()}


def withheld(request, reply):
    return None if isinstance(request, Fetch) else reply


def test_the_result_is_that_of_the_aggregator_and_its_record_is_replayed(tmp_path):
    nodes = committed(honest())
    strategy, result = run(nodes, rounds=2, committed=tmp_path / "record")
    told = result.train_metrics_clientapp[1]
    seed = (told["bartizan-seed"][0] << 64) + told["bartizan-seed"][1]
    updates = [MODEL.decode(app(train_message()).content["arrays"]) for app in honest().values()]
    wanted = bz.aggregate(updates, bz.MultiKrum(2), sketch=bz.Rotated(), reference=MODEL.arrays, seed=seed)
    assert dict(zip(told["bartizan-nodes"], told["bartizan-weights"], strict=True)) == dict(
        zip(sorted(honest()), wanted.weights.tolist(), strict=True)
    )
    with open(tmp_path / "record", "rb") as file:
        assert [one.problem for one in replayed(file)] == ["", ""]
    assert not strategy.quarantined
    assert not strategy.failed
    assert nodes[min(nodes)].kinds.count("Opening") == 2
    assert not nodes[min(nodes)].context.state


def test_nodes_that_withhold_crash_or_lack_the_mod_are_named(tmp_path):
    a, b, c, *_ = honest(9)
    nodes = committed({**honest(9), 5: sends(arrays(1e6))})
    nodes[a].cheat, nodes[b], nodes[c] = withheld, fails, honest(9)[c]
    strategy, result = run(nodes, committed=tmp_path / "record", rule=bz.GeometricMedian())
    assert "withheld its update" in strategy.quarantined[a]
    assert strategy.failed.keys() == {b, c}
    assert result.train_metrics_clientapp[1]["bartizan-kept-old-model"] == 0


def test_too_few_nodes_keep_the_old_model(tmp_path):
    nodes = dict.fromkeys(honest(), fails)
    _, result = run(nodes, committed=tmp_path / "record")
    assert result.train_metrics_clientapp[1]["bartizan-kept-old-model"] == 1
    np.testing.assert_array_equal(result.arrays["w"].numpy(), arrays()["w"])


def test_options_that_clients_can_not_check_are_refused():
    with pytest.raises(ValueError, match="committed= can't be had with sizes"):
        RobustStrategy(n_byzantine=1, sizes="reported", size_cap=9, committed="record")
    with pytest.raises(ValueError, match="every coordinate of all clients"):
        RobustStrategy("median", committed="record")
