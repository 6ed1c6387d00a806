"""Nodes that fail, leave and come back: no round waits without end, and each says what became of whom."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message, MetricRecord

import bartizan as bz
from bartizan import records as results
from bartizan.flower import RobustStrategy
from flower_nodes import LocalGrid, arrays, as_record, evaluates, fails, steps_by_one


class ChangingGrid(LocalGrid):
    """A grid whose connected nodes change: by the number of rounds that have been asked to train."""

    def __init__(self, nodes: dict, connected) -> None:
        super().__init__(nodes)
        self.connected, self.round = connected, 0

    def get_node_ids(self):
        return list(self.connected(self.round + 1))

    def push_messages(self, messages):
        self.round += any(one.metadata.message_type == "train" for one in messages)
        return super().push_messages(messages)


def strategy_of(folder, **settings) -> RobustStrategy:
    settings = {"fraction_evaluate": 0.0, "connect_timeout": 0.2, **settings}
    return RobustStrategy(bz.MultiKrum(n_byzantine=2), folder=folder, **settings)


ERRORS, LEAVING, RETURNING = {8, 9}, {6, 7}, {5}


def connected(server_round: int) -> set[int]:
    """Those who leave in the second round are still known then, and one is back in the fifth."""
    away = {3: LEAVING | RETURNING, 4: LEAVING | RETURNING}.get(server_round, LEAVING if server_round > 2 else set())
    return set(range(10)) - away


def node(message: Message) -> Message | None:
    t, number = message.content["config"]["server-round"], message.metadata.dst_node_id
    if number in ERRORS:
        return fails(message)
    return None if t == 2 and number in LEAVING | RETURNING else steps_by_one(message)


def test_of_ten_nodes_two_fail_two_leave_and_one_comes_back_and_every_round_is_accounted_for(tmp_path):
    grid = ChangingGrid(dict.fromkeys(range(10), node), connected)
    strategy = strategy_of(tmp_path)
    result = strategy.start(grid, as_record(arrays()), num_rounds=6, timeout=0.2)
    recorded = results.read(tmp_path)
    assert [line["round"] for line in recorded.rounds] == [1, 2, 3, 4, 5, 6]
    assert recorded.end["status"] == "finished"
    for line in recorded.rounds:
        asked = {str(n) for n in connected(line["round"])}
        assert {*line["clients"], *line["failed"]} == asked
        gone = LEAVING | RETURNING if line["round"] == 2 else set()
        reasons = dict.fromkeys(ERRORS, "the app crashed") | dict.fromkeys(gone, "no reply within 0.2 s")
        assert line["failed"] == {str(n): reason for n, reason in reasons.items()}
        told = result.train_metrics_clientapp[line["round"]]
        assert told["bartizan-failed"] == sorted(reasons)
        assert told["bartizan-kept-old-model"] == (line["round"] == 2) == ("note" in line)
        # 8 of 10 admit n_byzantine=2, and 5 or 6 of 7 or 8 only 1; in the second round 5 of 10 are out.
        assert told.get("bartizan-n-byzantine") == line.get("n_byzantine") == {1: 2, 2: None}.get(line["round"], 1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 5, atol=0.1)
    suspects = {one.node: one.record for one in strategy.suspects()[:2]}
    assert suspects == dict.fromkeys(ERRORS, "failed in 6 of 6 rounds")


def test_rounds_with_too_few_nodes_keep_the_old_model_and_say_why_until_nodes_come_back(tmp_path):
    """All ten are wanted, and two of them are away in the second and third round."""
    counts = iter([10, 8, 8])
    grid = LocalGrid(dict.fromkeys(range(10), steps_by_one))
    grid.get_node_ids = lambda: range(next(counts, 10))
    evaluated = []
    strategy = strategy_of(tmp_path, min_train_nodes=10, connect_timeout=0.0)
    result = strategy.start(
        grid,
        as_record(arrays()),
        num_rounds=4,
        evaluate_fn=lambda t, model: evaluated.append(t) or MetricRecord({"accuracy": 0.1 * t}),
    )
    np.testing.assert_allclose(result.arrays["w"].numpy(), 2, atol=0.1)
    assert evaluated == sorted(result.evaluate_metrics_serverapp) == [0, 1, 2, 3, 4]
    kept = [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()]
    assert kept == [0, 1, 1, 0]
    recorded = results.read(tmp_path)
    assert [line["clients"] == [] for line in recorded.rounds] == [False, True, True, False]
    why = "8 nodes were connected after 0 s, and 10 are wanted."
    assert all(line["note"].endswith(why) for line in recorded.rounds[1:3])
    assert recorded.end["status"] == "finished"


def test_after_some_rounds_in_a_row_with_too_few_nodes_the_run_ends_and_can_go_on(tmp_path, caplog):
    """All ten are wanted: when two leave for good, no further round can be asked."""
    grid = ChangingGrid(dict.fromkeys(range(10), steps_by_one), lambda t: range(10 if t < 3 else 8))
    strategy = strategy_of(tmp_path, min_train_nodes=10, max_missed_rounds=3)
    result = strategy.start(grid, as_record(arrays()), num_rounds=1000)
    kept = [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()]
    assert kept == [0, 0, 1, 1, 1]
    assert results.read(tmp_path).end["status"] == "stopped"
    assert "The run ends: 3 rounds in a row had too few nodes. 8 nodes were connected" in caplog.text

    again = strategy_of(tmp_path, min_train_nodes=8)
    result = again.start(grid, as_record(arrays()), num_rounds=7)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 4, atol=0.1)
    assert results.read(tmp_path).end["status"] == "finished"


@pytest.mark.parametrize("trains", [True, False], ids=["beside training", "alone"])
def test_an_evaluation_without_enough_nodes_is_left_out(trains, caplog):
    strategy = RobustStrategy(
        bz.MultiKrum(2), fraction_train=float(trains), min_evaluate_nodes=8, connect_timeout=0.1, max_missed_rounds=2
    )
    result = strategy.start(LocalGrid(dict.fromkeys(range(7), evaluates(0.5))), as_record(arrays()), num_rounds=4)
    assert not result.evaluate_metrics_clientapp
    assert sorted(result.train_metrics_clientapp) == ([1, 2, 3, 4] if trains else [])
    assert caplog.text.count("Nobody is asked: 7 nodes were connected") == (4 if trains else 2)
    assert ("The run ends" in caplog.text) == (not trains)


def test_nodes_that_leave_while_a_round_is_configured_hold_nothing_up():
    """Connected when they are counted, gone when Flower would draw its sample."""
    counts = iter([10, *[3] * 100])
    grid = ChangingGrid(dict.fromkeys(range(10), steps_by_one), lambda t: range(next(counts)))
    result = strategy_of(None).start(grid, as_record(arrays()), num_rounds=2, timeout=0.2)
    assert len(result.train_metrics_clientapp[1]["bartizan-nodes"]) == 10
    assert result.train_metrics_clientapp[2]["bartizan-kept-old-model"] == 1


@pytest.mark.parametrize("settings", [{"connect_timeout": -1}, {"connect_timeout": np.nan}, {"max_missed_rounds": 0}])
def test_limits_that_are_none_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        RobustStrategy(bz.Mean(), **settings)
