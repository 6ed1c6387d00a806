"""Parts of examples and studies that no other test runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
