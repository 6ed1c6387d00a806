"""Runs are recorded round by round, and continue after a restart."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from flwr.app import MetricRecord

import bartizan as bz
from bartizan import records as results
from bartizan._util import jsonl
from bartizan.flower import AsyncRobustStrategy, RobustStrategy, run_record, saved_state
from bartizan.flower.kept_replies import KeptReplies
from bartizan.flower.replies import Model
from bartizan.lab.report import load as report
from bartizan.lab.report.finding import reputation_of
from flower_nodes import ATTACKERS, MODEL, LocalGrid, arrays, as_record, fails, run, steps_by_one


def test_the_report_shows_a_run(tmp_path):
    nodes = {**dict.fromkeys(range(2**63, 2**63 + 7), steps_by_one), 5: ATTACKERS["NaN"], 6: fails}

    def accuracy(server_round, model):
        return MetricRecord({"accuracy": 0.1 * server_round, "loss": 1.0})

    strategy, _ = run(nodes, rounds=3, folder=tmp_path / "run", evaluate_fn=accuracy)
    found = report.load(tmp_path)
    assert not found.broken
    (shown,) = found.runs
    assert shown.status == "finished"
    assert shown.n_rounds == 3
    assert shown.best == pytest.approx(0.3)
    assert set(shown.clients) == {str(n) for n in nodes}
    assert shown.quarantined[:, shown.clients.index("5")].all()
    drawn = [one.record for one in reputation_of(shown).suspects()]
    assert drawn == [one.record for one in strategy.suspects()]
    assert drawn[:2] == ["quarantined in 3 of 3 rounds", "failed in 3 of 3 rounds"]
    made = subprocess.run(
        [sys.executable, "-m", "bartizan", "report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


def test_a_kill_between_the_record_and_the_checkpoint_loses_nothing(tmp_path, monkeypatch):
    """The last round's line is there, rewritten for a node that joined, and the checkpoint is the one before."""

    def kill(folder, saved):
        if saved.round == 3:
            raise Killed
        save(folder, saved)

    save = saved_state.save
    desk = LocalGrid(dict.fromkeys(range(7), steps_by_one))

    def go():
        strategy = RobustStrategy(bz.MultiKrum(2), folder=tmp_path, fraction_evaluate=0.0)
        return strategy.start(
            desk,
            as_record(arrays()),
            num_rounds=4,
            evaluate_fn=lambda server_round, model: desk.nodes.update({100 + server_round: steps_by_one}),
        )

    with monkeypatch.context() as patch:
        patch.setattr(saved_state, "save", kill)
        with pytest.raises(Killed):
            go()
    assert len(results.read(tmp_path).rounds) == 3
    result = go()
    np.testing.assert_allclose(result.arrays["w"].numpy(), 4, atol=0.05)
    recorded = results.read(tmp_path)
    assert [line["round"] for line in recorded.rounds] == [1, 2, 3, 4]
    assert [len(line["clients"]) for line in recorded.rounds] == [8, 9, 11, 11]
    assert len(recorded.run["clients"]) == 11
    assert not report.load(tmp_path).broken


class Killed(BaseException):
    pass


KILLED = """
import os, signal, sys
import flower_nodes as t
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
def node(message):
    if message.content["config"]["server-round"] == 3 and message.metadata.dst_node_id == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return t.steps_by_one(message)
nodes = {**dict.fromkeys(range(7), node), 50: t.ATTACKERS["NaN"]}
t.run(nodes, rounds=4, folder=sys.argv[1], spill=sys.argv[2])
"""


def test_a_run_continues_after_kill_9_in_the_middle_of_a_round(tmp_path, caplog):
    folder, spill = tmp_path / "run", tmp_path / "spill"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])}
    command = [sys.executable, "-c", KILLED, str(folder), str(spill)]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not list(spill.iterdir())
    nodes, evaluated = {**dict.fromkeys(range(7), steps_by_one), 50: ATTACKERS["NaN"]}, []
    strategy = RobustStrategy(bz.MultiKrum(2), folder=folder, spill=spill, fraction_evaluate=0.0, min_train_nodes=8)
    told = {"num_rounds": 4, "timeout": 0.2, "evaluate_fn": lambda t, model: evaluated.append(t)}
    result = strategy.start(LocalGrid(nodes), as_record(arrays()), **told)
    assert evaluated == [2, 3, 4]
    assert sorted(result.train_metrics_clientapp) == [3, 4]
    np.testing.assert_allclose(result.arrays["w"].numpy(), 4, atol=0.05)
    assert [(one.node, one.quarantined) for one in strategy.suspects()] == [(50, 4)]
    recorded = results.read(folder)
    assert [line["round"] for line in recorded.rounds] == [1, 2, 3, 4]
    assert recorded.end["status"] == "finished"

    assert "nothing is trained" not in caplog.text  # a finished run is not run again, and its lines stay
    again = strategy.start(LocalGrid(nodes), as_record(arrays()), **told)
    assert "is done: nothing is trained" in caplog.text
    np.testing.assert_array_equal(again.arrays["w"].numpy(), result.arrays["w"].numpy())
    assert results.read(folder).end == recorded.end


