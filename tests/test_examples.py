"""The examples that need nothing but the core run, and check themselves."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bartizan as bz

ROOT = Path(__file__).parent.parent
EDGES = ROOT / "examples" / "edges.py"


def test_edges_that_sketch_and_a_root_that_weighs_give_the_answer_of_one_server():
    run = subprocess.run([sys.executable, str(EDGES)], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    found = re.fullmatch(r"weight of the attackers (.*); mean of the answer (.*), as from one server\n", run.stdout)
    assert found, run.stdout
    weight, mean = map(float, found.groups())
    assert weight < 0.002  # of 50 or so away: the geometric median gives them little, not nothing
    assert abs(mean - 1) < 0.1


@pytest.mark.parametrize(
    ("who", "value"), [(slice(12, 13), 1e200), (slice(12, 13), 1e155), (slice(7, 11), np.nan)], ids=str
)
def test_neither_a_huge_client_nor_an_edge_without_clients_ends_the_round(who, value):
    edges, updates = runpy.run_path(str(EDGES)), np.random.default_rng(0).normal(size=(20, 5000)) + 1
    updates[who] = value
    held = [edges["Edge"](updates[first:last]) for first, last in ((0, 7), (7, 11), (11, 20))]
    answer, _, seed = edges["at_the_root"](held)
    flat = bz.aggregate(updates, edges["RULE"], sketch=edges["SKETCH"], seed=seed)
    np.testing.assert_allclose(answer, flat.update, atol=1e-6)


def test_more_broken_clients_than_is_safe_for_the_rule_are_an_error_at_the_root():
    edges, updates = runpy.run_path(str(EDGES)), np.ones((20, 5000))
    updates[:8] = np.nan
    with pytest.raises(bz.TooFewClientsError, match=r"8 of 20 clients are out \(0 quarantined, 8 failed\)"):
        edges["at_the_root"]([edges["Edge"](updates[:10]), edges["Edge"](updates[10:])])


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
    command = [sys.executable, str(ROOT / "benchmarks" / "scaling.py"), "--clients", "150"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 2
    assert "--clients must be 1,000 or more, so that each of 100 edges has ten; got 150" in run.stderr
    assert not run.stdout
