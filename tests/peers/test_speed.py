"""The benchmark's engines call the peers as they are: each answers, and is judged right."""

import pytest

from studies.speed import measure
from studies.speed.command import PEERS
from studies.speed.problem import Problem

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own, as it is imported

HAS = {
    "byzfl": ["mean", "krum", "multi-krum", "geometric-median", "median", "trimmed-mean", "meamed"],
    "byzfl-numpy": ["mean", "krum", "geometric-median", "median", "trimmed-mean", "meamed", "nnm >> geometric-median"],
    "byzpy": ["krum", "multi-krum", "geometric-median", "median", "trimmed-mean", "meamed"],
    "flower": ["mean", "krum", "multi-krum", "bulyan", "median", "trimmed-mean"],
}


@pytest.mark.parametrize(("peer", "rule"), [(peer, rule) for peer, rules in HAS.items() for rule in rules])
def test_a_peers_answer_is_judged_right(peer, rule):
    problem = Problem.draw(11, 0 if rule == "mean" else 2, 9000, "float32", "cpu")
    (row,) = measure.rows(problem, rule, [PEERS[peer]()], 2, 60, lambda text: None)
    assert row.ok, row.judged
    assert row.seconds > 0
    assert row.repeats in (1, 2)  # once where the first call took more than half of the limit


def test_who_lacks_a_rule_gets_no_row():
    problem = Problem.draw(11, 2, 9000, "float32", "cpu")
    assert not list(measure.rows(problem, "mca", [PEERS[peer]() for peer in HAS], 1, 60, lambda text: None))
