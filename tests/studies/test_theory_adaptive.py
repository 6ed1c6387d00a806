"""Attackers of the projection against the lemma's bound: a leaked seed breaks it, checks or a fresh seed keep it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bartizan import attacks
from bartizan.attacks import needs
from studies.theory import projection_attacks as adaptive

STANDS_OUT, DROWNS = adaptive.LENGTHS
# Smaller than the report's: 20 clients, 6 of them attackers, 4096 coordinates projected to 1024, where eps is 0.69.
SMALLER_CASES = [
    replace(cell, n_clients=20, n_byzantine=6, dim=4096, k=1024, draws=1)
    for cell in adaptive.cases()
    if cell.seed != adaptive.NO_SKETCH or cell.attack in ("ipm", "alie")
]
HIDING = ["null-space", "null-space-mirror", "replay"]


@pytest.fixture(scope="module")
def lines() -> list[dict]:
    return adaptive.rows([(cell, adaptive.measure(cell)) for cell in SMALLER_CASES])


def of(lines: list[dict], **wanted) -> list[dict]:
    found = [line for line in lines if all(line[key] == value for key, value in wanted.items())]
    assert {line["rule"] for line in found} == set(adaptive.RULES)
    return found


def test_the_plan_has_every_attack_on_the_sketch_with_its_seed_leaked_and_fresh():
    aimed = {name for name in attacks.ATTACKS if "sketch" in needs(attacks.attack(name))}
    plan = adaptive.cases()
    assert {cell.attack for cell in plan if cell.seed == "fresh"} == aimed
    assert {cell.attack for cell in plan if cell.seed == "leaked"} == aimed - {"blind-collision"}
    assert all(cell.eps < 1 for cell in [*plan, *SMALLER_CASES])


@pytest.mark.parametrize("attack", HIDING)
def test_a_leaked_seed_breaks_the_projected_rule_without_checks_which_quarantine_attackers_alone(lines, attack):
    for line in of(lines, attack=attack, seed="leaked", length=STANDS_OUT):
        assert line["unchecked"] > 1, line
        assert line["exact"] < 1, line
        assert (line["caught"], line["accused"]) == (1, 0), line


def test_a_mirror_of_what_drowns_in_noise_is_not_quarantined(lines):
    """Nor is it farther off than honest clients are."""
    for line in of(lines, attack="null-space-mirror", seed="leaked", length=DROWNS):
        assert line["caught"] == 0