KILLED_IN_ROUND = """
import os, signal, sys
import flower_nodes as t
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
heard = []
def node(message):
    if message.content["config"]["server-round"] == 3:
        if len(heard) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        heard.append(message.metadata.dst_node_id)
    return t.steps_by_one(message)
t.run(dict.fromkeys(range(8), node), rounds=4, folder=sys.argv[1], keep_replies=True, sizes="reported", size_cap=99)
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_a_killed_server_goes_on_with_its_round_and_asks_nobody_twice(tmp_path, damaged, caplog):
    folder, asked = tmp_path / "run", []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])}
    command = [sys.executable, "-c", KILLED_IN_ROUND, str(folder)]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (kept,) = (folder / "replies").iterdir()
    journal = kept / "updates.jsonl"
    heard = [row["client"] for row in jsonl.read(journal, dict, advice="").rows]
    assert len(heard) == 4
    if damaged:
        journal.write_bytes(journal.read_bytes().replace(b"e", b"f"))

    def node(message):
        if message.content["config"]["server-round"] == 3:
            asked.append(message.metadata.dst_node_id)
        return steps_by_one(message)

    settings = {"folder": folder, "keep_replies": True, "sizes": "reported", "size_cap": 99}
    _, result = run(dict.fromkeys(range(8), node), rounds=4, **settings)
    assert sorted(asked) == sorted(set(range(8)) - set(() if damaged else heard))
    assert ("are lost" in caplog.text) == damaged
    assert list(result.train_metrics_clientapp[3]["bartizan-nodes"]) == list(range(8))
    assert not result.train_metrics_clientapp[3]["bartizan-failed"]
    np.testing.assert_allclose(result.arrays["w"].numpy(), 4, atol=0.05)
    assert [len(line["sizes"]) for line in results.read(folder).rounds] == [8] * 4
    assert not list((folder / "replies").iterdir())


def test_replies_to_a_round_that_was_refused_or_to_another_model_are_not_found_again(tmp_path):
    nodes = {**dict.fromkeys(range(3), steps_by_one), **dict.fromkeys(range(3, 8), fails)}
    run(nodes, rounds=3, folder=tmp_path, keep_replies=True)
    assert [line["clients"] for line in results.read(tmp_path).rounds] == [["0", "1", "2"]] * 3
    (left,) = (tmp_path / "replies").iterdir()
    assert left.name.startswith("3-")
    kept = KeptReplies(tmp_path)
    assert kept.unanswered(3, Model.of(as_record(arrays(1.0))), []) == []
    assert not kept.sizes
    assert not list((tmp_path / "replies").iterdir())
    for settings in ({}, {"folder": tmp_path, "spill": tmp_path}):
        with pytest.raises(ValueError, match="keep_replies needs folder="):
            RobustStrategy(bz.Mean(), keep_replies=True, **settings)
    with pytest.raises(ValueError, match="keep_replies is for rounds"):
        AsyncRobustStrategy(bz.Mean(), size=2, keep_replies=True, folder=tmp_path)


def test_a_resumed_run_has_the_rules_memory(tmp_path):
    """Clipped clustering clips at the median norm of all rounds: what was remembered changes the third."""
    rule = bz.rule("clipped-clustering")
    nodes = dict.fromkeys(range(7), steps_by_one)
    strategy, whole = run(nodes, rounds=3, rule=rule, folder=tmp_path / "whole")
    assert len(strategy._history) == 21
    run(nodes, rounds=2, rule=rule, folder=tmp_path / "parts")
    strategy, parts = run(nodes, rounds=3, rule=rule, folder=tmp_path / "parts")
    assert len(strategy._history) == 21
    np.testing.assert_allclose(parts.arrays["w"].numpy(), whole.arrays["w"].numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": bz.Mean()}, "holds a run with rule .* Take another folder"),
        ({"sketch": bz.Exact()}, "holds a run with sketch .* Take another folder"),
        ({"sizes": "reported", "size_cap": 10}, "holds a run with sizes .* Take another folder"),
        ({"model": {"w": np.zeros(3)}}, "holds a run of another model"),
    ],
)
def test_a_folder_of_a_run_with_another_model_or_other_settings_is_an_error(tmp_path, settings, message):
    nodes = dict.fromkeys(range(7), steps_by_one)
    run(nodes, folder=tmp_path)
    with pytest.raises(ValueError, match=message):
        run(nodes, rounds=2, folder=tmp_path, **settings)


def test_a_relative_folder_is_logged_and_a_tilde_is_home(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run(dict.fromkeys(range(7), steps_by_one), folder="here")
    assert f"The run is recorded in {tmp_path / 'here'}: give folder= as an absolute path." in caplog.text
    assert (tmp_path / "here" / results.NAME).exists()
    assert RobustStrategy(bz.Mean(), folder="~/runs").folder == tmp_path / "home" / "runs"


@pytest.mark.parametrize(("module", "bad"), [(saved_state, 2), (run_record, 1)], ids=["checkpoint", "record"])
def test_a_full_disk_ends_no_run(tmp_path, monkeypatch, caplog, module, bad):
    """In one round there is no room; then there is."""

    def full(*given, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    def node(message):
        t = message.content["config"]["server-round"]
        if t == bad:
            patch.setattr(module, "write_whole", full)
        elif t == bad + 1:
            patch.undo()
        return steps_by_one(message)

    with monkeypatch.context() as patch:
        _, result = run(dict.fromkeys(range(7), node), rounds=3, folder=tmp_path)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3, atol=0.05)
    assert "The run can't be recorded ([Errno 28] No space left on device)" in caplog.text
    found = results.read(tmp_path)
    assert [line["round"] for line in found.rounds] == [1, 2, 3]
    assert found.end["status"] == "finished"
    assert saved_state.load(tmp_path, MODEL, {}).round == 3


def test_rounds_without_a_checkpoint_are_not_replaced(tmp_path):
    nodes = dict.fromkeys(range(7), steps_by_one)
    run(nodes, rounds=2, folder=tmp_path)
    (tmp_path / saved_state.NAME).unlink()
    with pytest.raises(results.AnotherRunError, match=r"holds 2 rounds and no checkpoint\.npz to go on from"):
        run(nodes, rounds=3, folder=tmp_path)
    assert len(results.read(tmp_path).rounds) == 2


def test_a_folder_in_which_another_process_is_at_work_is_an_error(tmp_path):
    def node(message):
        with pytest.raises(results.AnotherRunError, match="Another process is at work in"):
            run(dict.fromkeys(range(7), steps_by_one), folder=tmp_path / "run")
        return steps_by_one(message)

    strategy, _ = run(dict.fromkeys(range(7), node), rounds=2, folder=tmp_path / "run")
    assert not strategy.quarantined
    run(dict.fromkeys(range(7), steps_by_one), rounds=3, folder=tmp_path / "run")
    assert len(results.read(tmp_path / "run").rounds) == 3


@pytest.mark.parametrize("what", ["deleted", "replaced", "file deleted"])
def test_a_folder_that_is_deleted_is_noticed_and_made_again_in_the_same_round(tmp_path, caplog, what):
    folder = tmp_path / "run"
    there = []

    def remove(server_round, model):
        there.append((folder / results.NAME).exists() and len(results.read(folder).rounds))
        if server_round == 2 and what == "file deleted":
            (folder / results.NAME).unlink()
        elif server_round == 2:
            folder.rename(tmp_path / "elsewhere")
            if what == "deleted":
                shutil.rmtree(tmp_path / "elsewhere")
            elif what == "replaced":
                shutil.copytree(tmp_path / "elsewhere", folder)

    nodes = dict.fromkeys(range(7), steps_by_one)
    run(nodes, rounds=4, folder=folder, evaluate_fn=remove)
    assert there == [0, 0, 1, 2, 3]
    assert caplog.text.count("was deleted or moved while the run goes on") == (what != "file deleted")
    recorded = results.read(folder)
    assert [line["round"] for line in recorded.rounds] == [1, 2, 3, 4]
    assert recorded.end["status"] == "finished"
    assert saved_state.load(folder, MODEL, {}).round == 4
    with results.locked(folder):  # free again
        pass


def test_a_folder_that_another_run_took_meanwhile_is_left_to_it(tmp_path, caplog):
    folder = tmp_path / "run"
    with ExitStack() as other:

        def take(server_round, model):
            if server_round == 2:
                shutil.rmtree(folder)
                other.enter_context(results.locked(folder))

        _, result = run(dict.fromkeys(range(7), steps_by_one), rounds=3, folder=folder, evaluate_fn=take)
        assert not list(folder.iterdir())
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3, atol=0.05)
    assert "The run can't be recorded (Another process is at work" in caplog.text
