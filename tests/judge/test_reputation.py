"""Nodes that are left out more often than chance explains are suspects."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bartizan as bz
from bartizan.judge.reputation import Reputation


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


@pytest.mark.parametrize("rule", [bz.MultiKrum(2), bz.TrimmedMean(2)], ids=repr)
def test_a_loop_of_ones_own_adds_results_as_they_are(rule):
    """Eve is far away, dan sends NaN, cal never answers; a coordinate-wise rule gives no weights to judge eve by."""
    rng = np.random.default_rng(0)
    names = ["amy", "bob", "eve", "dan", "fay", "gus", "hal", "ida"]
    reputation = bz.Reputation()
    for _ in range(9):
        with bz.Aggregator(rule).round(seed=1) as r:
            for name, row in zip(names, rng.normal(size=(8, 30)), strict=True):
                r.add(row * {"eve": 1e6, "dan": np.nan}.get(name, 1.0), name)
            reputation.add_result(r.close(expected=[*names, "cal"]))
    suspects = {one.node: one.record for one in reputation.suspects(1e-3)}
    left_out = {"eve": "left out of 9 of 9 rounds"} if isinstance(rule, bz.MultiKrum) else {}
    assert suspects == {"dan": "quarantined in 9 of 9 rounds", "cal": "failed in 9 of 9 rounds", **left_out}
    assert all(isinstance(one, bz.Suspect) for one in reputation.suspects())


def test_results_of_clients_of_unequal_sizes_are_judged_by_their_shares():
    x = np.random.default_rng(0).normal(size=(6, 30))
    sizes = {client: 1.0 if client == 5 else 1000.0 for client in range(6)}
    reputation = bz.Reputation()
    for _ in range(9):
        result = bz.aggregate(x, bz.NNM(1) >> bz.MultiKrum(1, n_selected=5), sizes=list(sizes.values()))
        reputation.add_result(result, sizes)
    assert all(one.judged == one.rounds == 9 for one in reputation.nodes.values())
    assert not reputation.suspects()


def test_a_refused_round_is_added_by_what_its_error_knows():
    reputation = bz.Reputation()
    with pytest.raises(bz.TooFewClientsError) as error:
        bz.aggregate([[1.0], [float("nan")], [float("nan")]], bz.GeometricMedian())
    reputation.add(None, error.value.quarantined, error.value.failed)
    assert [one.node for one in reputation.suspects()] == [1, 2]


def test_ids_of_several_kinds_are_listed():
    reputation = bz.Reputation()
    reputation.add({}, {"amy": "it holds NaN", 7: "it holds NaN", ("a", 1): "it holds NaN"})
    assert {one.node for one in reputation.suspects()} == {"amy", 7, ("a", 1)}


def test_sizes_of_a_result_are_a_mapping_that_names_every_client():
    result = bz.aggregate({"amy": [1.0], "bob": [1.1], "cal": [0.9]}, "geometric-median")
    for sizes, said in (([1, 2, 3], "a mapping from client ids"), ({"amy": 1, "bob": 2}, "client 'cal' has None")):
        reputation = Reputation()
        with pytest.raises((TypeError, ValueError), match=said):
            reputation.add_result(result, sizes)
        assert not reputation.nodes
