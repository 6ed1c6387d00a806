"""The outcome of a round on a platform: whatever closing it raises becomes a refusal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import bartizan as bz
from bartizan.judge.reputation import Reputation
from bartizan.judge.round_outcome import RoundOutcome


@dataclass(frozen=True)
class Raises(bz.Mean):
    """A plug-in's rule that raises."""

    error: BaseException = ZeroDivisionError("no variance")

    def weigh(self, geometry):
        raise self.error


def closed(rule) -> RoundOutcome:
    outcome = RoundOutcome(3)
    with bz.Aggregator(rule).round() as opened:
        for client in "cab":
            opened.add(np.ones(5), client)
        opened.add(np.full(5, np.nan), "nan")
        opened.fail("late", "no reply")
        outcome.close(opened)
    return outcome


ERRORS = [
    FloatingPointError("underflow"),
    MemoryError("of 12 GiB"),
    RuntimeError("\x1b[31m" + "long" * 1000),
    KeyError(5),
    OSError(5, "Input/output error"),
    StopIteration(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_rule_raises_refuses_the_round(error):
    outcome = closed(Raises(error=error))
    assert outcome.refused.startswith(f"the server raised {type(error).__name__}:")
    assert outcome.refused.isprintable()
    assert len(outcome.refused) < 600
    assert (outcome.result, outcome.weights, outcome.trusted) == (None, None, [])
    assert (list(outcome.quarantined), outcome.failed) == (["nan"], {"late": "no reply"})


def test_the_outcome_is_told_by_client_and_added_to_a_reputation():
    outcome = closed(bz.GeometricMedian())
    assert outcome.clients == ["a", "b", "c", "nan"]
    assert outcome.trusted == ["a", "b", "c"]
    assert outcome.weights["nan"] == 0
    reputation = Reputation()
    outcome.add_to(reputation)
    assert reputation.nodes["late"].failed == reputation.nodes["nan"].quarantined == 1
    quarantined, failed = outcome.warnings(bz.GeometricMedian(), "site")
    assert quarantined.startswith("Quarantined site nan: ")
    assert failed == "Site late failed: no reply"
    assert str(outcome) == "Round 3: judged 3 updates, quarantined 1; 1 failed"
    few = closed(bz.Krum(1))
    assert "2 of 5 clients are out" in few.refused
    assert few.warnings(bz.Krum(1), "site")[-1].startswith("Round 3 was refused and the model kept: 2 of 5")
