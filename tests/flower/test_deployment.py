"""Real deployments: a SuperLink, SuperNodes and `flwr run`, each a process of its own, on loopback."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from bartizan import records as results

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

from bartizan.lab.report import load as report
from deployment import ONE_PORT, Deployment, node_keys, secured, signal_all, simulate, wait_for
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
with_keys = pytest.mark.skipif(
    not (which("openssl") and which("ssh-keygen")), reason="openssl and ssh-keygen make the keys"
)


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
        program = [sys.executable, str(HERE / "hostile_supernode.py")] if character == "twice" and ONE_PORT else ()
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
    assert superlink.count("duplicate reply") >= 2 * ONE_PORT

    (run,) = report.load(out / "run").runs
    assert (run.status, run.n_rounds, len(run.clients)) == ("finished", 2, 10)
    assert not list((out / "spill").iterdir())


@pytest.mark.slow
def test_a_deployment_without_rounds_goes_on_whoever_is_slow_dies_or_comes_back(tmp_path, out):
    """Ten SuperNodes: two are slow, two hostile; one is killed and started again, and then the ServerApp is killed."""
    characters = [*["honest"] * 6, "slow", "slow", "flip", "unreadable"]
    settings = {"out": out, "rounds": 14, "n_byzantine": 2, "nodes": 5, "size": 7, "patience": 30.0}
    with Deployment(tmp_path) as deployment:
        nodes = [deployment.supernode(character=one, number=number) for number, one in enumerate(characters)]
        first = deployment.start_run(APP, **settings)
        wait_for(lambda: lines(out) >= 3, 240, "three judgements")
        signal_all(nodes[0], signal.SIGKILL)
        before = lines(out)
        wait_for(lambda: lines(out) >= before + 2, 240, "judgements without the node that is killed")
        deployment.supernode(character="honest", number=0)
        before = lines(out)
        wait_for(lambda: lines(out) >= before + 2, 240, "judgements after that")
        os.kill(int((out / "server.pid").read_text()), signal.SIGKILL)
        before = results.read(out / "run").rounds
        first.kill()
        said = deployment.run(APP, 300, **settings)
        assert (out / "told.json").exists(), said + deployment.logs()
    character, recorded = character_of(out), results.read(out / "run").rounds
    assert [line["round"] for line in recorded] == list(range(1, 15))
    # The last one may be made again: its line is written before the checkpoint.
    assert recorded[: len(before) - 1] == before[:-1]
    assert not any("note" in line for line in recorded)
    with np.load(out / "model.npz") as model:
        assert np.abs(model["w"] - np.linspace(-1, 1, 40)).max() < 0.1
    heard = {node for line in recorded for node in (*line["clients"], *line["failed"])}
    assert {character[int(node)] for node in heard} == set(characters)
    weights = [
        (character[int(node)], weight)
        for line in recorded
        for node, weight in zip(line["clients"], line["weights"], strict=True)
    ]
    assert sum(weight for name, weight in weights if name == "slow") > 0
    # A reversed step is next to nothing once the model has converged, and may then have weight.
    hostile = sum(weight for name, weight in weights if name in ("flip", "unreadable"))
    assert hostile < 0.1 * sum(weight for _, weight in weights)
    suspects = {character[one["node"]] for one in json.loads((out / "told.json").read_text())["suspects"]}
    assert "unreadable" in suspects


def lines(out: Path) -> int:
    """The rounds that are recorded so far."""
    return len(results.read(out / "run").rounds) if (out / "run" / "results.jsonl").exists() else 0


def checkpoint(out: Path) -> bool:
    return (out / "run" / "checkpoint.npz").exists()


def spilled(out: Path) -> int:
    """Pages of the spilled replies; each reply begins with a page of its own."""
    return spilled_bytes(out / "spill", int((out / "server.pid").read_text())) // mmap.PAGESIZE


KEY = "--auth-supernode-private-key"


@dataclass
class RestartedNode:
    """A SuperNode that is killed and started again."""

    deployment: Deployment
    key: Path
    number: int
    character: str
    away_until: float = 0.0
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.process = self.deployment.supernode(KEY, str(self.key), character=self.character, number=self.number)

    @property
    def gone(self) -> bool:
        return self.process.poll() is not None


def disturb(
    nodes: list[RestartedNode], run: subprocess.Popen[bytes], patience: float, rng: random.Random
) -> dict[int, int]:
    """Kill SuperNodes at random moments while a run goes on, and start them again; at most two are away at once."""
    kills = {signal.SIGTERM: 0, signal.SIGKILL: 0}
    begin = time.monotonic()
    next_kill = begin + 20
    while run.poll() is None:
        now = time.monotonic()
        assert now < begin + patience, "the run does not end"
        for node in nodes:
            if node.gone and now >= node.away_until:
                # While the SuperLink still believes in a node that was killed it refuses its successor: try again then.
                node.away_until = now + 20
                node.start()
        if now >= next_kill and sum(node.gone for node in nodes) < 2:
            victim = rng.choice([node for node in nodes if not node.gone])
            how = rng.choice(list(kills))
            signal_all(victim.process, how)
            kills[how] += 1
            victim.away_until = now + rng.uniform(2, 20)
            next_kill = now + rng.uniform(10, 40)
        time.sleep(0.2)
    return kills


@with_keys
@pytest.mark.slow
def test_a_long_run_whose_nodes_come_and_go_loses_and_leaks_nothing(tmp_path, out):
    """Twenty rounds, each SuperNode killed now and then: with a key of its own it comes back as the node it was.

    With TLS and node authentication, which refuses a node whose key is not registered.
    """
    characters = [*["honest"] * 6, "slow", "flip", "unreadable"]
    rounds, ballast, patience = 20, 250_000, 40.0
    with secured(tmp_path) as deployment:
        keys = [node_keys(tmp_path, f"node-{number}") for number in range(len(characters))]
        unregistered, _ = node_keys(tmp_path, "unregistered")
        refused = deployment.supernode(KEY, str(unregistered), character="unregistered", number=len(characters))
        assert refused.wait(60) != 0
        for _, public in keys:
            deployment.register(public)
        nodes = [RestartedNode(deployment, keys[n][0], n, character) for n, character in enumerate(characters)]
        settings = {"rounds": rounds, "n_byzantine": 2, "nodes": 7, "patience": patience, "ballast": ballast}
        kills = disturb(nodes, deployment.start_run(APP, out=out, **settings), 2400, random.Random(5))
        assert (out / "told.json").exists(), deployment.logs()
        ids = [deployment.node_ids(number) for number in range(len(characters))]
        in_temporary = list(deployment.temporary.iterdir())
    held = [json.loads(line) for line in (out / "held.jsonl").read_text().splitlines()]
    recorded = results.read(out / "run")
    print(f"killed {kills}; connected {sum(map(len, ids))} times in all")
    print(f"a round took {[round(line['seconds']['train']) for line in recorded.rounds]} s")
    print(f"resident {[one['memory'] // 2**20 for one in held]} MB, open files {[one['files'] for one in held]}")
    print(f"replies {[len(line['clients']) for line in recorded.rounds]}, in TMPDIR {len(in_temporary)}")

    assert "unregistered" not in character_of(out).values()
    assert sum(kills.values()) >= 5
    assert sum(map(len, ids)) > len(characters)
    assert all(len(set(own)) == 1 for own in ids)
    assert [line["round"] for line in recorded.rounds] == list(range(1, rounds + 1))
    assert recorded.end["status"] == "finished"
    # A SuperNode that dies while it uploads leaves half a reply, for which Flower alone would wait three minutes.
    assert max(line["seconds"]["train"] for line in recorded.rounds) < 3 * patience
    with np.load(out / "model.npz") as model:
        assert np.abs(model["w"] - np.linspace(-1, 1, 40)).max() < 0.05
    told = json.loads((out / "told.json").read_text())
    suspects = {characters[n]: one for n, own in enumerate(ids) for one in told["suspects"] if one["node"] in own}
    assert {"flip", "unreadable"} <= set(suspects)
    # Who was away more often than the others may be a suspect, too.
    assert all(one["failed"] for character, one in suspects.items() if character in ("honest", "slow"))

    # Behind the first rounds, where caches fill. A round's replies hold 9 x 2 MB: to keep one of them a round is 30 MB.
    settled = held[5:]
    assert settled[-1]["memory"] - settled[0]["memory"] < 8 * ballast * len(settled)
    # Connections come and go with the replies that are pulled at once; what is leaked stays.
    assert min(one["files"] for one in held[-5:]) <= min(one["files"] for one in held[1:6]) + 2
    assert not list((out / "spill").iterdir())
    assert sorted(path.name for path in (out / "run").iterdir()) == ["checkpoint.npz", "results.jsonl"]
    assert not in_temporary


@pytest.mark.slow
def test_the_strategy_runs_in_flowers_simulation(tmp_path, out):
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install '.[simulation]'")
    code = (
        "from flwr.simulation import run_simulation as run; from characters import client_app as c, server_app as s;"
        "run(s.app, c.app, num_supernodes=9, backend_config={'client_resources': {'num_cpus': 1}})"
    )
    said = simulate(tmp_path, code, APP, timeout=300, CHARACTERS_OUT=str(out))
    assert (out / "told.json").exists(), said
    told = json.loads((out / "told.json").read_text())
    character = character_of(out)
    assert sorted(character[one["node"]] for one in told["suspects"]) == CULPRITS
