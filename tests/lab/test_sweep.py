"""Sweeps: every run once, whatever happens to the processes that do them."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bartizan import cli
from bartizan import records as results
from bartizan.lab import run, sweep
from bartizan.lab.runs.checkpoint import NAME, Checkpoint
from bartizan.lab.runs.progress_display import Display
from bartizan.lab.runs.sweep import WorkerPool
from laboratory import SMALL, facts

torch = pytest.importorskip("torch")

GRID = SMALL.with_settings(["rounds=3", 'grid.rule.name=["krum", "mean"]', "grid.seed=[0, 1]"])


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder, seen = tmp_path_factory.mktemp("swept"), []
    broken = folder / GRID.runs()[-1].slug
    broken.mkdir()
    (broken / results.NAME).write_bytes(b"rubbish\n")
    outcomes = sweep([GRID], folder, workers=2, watch=lambda slug, line: seen.append((slug, line["kind"])))
    return folder, outcomes, seen


def children(parent):
    tasks = Path(f"/proc/{parent}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def busy_with(folder):
    """The worker that holds the lock of a run's folder."""
    for child in children(os.getpid()):
        with suppress(OSError):
            if any(os.readlink(one) == str(folder) for one in Path(f"/proc/{child}/fd").iterdir()):
                return child
    raise AssertionError(f"nobody is at work in {folder}")


def test_every_run_has_its_folder_and_one_that_fails_is_named_while_the_others_go_on(swept):
    folder, outcomes, seen = swept
    assert [outcome.experiment.id for outcome in outcomes] == [one.id for one in GRID.runs()]
    assert [outcome.status for outcome in outcomes] == ["finished"] * 3 + ["failed"]
    assert "results.jsonl is corrupt in line 1" in outcomes[-1].error
    for outcome in outcomes[:3]:
        assert outcome.folder == folder / outcome.experiment.slug
        assert results.read(outcome.folder).end["status"] == "finished"
        assert [kind for slug, kind in seen if slug == outcome.folder.name] == ["run", "round", "round", "round", "end"]


@pytest.fixture
def threads_of_a_worker(one_thread):
    """The last digits of a training depend on torch's number of threads, and a worker has its share of the cores."""
    pytest.importorskip("torch").set_num_threads(WorkerPool(2).threads)


def test_a_run_of_a_sweep_equals_one_by_itself(swept, tmp_path, threads_of_a_worker):
    run(GRID.runs()[0], tmp_path)
    assert facts(swept[1][0].folder)[1:] == facts(tmp_path)[1:]


def test_finished_runs_are_skipped(swept):
    seen = []
    outcomes = sweep(GRID.runs()[:3], swept[0], watch=lambda slug, line: seen.append(line["kind"]))
    assert [outcome.status for outcome in outcomes] == ["skipped"] * 3
    assert seen == ["run", "round", "round", "round", "end"] * 3, "they are shown like all others"


LONG = SMALL.with_settings(["rounds=400", "evaluation.every=100"])


def test_a_killed_worker_is_replaced_its_run_goes_on_and_the_others_do_not_notice(tmp_path, threads_of_a_worker):
    killed = {"doomed": 0, "unlucky": 0}
    doomed, lucky = LONG, SMALL.with_settings(["seed=5"])
    unlucky = SMALL.with_settings(["rounds=100", "evaluation.every=50"])  # still at work when its second round is seen

    def watch(slug, line):
        if slug == doomed.slug and line["kind"] == "run":
            killed["doomed"] += 1
            os.kill(busy_with(tmp_path / slug), signal.SIGKILL)
        if slug == unlucky.slug and line.get("round") == 2 and not killed["unlucky"]:
            killed["unlucky"] += 1
            os.kill(busy_with(tmp_path / slug), signal.SIGKILL)

    outcomes = sweep([doomed, unlucky, lucky], tmp_path, workers=2, watch=watch)
    assert killed == {"doomed": 2, "unlucky": 1}, "a run is tried once more, and then given up"
    assert [outcome.status for outcome in outcomes] == ["failed", "finished", "finished"]
    assert "died 2 times, last by SIGKILL" in outcomes[0].error
    run(unlucky, tmp_path / "alone")
    assert facts(outcomes[1].folder)[1:] == facts(tmp_path / "alone")[1:]


