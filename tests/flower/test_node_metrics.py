"""Metrics that nodes report are aggregated so that no node can distort them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

import bartizan as bz
from bartizan import records as results
from bartizan.flower import RobustStrategy
from flower_nodes import (
    ATTACKERS,
    LocalGrid,
    arrays,
    as_record,
    evaluates,
    fails,
    honest,
    questions,
    run,
    sends,
    steps_by_one,
    traced_memory,
)


def test_no_node_moves_the_median_of_the_metrics_or_ends_the_round():
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


def test_metrics_are_those_of_trusted_nodes():
    """Two who lie are quarantined; of the other eight the rule leaves out the three longest, which two who lie are."""
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
    assert heard == [[0.5] * 5]


def test_an_own_function_for_metrics_may_give_nothing_and_sees_all_but_arrays():
    seen = []

    def own(contents, key):
        seen.append([sorted(content) for content in contents])

    def node(message):
        content = sends(arrays(1.0))(message).content
        return Message(RecordDict({**content, "extra": ConfigRecord({"name": "a"})}), reply_to=message)

    _, result = run(dict.fromkeys(range(7), node), train_metrics_aggr_fn=own)
    assert seen == [[["extra", "metrics"]] * 5]
    assert result.train_metrics_clientapp[1]["bartizan-nodes"] == list(range(7))


@pytest.mark.parametrize("own", [None, lambda contents, key: MetricRecord()], ids=["medians", "own function"])
def test_at_most_a_megabyte_of_a_nodes_metrics_is_kept(own):
    """Three are quarantined, one is trusted and sends much: a megabyte of each would be seen."""

    def large(message):
        content = sends(arrays(1.0))(message).content
        return Message(RecordDict({**content, "more": MetricRecord({"a": [0.5] * 500_000})}), reply_to=message)

    def attacker(message):
        return Message(RecordDict({"more": MetricRecord({"a": [0.5] * 500_000})}), reply_to=message)

    strategy = RobustStrategy(bz.MultiKrum(3), min_train_nodes=11, train_metrics_aggr_fn=own)
    nodes = {**honest(7), 1: large, 2: attacker, 3: attacker, 4: attacker}
    asked, held = questions(strategy, nodes, arrays()), []

    def replies():
        for question in asked:
            held.append(tracemalloc.get_traced_memory()[0])
            yield nodes[question.metadata.dst_node_id](question)

    with traced_memory():
        strategy.aggregate_train(1, replies())
    assert held[-1] - held[0] < 1.5e6
    assert set(strategy.quarantined) == {2, 3, 4}


def test_reported_accuracies_reach_the_metrics_function_and_not_the_record(tmp_path, caplog):
    nodes = {n: evaluates(0.5) for n in range(6)} | {n: evaluates(1e6, ATTACKERS["NaN"]) for n in (10, 11)}
    nodes[12] = lambda message: fails(message) if message.metadata.message_type == "evaluate" else steps_by_one(message)
    heard = []

    def own(contents, key):
        heard.append([content["metrics"]["accuracy"] for content in contents])
        return MetricRecord()

    run(nodes, rule=bz.Mean(), folder=tmp_path, fraction_evaluate=1.0, evaluate_metrics_aggr_fn=own)
    assert heard == [[0.5] * 6]
    (line,) = results.read(tmp_path).rounds
    assert "accuracy" not in line
    assert "aggregate_evaluate: used metrics of 6 nodes; 1 failed, 2 not trusted in training" in caplog.text
    assert "Node 12 failed: the app crashed" in caplog.text


def test_who_was_asked_to_train_and_is_not_trusted_is_not_heard_in_the_evaluation(caplog):
    """With a function of its own, an app would else believe the one node that says -666."""
    lowest = []

    def own(contents, key):
        lowest.append(min(content["metrics"]["accuracy"] for content in contents))
        return MetricRecord({"accuracy": lowest[-1]})

    trains = [fails, lambda message: None, ATTACKERS["NaN"], sends(arrays(90.0))]
    nodes = {n: evaluates(0.5) for n in range(9)} | {20 + n: evaluates(-666.0, one) for n, one in enumerate(trains)}
    _, result = run(nodes, 2, bz.MultiKrum(4), fraction_evaluate=1.0, evaluate_metrics_aggr_fn=own)
    assert [told["accuracy"] for told in result.evaluate_metrics_clientapp.values()] == [0.5, 0.5]
    assert "not trusted in training" in caplog.text


def test_nodes_that_join_only_for_the_evaluation_are_not_heard():
    """The grid has more nodes than are asked to train: the first nine train in the first round, none of the liars."""
    lowest = []

    def own(contents, key):
        lowest.append(sorted(content["metrics"]["accuracy"] for content in contents))
        return MetricRecord({"accuracy": lowest[-1][0]})

    class FirstNine(RobustStrategy):
        def configure_train(self, server_round, model, config, grid):
            content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": server_round})})
            asked = range(9) if server_round < 3 else range(5)
            return self._construct_messages(content, list(asked), "train")

    nodes = {n: evaluates(0.5 + n / 100) for n in range(9)} | {n: evaluates(-666.0) for n in (20, 21, 22)}
    strategy = FirstNine(bz.MultiKrum(1), min_evaluate_nodes=12, evaluate_metrics_aggr_fn=own)
    strategy.start(LocalGrid(nodes), as_record(arrays()), num_rounds=3, timeout=0.2)
    assert [len(heard) for heard in lowest[:2]] == [8, 8]
    # Who did not train in the third round is trusted as after the second; of the five who did, one was left out.
    assert 6 <= len(lowest[2]) <= 8
    assert all(heard[0] >= 0.5 for heard in lowest)


def test_where_nobody_trains_all_are_heard_in_the_evaluation():
    nodes = {n: evaluates(0.5) for n in range(5)}
    _, result = run(nodes, rule=bz.MultiKrum(1), fraction_train=0.0, fraction_evaluate=1.0)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5


def test_of_a_refused_round_nobody_is_heard_in_the_evaluation():
    nodes = {n: evaluates(0.5) for n in range(5)} | {n: evaluates(0.5, fails) for n in (5, 6, 7)}
    _, result = run(nodes, fraction_evaluate=1.0)
    assert result.train_metrics_clientapp[1]["bartizan-kept-old-model"] == 1
    assert not result.evaluate_metrics_clientapp
