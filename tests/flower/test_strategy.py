"""Rounds of `RobustStrategy` with honest and hostile nodes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

import bartizan as bz
from bartizan import records as results
from bartizan.flower import RobustStrategy
from bartizan.lab.report import load as report
from bartizan.lab.report.finding import reputation_of
from bartizan.registry import default_rule
from flower_nodes import (
    ATTACKERS,
    MODEL,
    LocalGrid,
    arrays,
    as_record,
    fails,
    honest,
    questions,
    run,
    sends,
    steps_by_one,
    traced_memory,
    train_message,
)


def test_the_result_is_that_of_the_aggregator():
    _, result = run(honest())
    told = result.train_metrics_clientapp[1]
    seed = (told["bartizan-seed"][0] << 64) + told["bartizan-seed"][1]
    updates = [MODEL.decode(node(train_message()).content["arrays"]) for node in honest().values()]
    wanted = bz.aggregate(updates, bz.MultiKrum(2), sketch=bz.Rotated(), reference=MODEL.arrays, seed=seed)
    assert told["bartizan-nodes"] == sorted(honest())
    assert told["bartizan-weights"] == wanted.weights.tolist()
    assert told["bartizan-scores"] == wanted.scores.tolist()
    for name, array in wanted.update.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array)


@pytest.mark.parametrize("attacker", ATTACKERS.values(), ids=ATTACKERS)
def test_a_reply_that_can_not_be_used_is_quarantined_and_the_round_goes_on(attacker):
    strategy, result = run({**honest(), 5: attacker})
    assert list(strategy.quarantined) == [5]
    assert result.train_metrics_clientapp[1]["bartizan-quarantined"] == [5]
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)
    assert [suspect.node for suspect in strategy.suspects()] == [5]


def test_without_a_rule_the_default_one_runs():
    strategy, result = run({**honest(), 5: sends(arrays(1e6))}, n_byzantine=2)
    assert strategy.aggregator.rule == default_rule(2)
    assert RobustStrategy(n_byzantine=2).min_train_nodes == 5
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)
    with pytest.raises(TypeError, match="n_byzantine=5 for the default rule"):
        RobustStrategy()


BAD = {5: ATTACKERS["NaN"], 6: ATTACKERS["another shape"], 7: ATTACKERS["nothing"]}


@pytest.mark.parametrize("nodes", [{**honest(4), **BAD}, dict.fromkeys(range(7), lambda message: None)])
def test_too_few_replies_keep_the_old_model_and_the_run_goes_on(nodes):
    strategy, result = run(nodes, rounds=2)
    for name, array in arrays().items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array)
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [1, 1]
    assert {suspect.node for suspect in strategy.suspects()} == set(nodes) & set(BAD) - set(strategy.failed)
    assert [standing.rounds for standing in strategy.reputation.nodes.values()] == [2] * 7
    assert "bartizan-shares" not in result.train_metrics_clientapp[1]


def test_a_refused_round_lets_go_of_its_spilled_replies(tmp_path):
    """By counting, not when Python looks for circles: mapped files that are deleted still take room on the disk."""
    nodes, counts = {**honest(4), 5: fails, 6: fails, 7: fails}, []

    def count(server_round, model):
        counts.append(len(os.listdir("/dev/fd")))

    with traced_memory():
        _, result = run(nodes, rounds=3, spill=tmp_path, evaluate_fn=count)
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [1, 1, 1]
    assert counts[3] == counts[1]


def test_reported_sizes_count_only_if_asked_for_and_up_to_the_cap():
    nodes = {n: sends(arrays(1.0)) for n in range(6)} | {9: sends(arrays(4.0), examples=10**15)}
    plain = run(nodes, rule=bz.Mean())[1].arrays["w"].numpy()
    np.testing.assert_allclose(plain, 10 / 7, rtol=1e-6)
    capped = run(nodes, rule=bz.Mean(), sizes="reported", size_cap=40)[1].arrays["w"].numpy()
    np.testing.assert_allclose(capped, (60 + 160) / 100, rtol=1e-6)
    known = run(nodes, rule=bz.Mean(), sizes=dict.fromkeys(nodes, 1.0) | {9: 3.0})[1].arrays["w"].numpy()
    np.testing.assert_allclose(known, 2, rtol=1e-6)
    with pytest.raises(ValueError, match="needs size_cap"):
        RobustStrategy(bz.Mean(), sizes="reported")


@pytest.mark.parametrize("rule", [bz.GeometricMedian(), bz.TrimmedMean(2)], ids=repr)
@pytest.mark.parametrize("examples", [[1.0], -3, float("nan"), 1e-300, 2.0**-64])
def test_a_reported_size_that_can_not_be_used_is_quarantined_and_ends_no_run(rule, examples):
    nodes = {**honest(), 5: sends(arrays(1.0), examples=examples)}
    strategy, result = run(nodes, rule=rule, sizes="reported", size_cap=100, rounds=2)
    assert list(strategy.quarantined) == ([] if examples == 2.0**-64 else [5])
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [0, 0]
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)
    assert all(np.isfinite(share) for share in strategy.reputation.shares().values())


def test_a_rule_that_needs_a_trusted_update_gets_that_of_the_server():
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


def test_a_spilled_reply_is_freed_at_once(tmp_path):
    """By counting, not when Python looks for circles: with that switched off, one reply is held at a time."""
    strategy = RobustStrategy(bz.MultiKrum(1), spill=tmp_path, min_train_nodes=8)
    asked, held = questions(strategy, honest(8), {"w": np.zeros(250_000, np.float32)}), []

    def replies():
        for n, question in enumerate(asked):
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


@dataclass(frozen=True)
class Raises(bz.Mean):
    """A plug-in's rule that raises in the first round, once with NaN weights of which `decide` makes an error."""

    error: BaseException = ZeroDivisionError("no variance")
    raised: list = field(default_factory=list, compare=False)

    def weigh(self, geometry):
        self.raised.append(1)
        if len(self.raised) > 1:
            return super().weigh(geometry)
        if self.error is None:
            return np.full(geometry.n_clients, np.nan)
        raise self.error


