"""The decision sequence of every round: quarantine clients, weigh the rest, recheck those with weight, score all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bartizan._util.stopwatch import Stopwatch
from bartizan._util.types import Floats
from bartizan.errors import TooFewClientsError
from bartizan.judge.quarantine import (
    FindFaults,
    distorted_norms,
    is_ordinary,
    local_faults,
    quarantine,
    unusable_numbers,
)
from bartizan.judge.recheck import Recheck
from bartizan.measure.base import Projection, Sketch
from bartizan.measure.exact import Norms
from bartizan.measure.geometry import (
    ENLARGED,
    FLOAT32_SQUARES_UNDERFLOW,
    Geometry,
    GramStats,
    enlargement,
    mostly_below,
)
from bartizan.rules.base import CoordinateStage, Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.updates import Updates


@dataclass(frozen=True)
class Verdict:
    """The result of the decision sequence."""

    decision: Decision
    """On the clients that are not quarantined."""
    n_byzantine: int | None
    """The number that the rule ran with; None for rules that name none."""
    quarantined: dict[int, str]
    scores: Floats | None
    """Distance of each client to the weighted centre, NaN if quarantined; None if the rule takes no distances."""
    seed: int
    sketch: Sketch
    """The sketch that the clients were weighed by, with its seed."""
    recheck: Recheck | None = None
    """The second sketch, if clients were sketched again."""

    @property
    def recheck_seed(self) -> int | None:
        return None if self.recheck is None else self.recheck.seed


def effective_sketch(rule: Rule | CoordinateWise, sketch: Sketch) -> Sketch:
    """The sketch that reads the clients: only their norms if the rule needs no distances."""
    return sketch if rule.needs_distances else Norms()


def decide(
    rule: Rule | CoordinateWise,
    clients: Updates,
    stats: GramStats,
    *,
    sketch: Sketch,
    sizes: Floats | None,
    seed: int,
    history: tuple[float, ...],
    strict: bool,
    watch: Stopwatch,
    n_failed: int = 0,
    find_faults: FindFaults = local_faults,
    recheck_sketch: Projection | None = None,
) -> Verdict:
    """Turn the Gram statistics of all clients into weights; `n_failed` more were asked and sent no update.

    The caller supplies what differs between one process and several: `find_faults` says what is wrong with rows whose
    norms are not finite, and `recheck_sketch`, if any, reads clients once more with a seed that is drawn here.
    """
    effective = effective_sketch(rule, sketch)
    if not is_ordinary(clients, stats, effective):
        if find_faults is local_faults:  # all columns are in this process
            again = enlarged(clients, stats.squared_norms)
            if again is not clients:
                clients, stats = again, effective.gram_stats(again, seed)
        clients, stats = quarantine(clients, stats, unusable_numbers(clients, stats, find_faults), strict)
        clients, stats = quarantine(clients, stats, distorted_norms(clients, stats, effective), strict)
    watch.lap("sketch")
    recheck = None if recheck_sketch is None else Recheck.of(effective, recheck_sketch)
    while True:
        own_sizes = None if sizes is None else sizes[list(clients.clients)]
        geometry = Geometry.from_stats(stats, len(clients), sizes=own_sizes, seed=seed, history=history)
        rule_left = rule_for_remaining(rule, len(clients), clients.quarantined, n_failed)
        decision = weigh(rule_left, geometry)
        watch.lap("weigh")
        if recheck is None:
            break
        suspects = recheck.suspects(rule_left, decision, geometry, clients)
        watch.lap("recheck")
        if not suspects:
            break
        clients, stats = quarantine(clients, stats, suspects, strict)
    if recheck is not None and recheck.has_read(clients):
        # No client could know the second seed, and the read is done already.
        geometry = recheck.geometry(clients, sizes=own_sizes, history=history)
        decision, seed, sketch = weigh(rule_left, geometry), recheck.seed, recheck.sketch
        watch.lap("weigh")
    scores = None
    if rule.needs_distances:
        scores = geometry.unit * geometry.distances_to_mean(decision.weights)
        if len(clients) < clients.n_sent:
            scores, own = np.full(clients.n_sent, np.nan), scores
            scores[list(clients.clients)] = own
    return Verdict(decision, rule_left.max_byzantine(), clients.quarantined, scores, seed, sketch, recheck)


def enlarged(clients: Updates, squared_norms: Floats) -> Updates:
    """The same updates, to be read times a power of two if most are so tiny that their squares underflow."""
    if clients.layout.widest.itemsize == 8:
        scale = enlargement(squared_norms, len(clients), lambda: _squared_norms(clients.scaled(ENLARGED)))
        return clients if scale == 1 else clients.scaled(scale)
    if not (clients.on_gpu and mostly_below(FLOAT32_SQUARES_UNDERFLOW, squared_norms[: len(clients)])):
        return clients
    wide = clients.scaled(1.0)
    return wide if np.median(_squared_norms(wide)) > 0 else clients


def _squared_norms(clients: Updates) -> Floats:
    clients = replace(clients, trusted=None)
    norms: Floats = clients.rows.host(Norms().sketch_rows(clients, 0).squared_norms)[0]
    return norms


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


def weigh(rule: Rule | CoordinateWise, geometry: Geometry) -> Decision:
    """The rule's decision; a coordinate-wise rule only checks that the clients are enough."""
    if isinstance(rule, Rule):
        return rule.decide(geometry)
    rule.check(geometry.n_clients)
    return Decision(geometry.shares, geometry.history, CoordinateStage(rule, geometry.sizes))
