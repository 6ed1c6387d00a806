"""Nodes that are left out more often than chance explains are suspects."""

from __future__ import annotations

import json

import numpy as np

from bartizan.defense.reputation import Reputation


def test_a_node_left_out_more_often_than_chance_explains_is_a_suspect():
    rng = np.random.default_rng(3)
    reputation = Reputation()
    for _ in range(60):  # Krum: one has all the weight, mostly, and node 9 never
        reputation.add({n: float(n == winner) for winner in [rng.integers(9)] for n in range(10)}, {})
    assert [suspect.node for suspect in reputation.suspects()] == [9]
    assert Reputation.from_dict(json.loads(json.dumps(reputation.as_dict()))).suspects() == reputation.suspects()


def test_honest_nodes_are_seldom_suspects():
    rng = np.random.default_rng(4)
    found = 0
    for _ in range(200):
        reputation = Reputation()
        for _ in range(20):
            out = rng.choice(10, 3, replace=False)
            reputation.add({n: float(n not in out) / 7 for n in range(10)}, {})
        found += len(reputation.suspects(odds=0.01))
    # 2000 nodes at odds of at most 0.01 each: 20 expected at most, 40 has odds below 1e-4.
    assert found <= 40


def test_a_large_node_is_no_suspect_where_the_rule_makes_nothing_of_sizes():
    reputation = Reputation()
    for _ in range(9):
        reputation.add(dict.fromkeys(range(20), 0.05), {}, sizes={n: 1e6 if n == 0 else 1.0 for n in range(20)})
    assert not reputation.suspects()


def test_a_node_that_fails_every_round_is_a_suspect_and_one_that_failed_once_is_not():
    reputation = Reputation()
    for number in range(6):
        failed = {7: "the app crashed", **({1: "no answer"} if number == 0 else {})}
        weights = dict.fromkeys(set(range(7)) - set(failed), 1 / 7)
        reputation.add(weights, {}, failed)
    (suspect,) = reputation.suspects()
    assert str(suspect) == "node 7: failed in 6 of 6 rounds; last: the app crashed"
    assert (suspect.failed, suspect.quarantined, reputation.nodes[1].failed) == (6, 0, 1)
    (read,) = Reputation.from_dict(json.loads(json.dumps(reputation.as_dict()))).suspects()
    assert repr(read) == repr(suspect)  # its share is NaN, which equals nothing
