"""The decision on one round: quarantine clients, weigh the rest, recheck those with weight, score all."""

from __future__ import annotations

import numpy as np

from bartizan._util.stopwatch import Stopwatch
from bartizan.judge.byzantine_budget import rule_for_remaining
from bartizan.judge.quarantine import distorted_norms, enlarged, is_ordinary, unusable_numbers
from bartizan.judge.recheck import Recheck, geometry_of
from bartizan.measure.base import Projection
from bartizan.measure.exact import Exact
from bartizan.measure.geometry import Geometry
from bartizan.measure.measurements import Measurements
from bartizan.rules.base import CoordinateStage, Decision, Rule
from bartizan.source import AnyRule, Judgement, Source


def judge(
    source: Source,
    measured: Measurements,
    rule: AnyRule,
    *,
    history: tuple[float, ...] = (),
    recheck: Projection | None = None,
    watch: Stopwatch | None = None,
) -> Judgement:
    """Turn the measurements of all clients of a source into their weights.

    Clients that can't take part are quarantined; the source explains why, and is measured again where the first look
    was too coarse. `recheck`, if any, sketches those with weight once more, with a seed that is drawn here.
    """
    watch, measured, roster = watch or Stopwatch(), measured.on_host(), source.roster
    if not is_ordinary(measured, roster):
        measured = enlarged(source, measured)
        for reasons_of in (unusable_numbers, distorted_norms):
            reasons = reasons_of(source, measured)
            roster, measured = roster.without(reasons), measured.without(reasons)
    watch.lap("sketch")
    second = None if recheck is None else Recheck.of(source, measured, recheck)
    looks: dict[int, Measurements] = {}
    while True:
        geometry = geometry_of(source, measured, looks, roster, history)
        rule_left, n_left = rule, len(measured.clients)
        if roster.quarantined or roster.failed:
            rule_left = rule_for_remaining(rule, n_left, roster.quarantined, len(roster.failed))
        decision = weigh(rule_left, geometry)
        watch.lap("weigh")
        if second is None:
            break
        suspects = second.suspects(rule_left, decision, geometry, measured.clients)
        watch.lap("recheck")
        if not suspects:
            break
        roster, measured = roster.without(suspects), measured.without(suspects)
    if second is not None and second.has_read(measured.clients):
        # No client could know the second seed, and the read is done already.
        measured = second.measured(measured.clients)
        geometry = geometry_of(source, measured, second.looks, roster, history)
        decision = weigh(rule_left, geometry)
        watch.lap("weigh")
    scores = None
    if rule.needs_distances:
        scores = geometry.unit * geometry.distances_to_mean(decision.weights)
        if len(measured.clients) < roster.n_sent:
            scores, own = np.full(roster.n_sent, np.nan), scores
            scores[list(measured.clients)] = own
    return Judgement(
        decision,
        measured.clients,
        roster.quarantined,
        scores,
        rule_left,
        Exact() if measured.norms_only else measured.sketch,
        measured.seed,
        None if second is None else second.seed,
    )


def weigh(rule: AnyRule, geometry: Geometry) -> Decision:
    """The rule's decision; a coordinate-wise rule only checks that the clients are enough."""
    if isinstance(rule, Rule):
        return rule.decide(geometry)
    rule.check(geometry.n_clients)
    return Decision(geometry.shares, geometry.history, CoordinateStage(rule, geometry.sizes))