def test_a_sweep_whose_folder_is_deleted_stops(tmp_path):
    """Each of its runs would take hours."""
    endless, begun = SMALL.with_settings(["rounds=100000", "grid.seed=[0, 1, 2]"]), []

    def watch(slug, line):
        begun.append(slug)
        if line.get("round") == 1:
            shutil.rmtree(tmp_path / "swept")

    with pytest.raises(FileNotFoundError, match="swept was deleted or moved while the sweep was writing to it"):
        sweep([endless], tmp_path / "swept", workers=1, watch=watch)
    assert len(set(begun)) == 1
    assert not (tmp_path / "swept").exists()


def interrupted_sweep(folder, begun):
    """Start an endless sweep, interrupt it when it has begun, and return its exit status and what it said."""
    (folder / "e.toml").write_text(LONG.with_settings(["grid.seed=[0, 1]", "rounds=100000"]).to_toml())
    command = [sys.executable, "-m", "bartizan", "sweep", "e.toml", "--workers", "2", "--out", "out"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    parent = subprocess.Popen(command, cwd=folder, start_new_session=True, **streams)
    try:
        assert parent.stdout.readline() == "Starting the workers ...\n"
        deadline = time.monotonic() + 200
        while not begun():
            assert time.monotonic() < deadline
            assert parent.poll() is None, parent.communicate()
            time.sleep(0.05)
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to all of them
        out, err = parent.communicate(timeout=200)
    finally:
        parent.kill()
    assert "Traceback" not in out + err
    return parent.returncode, out


def test_ctrl_c_stops_all_workers_each_behind_a_checkpoint(tmp_path):
    def files():
        return list(tmp_path.glob("out/*/results.jsonl"))

    status, out = interrupted_sweep(tmp_path, lambda: sum(file.read_bytes().count(b"\n") >= 3 for file in files()) == 2)
    assert status == 130
    assert "Stopped; the same command, without --fresh, goes on where it was." in out
    for file in files():
        assert Checkpoint.load(file.parent).round == len(results.read(file.parent).rounds)
        assert (file.parent / NAME).exists()


def test_the_command_names_what_failed(swept, capsys, tmp_path):
    (tmp_path / "e.toml").write_text(GRID.to_toml())
    assert cli.main(["sweep", str(tmp_path / "e.toml"), "--out", str(swept[0])]) == 1
    shown = capsys.readouterr().out
    assert "0 runs finished, 3 were finished before, 1 failed." in shown
    assert f"  {GRID.runs()[-1].slug}: " in shown
    assert f"bartizan report {swept[0]}" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_shows_what_the_lines_say(swept, monkeypatch, terminal):
    lines = results.read(swept[1][0].folder).lines()
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(shown, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with Display({"one": 3}) as single:
        for line in lines:
            single.update("one", line)
        assert single.runs["one"].round == single.done == 3
    with Display({"one": 3, "öther": 3}) as several:
        for line in [*lines[:3], *lines]:  # as after a worker's death
            several.update("one", line)
        several.update("öther", lines[0])
        assert (several.done, several.ended) == (3, {"one"})
        assert several.status.startswith("3 of 6, 1 of 2 runs done")
    shown.flush()
    written = shown.buffer.getvalue().decode("ascii")
    assert "weight on attackers" in written
    assert "one: finished, best accuracy" in written
    assert "?ther: begun" in written
    assert ("\rrounds: " in written) == terminal
    assert "\x1b" not in written


def test_ctrl_c_while_a_sweep_starts_shows_no_traceback(tmp_path):
    status, _ = interrupted_sweep(tmp_path, lambda: time.sleep(0.5) is None)  # while torch is imported
    assert status != 0  # 130, or death by the signal if Python or torch met it in their own C code
