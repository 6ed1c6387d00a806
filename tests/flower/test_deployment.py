"""Real deployments: a SuperLink, SuperNodes and `flwr run`, each a process of its own, on loopback."""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from bartizan import records as results

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'bartizan[flower]'")

from bartizan.lab.report import load as report
from deployment import Deployment, simulate, wait_for
from places import spilled_bytes

HERE = Path(__file__).parents[1] / "support"
APP = HERE / "flower_app"
CHARACTERS = [*["honest"] * 4, "slow", "twice", "flip", "unreadable", "unlike", "crash"]
CULPRITS = ["flip", "unlike", "unreadable"]
WHY = {
    ("unreadable", 1): "got '<f8' of shape (40, 40)",
    ("unreadable", 2): "holds NaN",
    ("unlike", 1): "got '<f8' of shape (137438953472,)",  # a terabyte
    ("unlike", 2): "'extra' is not part of the model",
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def character_of(out: Path) -> dict[int, str]:
    """As each node that trained has left it, by its id."""
    return {int(path.name.removeprefix("node-")): path.read_text() for path in out.glob("node-*")}


def started(deployment: Deployment, characters: Iterable[str]) -> None:
    for number, character in enumerate(characters):
        program = [sys.executable, str(HERE / "hostile_supernode.py")] if character == "twice" else ()
        deployment.supernode(program=program, character=character, number=number)


def test_a_deployment_survives_its_nodes_and_kill_9_and_names_the_culprits(tmp_path, out):
    """Ten SuperNodes, of which one flips and boasts, two send what can't be used, one dies and one replies twice.

    The one that dies (`os._exit`) holds the second round open, and there the ServerApp is killed. The second `flwr run`
    does the second round again, without that node: Flower's SuperNode waits up to a minute before it gives it up.
    """
    # Three are out of each round, by quarantine or failure, and the other seven admit n_byzantine=1 as it is.
    settings = {"out": out, "rounds": 2, "n_byzantine": 1, "nodes": len(CHARACTERS)}
    with Deployment(tmp_path) as deployment:
        started(deployment, CHARACTERS)
        first = deployment.start_run(APP, **settings)
        wait_for(lambda: checkpoint(out) and spilled(out) > 3, 240, "the second round")
        os.kill(int((out / "server.pid").read_text()), signal.SIGKILL)
        (whole,) = results.read(out / "run").rounds
        assert first.poll() is None
        first.kill()

        said = deployment.run(APP, 240, **settings, patience=max(15.0, 2 * whole["seconds"]["train"]))
        assert (out / "told.json").exists(), said + deployment.logs()
        superlink = deployment.log("superlink").read_text()
    told = json.loads((out / "told.json").read_text())
    character = character_of(out)
    assert sorted(character.values()) == sorted(CHARACTERS)

    with np.load(out / "model.npz") as model:
        assert np.abs(model["w"] - np.linspace(-1, 1, 40)).max() < 0.05
        assert model["steps"] == 2
    recorded = results.read(out / "run")
    assert recorded.rounds[0] == whole
    assert [line["round"] for line in recorded.rounds] == [1, 2]
    for line in recorded.rounds:
        weights = zip(line["clients"], line["weights"], strict=True)
        assert sorted(character[int(node)] for node, weight in weights if weight > 0) == sorted(CHARACTERS[:6])
        reasons = {character[int(node)]: reason for node, reason in line["quarantined"].items()}
        assert set(reasons) == {"unlike", "unreadable"}
        for name, reason in reasons.items():
            assert WHY[name, line["round"]] in reason

    # Both rounds are in the reputation, the one before the kill included.
    suspects = {character[one["node"]]: one for one in told["suspects"]}
    assert sorted(suspects) == ["crash", *CULPRITS]
    assert suspects["crash"]["failed"] == suspects["crash"]["rounds"] == 2
    assert all(suspects[name]["quarantined"] == 2 for name in ("unlike", "unreadable"))
    assert suspects["flip"]["left_out"] == suspects["flip"]["rounds"] == 2
    # An app that raises says so, one that dies does not reply; of two replies the SuperLink itself keeps the first.
    assert "this app fails" in str(recorded.rounds[0]["failed"])
    assert [[character[int(node)] for node in line["failed"]] for line in recorded.rounds] == [["crash"]] * 2
    assert "this app fails" in deployment.log("supernode-9").read_text()
    assert [sorted(map(int, line["clients"])) for line in recorded.rounds] == 2 * [
        sorted(node for node, name in character.items() if name != "crash")
    ]
    assert superlink.count("duplicate reply") >= 2

    (run,) = report.load(out / "run").runs
    assert (run.status, run.n_rounds, len(run.clients)) == ("finished", 2, 10)
    assert not list((out / "spill").iterdir())


def checkpoint(out: Path) -> bool:
    return (out / "run" / "checkpoint.npz").exists()


def spilled(out: Path) -> int:
    """Pages of the spilled replies; each reply begins with a page of its own."""
    return spilled_bytes(out / "spill", int((out / "server.pid").read_text())) // mmap.PAGESIZE


@pytest.mark.slow
def test_the_strategy_runs_in_flowers_simulation(tmp_path, out):
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'bartizan[simulation]'")
    code = (
        "from flwr.simulation import run_simulation as run; from characters import client_app as c, server_app as s;"
        "run(s.app, c.app, num_supernodes=9, backend_config={'client_resources': {'num_cpus': 1}})"
    )
    said = simulate(tmp_path, code, APP, timeout=300, CHARACTERS_OUT=str(out))
    assert (out / "told.json").exists(), said
    told = json.loads((out / "told.json").read_text())
    character = character_of(out)
    assert sorted(character[one["node"]] for one in told["suspects"]) == CULPRITS
