"""Partitioned calls on real local clusters of three workers: Dask, Ray and torch.distributed."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"dask": "dask", "ray": "ray", "torch": "torch"}
pytestmark = pytest.mark.slow


def needs(engine):
    if importlib.util.find_spec(PACKAGES[engine]) is None:
        pytest.skip(f"{PACKAGES[engine]} is not installed: make test-slow installs it")


def run(engine, scenario, folder):
    """What each process that makes the call tells: one, or one per rank."""
    needs(engine)
    program = [sys.executable, str(ROOT / "tests/support/partitioned_clusters.py"), engine, scenario, str(folder)]
    ranks = ["0", "1", "2"] if engine == "torch" else [""]
    processes = [
        subprocess.Popen([*program, *filter(None, [rank])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in ranks
    ]
    answers = [process.communicate(timeout=300) for process in processes]
    return [json.loads(said.splitlines()[-1]) if said else {"died": errors} for said, errors in answers]


@pytest.mark.parametrize("engine", PACKAGES)
@pytest.mark.parametrize("scenario", ["weights", "opened", "futures"])
def test_the_result_is_that_of_one_call(engine, scenario, tmp_path):
    if (engine, scenario) == ("torch", "futures"):
        pytest.skip("a rank holds its part itself")
    first, *others = run(engine, scenario, tmp_path)
    assert first.get("same"), first
    assert first["quarantined"] == [5, 9]
    assert first["names"] == ["w", "b", "steps"]
    assert first["gap"] < 1e-6  # of numbers of about 1: each worker's sum is rounded to float32
    for other in others:
        assert other["quarantined"] == [5, 9]
        assert not other["has"]  # the update is on the first rank


@pytest.mark.parametrize("engine", PACKAGES)
def test_tiny_clients_beside_a_trusted_update(engine, tmp_path):
    first, *_ = run(engine, "tiny", tmp_path)
    assert first.get("same"), first
    assert first["gap"] < 1e-180


@pytest.mark.parametrize("engine", PACKAGES)
def test_a_client_that_changes_between_sketching_and_summing_is_quarantined(engine, tmp_path):
    first, *_ = run(engine, "changing", tmp_path)
    assert first["quarantined"].keys() == {"5", "9", "10"}, first
    assert first["quarantined"]["10"] == "its update changed between sketching and summing"


@pytest.mark.parametrize("engine", ["dask", "ray"])
@pytest.mark.parametrize("scenario", ["killed", "killed later"])
def test_the_work_of_a_worker_that_is_killed_is_done_by_another(engine, scenario, tmp_path):
    (answer,) = run(engine, scenario, tmp_path)
    assert answer.get("same"), answer
    assert len(list(tmp_path.glob("*-*"))) > 1  # it was read by the one that died and by another


def test_a_rank_that_is_killed_is_an_error_on_all_others(tmp_path):
    answers = run("torch", "killed", tmp_path)
    assert "died" in answers[2]
    for answer in answers[:2]:
        assert answer["error"] == "WorkerError", answer
        assert "another rank is dead" in answer["message"]


@pytest.mark.parametrize("engine", PACKAGES)
def test_a_worker_that_is_silent_is_an_error_within_the_timeout(engine, tmp_path):
    answer = run(engine, "silent", tmp_path)[0]
    assert answer["error"] == "WorkerError", answer
    named = "did not answer within the group's timeout" if engine == "torch" else "part 1: no answer within 20 s"
    assert named in answer["message"]
    assert answer["seconds"] < 80  # of the 90 that it is silent


def test_no_wait_for_a_worker_that_hangs_is_endless(tmp_path):
    """It hangs before the parts are sent to the workers, which is no step of theirs."""
    (answer,) = run("dask", "stopped", tmp_path)
    assert answer.get("error") == "WorkerError", answer
    assert "the workers: no answer within 5 s" in answer["message"]


def test_clients_that_only_a_lost_worker_held_are_an_error(tmp_path):
    (answer,) = run("dask", "lost", tmp_path)
    assert answer["error"] == "WorkerError", answer
    assert re.search("part 1.*lost", answer["message"])


def test_sizes_that_are_not_those_of_a_ranks_own_clients_are_an_error_on_all(tmp_path):
    for answer in run("torch", "sizes", tmp_path):
        assert answer.get("error") == "ValueError", answer
        assert "rank 0: sizes must be 7 positive numbers, one per client; got shape (8,)" in answer["message"]


@pytest.mark.parametrize("engine", PACKAGES)
def test_the_example_compares_itself_with_one_call(engine):
    needs(engine)
    launcher = [sys.executable]
    if engine == "torch":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    program = [*launcher, str(ROOT / "examples" / "partitioned.py"), "--engine", engine, "--check"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "as from one call" in done.stdout
    weight, mean = re.search(r"weight of the attackers (.*); mean of the update (.*)\n", done.stdout).groups()
    assert float(weight) < 0.01
    assert abs(float(mean) - 1) < 0.05