@pytest.mark.parametrize("error", [np.linalg.LinAlgError("SVD did not converge"), KeyError(5), None], ids=repr)
def test_whatever_a_rule_raises_keeps_the_old_model_for_that_round_only(error, tmp_path, caplog):
    nodes = {**dict.fromkeys(range(7), steps_by_one), 9: ATTACKERS["NaN"]}
    strategy, result = run(nodes, rounds=2, rule=Raises(error=error), folder=tmp_path)
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [1, 0]
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)
    first, second = results.read(tmp_path).rounds
    name = "ValueError" if error is None else type(error).__name__
    assert first["note"].startswith(f"The round was refused and the model kept: the server raised {name}:")
    assert list(first["quarantined"]) == ["9"]
    assert "note" not in second
    assert first["note"] in caplog.text.replace("Round 1 was refused", "The round was refused")
    assert [one.node for one in strategy.suspects()] == [9]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_interrupt_ends_the_run(error):
    with pytest.raises(type(error)):
        run(honest(), rule=Raises(error=error))


def test_a_trusted_update_that_can_not_be_made_costs_its_round_only():
    def own(server_round, model):
        if server_round == 1:
            raise RuntimeError("the server's data are locked")
        return as_record(arrays(1.0 if server_round < 3 else float("nan")))

    _, result = run(honest(), rule=bz.FLTrust(), trusted_fn=own, rounds=3)
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [1, 0, 1]


def test_a_lowered_n_byzantine_is_said_in_one_sentence(caplog):
    run({**dict.fromkeys(range(6), steps_by_one), 9: fails})
    assert "Round 1: The rule ran with n_byzantine=1 instead of 2: 1 out (0 quarantined, 1 failed)." in caplog.text
    caplog.clear()
    run({**dict.fromkeys(range(7), steps_by_one), 9: ATTACKERS["NaN"]})
    assert "instead of" not in caplog.text


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


def test_a_subclass_may_configure_rounds_by_itself(tmp_path):
    class Mine(RobustStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            content = RecordDict({"model": arrays, "config": ConfigRecord({"server-round": server_round})})
            return self._construct_messages(content, list(grid.get_node_ids())[:5], "train")

    def node(message):
        model = {name: array.numpy() for name, array in message.content["model"].items()}
        return sends({name: array + 1 if array.dtype.kind == "f" else array for name, array in model.items()})(message)

    strategy = Mine(bz.MultiKrum(1), fraction_evaluate=0.0, folder=tmp_path)
    result = strategy.start(LocalGrid(dict.fromkeys(range(7), node)), as_record(arrays()), num_rounds=2)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 2)
    assert [line["norm"] for line in results.read(tmp_path).rounds] == pytest.approx([17**0.5] * 2)
    assert results.read(tmp_path).run["clients"] == ["0", "1", "2", "3", "4"]


def test_a_spill_without_room_costs_a_node_its_reply_or_the_round(tmp_path, monkeypatch):
    from bartizan.updates import spill

    def full(*given, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    keep = spill.Spill.keep
    with monkeypatch.context() as patch:
        patch.setattr(spill.Spill, "keep", lambda self, update, node: (full if node == 5 else keep)(self, update, node))
        strategy, result = run({**honest(), 5: sends(arrays(1.0))}, spill=tmp_path)
    assert strategy.failed == {5: "the server raised OSError: [Errno 28] No space left on device"}
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1, atol=0.05)

    with monkeypatch.context() as patch:
        patch.setattr(spill.tempfile, "TemporaryFile", full)
        _, result = run(honest(), rounds=2, spill=tmp_path, folder=tmp_path / "run")
    assert [told["bartizan-kept-old-model"] for told in result.train_metrics_clientapp.values()] == [1, 1]
    assert "No space left on device" in results.read(tmp_path / "run").rounds[1]["note"]


def test_a_strategy_that_is_started_again_begins_anew():
    strategy = RobustStrategy(bz.MultiKrum(2), fraction_evaluate=0.0, min_train_nodes=8)
    for _ in range(2):
        strategy.start(LocalGrid({**honest(), 9: ATTACKERS["NaN"]}), as_record(arrays()), num_rounds=2)
    assert strategy.suspects()[0].record == "quarantined in 2 of 2 rounds"


def test_without_flower_the_error_names_the_extra():
    code = "import sys; sys.modules['flwr'] = None; import bartizan.flower"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert "bartizan.flower needs Flower: pip install '.[flower]'" in told
