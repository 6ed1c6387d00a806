"""Parts of examples and studies that no other test runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def test_a_flower_node_sends_the_mean_of_its_changes_over_the_rounds(monkeypatch):
    flwr = pytest.importorskip("flwr.app")
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOT / "examples" / "flower")
    from garments.client_app import with_momentum

    node, given, last = flwr.Context(1, 1, {}, flwr.RecordDict(), {}), torch.zeros(3), None
    for t in range(1, 4):
        change = torch.tensor([1.0, -2.0, 4.0]) * t
        sent = with_momentum({"w": given}, {"w": given + change}, node, 0.75)["w"]
        last = change if last is None else 0.75 * last + 0.25 * change
        torch.testing.assert_close(sent, given + last)
        given = sent
    assert "sent" in node.state
    idle = flwr.Context(1, 1, {}, flwr.RecordDict(), {})
    assert torch.equal(with_momentum({"w": given}, {"w": given + 1}, idle, 0.0)["w"], given + 1)
    assert not idle.state


def test_a_simulation_of_too_few_clients_for_its_edges_is_refused_at_once():
    command = [sys.executable, "-m", "studies", "scaling", "--clients", "150"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert run.returncode == 2
    assert "--clients must be 1,000 or more, so that each of 100 edges has ten; got 150" in run.stderr
    assert not run.stdout


def test_clients_on_sockets_find_what_two_of_them_and_the_server_do():
    command = [sys.executable, "examples/committed.py", "--dim", "20000"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert "client-06 is out: its sketch is not of its update" in run.stdout
    assert "client-07 is out: its bytes from 0 on are not those that it committed to" in run.stdout
    assert run.stdout.count("clients found") == 1
    assert "the result of round 3 is not made of what was committed" in run.stdout


def test_a_scheduled_round_makes_the_next_model_and_keeps_it_if_too_few_are_left(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    model, rng = np.zeros(1000, np.float32), np.random.default_rng(0)
    safetensors.save_file({"w": model}, tmp_path / "model.safetensors")
    script = ROOT / "examples" / "scheduled" / "round.sh"
    environment = os.environ | {"BARTIZAN": f"{sys.executable} -m bartizan"}

    def a_round(clients):
        (tmp_path / "incoming").mkdir(exist_ok=True)
        for client in range(clients):
            sent = model + rng.normal(1, 0.1, 1000).astype("f4") * (1e6 if client == 0 else 1)
            safetensors.save_file({"w": sent}, tmp_path / "incoming" / f"ward-{client}.safetensors")
        done = subprocess.run(["sh", script, tmp_path, "1"], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    status, shown = a_round(6)
    assert status == 0, shown
    made = safetensors.load_file(tmp_path / "model.safetensors")["w"]
    assert abs(made.mean() - 1) < 0.05  # the mean of 1,000 draws: 0.05 is more than 15 standard deviations of it
    (report,) = (tmp_path / "rounds").glob("*.json")
    assert json.loads(report.read_text())["weights"]
    while time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) == report.stem:
        time.sleep(0.05)  # a round is named by its second
    assert a_round(2)[0] == 3
    assert (safetensors.load_file(tmp_path / "model.safetensors")["w"] == made).all()
    assert not list((tmp_path / "incoming").iterdir())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd checks its units")
def test_the_units_are_valid(tmp_path):
    units = [*(ROOT / "examples" / "scheduled").glob("*.service"), *(ROOT / "examples" / "scheduled").glob("*.timer")]
    for unit in units:  # the program and the mount are those of a server
        text = unit.read_text().replace("/opt/bartizan/round.sh", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", *(tmp_path / unit.name for unit in units)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not [line for line in done.stderr.splitlines() if "bartizan-round" in line], done.stderr
