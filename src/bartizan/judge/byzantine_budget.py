"""The law of f': how many Byzantine clients are assumed among those that are left."""

from __future__ import annotations

from collections.abc import Mapping

from bartizan.errors import TooFewClientsError
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise


def rule_for_remaining(
    rule: Rule | CoordinateWise, n_left: int, quarantined: Mapping[int, str], n_failed: int = 0
) -> Rule | CoordinateWise:
    """The rule with the largest n_byzantine, up to its own, that it admits for the `n_left` remaining clients.

    Raises TooFewClientsError unless that is safe: n_byzantine stays as it is, so that it does not matter who is out; or
    at most n_byzantine clients are out and lower it by at most one each, which is safe if they count among the
    n_byzantine. A rule that names no n_byzantine needs more than half of the clients.
    """
    n_out, f = len(quarantined) + n_failed, rule.max_byzantine()
    n_asked = n_left + n_out
    if not n_out:
        return rule  # which says itself if there are too few
    most_fewer = 0 if f is None or n_out > f else n_out
    weaker = (rule.with_fewer_byzantine(fewer) for fewer in range(most_fewer + 1))
    admitted = next((one for one in weaker if one.admits(n_left)), None)
    if admitted is not None and (f is not None or 2 * n_out < n_asked):
        return admitted
    problem = "no honest majority can be counted on."
    if admitted is None:
        try:
            rule.check(n_left)
        except TooFewClientsError as too_few:
            problem = too_few.problem
        if f:
            problem += f" n_byzantine is lowered by at most one for each client that is out, if at most {f} are out."
    counts = f"{len(quarantined)} quarantined, {n_failed} failed"
    raise TooFewClientsError(f"{n_out} of {n_asked} clients are out ({counts}): {problem}", quarantined)


def lowered(rule: Rule | CoordinateWise, n_byzantine: int | None, n_quarantined: int, n_failed: int) -> str:
    """Return a sentence for the log where a rule ran with a smaller n_byzantine than its own; empty otherwise."""
    own = rule.max_byzantine()
    if own is None or n_byzantine is None or n_byzantine >= own:
        return ""
    out = f"{n_quarantined + n_failed} out ({n_quarantined} quarantined, {n_failed} failed)"
    return f"The rule ran with n_byzantine={n_byzantine} instead of {own}: {out}."
