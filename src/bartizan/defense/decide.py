"""The decision sequence of every round: quarantine clients, weigh the rest, recheck those with weight, score all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.stopwatch import Stopwatch
from bartizan._util.types import Floats
from bartizan.defense.quarantine import FindFaults, distorted_norms, local_faults, quarantine, unusable_numbers
from bartizan.defense.recheck import Recheck
from bartizan.errors import TooFewClientsError
from bartizan.geometry import Geometry, GramStats
from bartizan.rules.base import CoordinateStage, Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch.base import Projection, Sketch
from bartizan.sketch.exact import Norms
from bartizan.updates import Updates


@dataclass(frozen=True)
class Verdict:
    """What the decision sequence gives, wherever it ran."""

    decision: Decision
    """On the clients that are not quarantined."""
    quarantined: dict[int, str]
    scores: Floats | None
    """Distance of each client to the weighted centre, NaN if quarantined; None if the rule takes no distances."""
    seed: int
    sketch: Sketch
    """The sketch that the clients were weighed by, with its seed."""
    recheck_seed: int | None = None


def effective_sketch(rule: Rule | CoordinateWise, sketch: Sketch) -> Sketch:
    """The sketch that reads the clients: only their norms if the rule needs no distances."""
    return sketch if rule.needs_distances else Norms()


def decide(
    rule: Rule | CoordinateWise,
    clients: Updates,
    stats: GramStats,
    *,
    sketch: Sketch,
    sizes: Floats,
    seed: int,
    history: tuple[float, ...],
    strict: bool,
    watch: Stopwatch,
    find_faults: FindFaults = local_faults,
    recheck_sketch: Projection | None = None,
) -> Verdict:
    """Turn the Gram statistics of all clients into weights.

    The caller supplies what differs between one process and several: `find_faults` says what is wrong with rows whose
    norms are not finite, and `recheck_sketch`, if any, reads clients once more with a seed that is drawn here.
    """
    effective = effective_sketch(rule, sketch)
    clients, stats = quarantine(clients, stats, unusable_numbers(clients, stats, find_faults), strict)
    clients, stats = quarantine(clients, stats, distorted_norms(clients, stats, effective), strict)
    watch.lap("sketch")
    recheck = None if recheck_sketch is None else Recheck.of(effective, recheck_sketch)
    while True:
        own_sizes = sizes[list(clients.clients)]
        geometry = Geometry.from_stats(stats, len(clients), sizes=own_sizes, seed=seed, history=history)
        decision = weigh(rule, geometry, clients)
        watch.lap("weigh")
        if recheck is None:
            break
        suspects = recheck.suspects(rule, decision, geometry, clients)
        watch.lap("recheck")
        if not suspects:
            break
        clients, stats = quarantine(clients, stats, suspects, strict)
    if recheck is not None and recheck.has_read(clients):
        # No client could know the second seed, and the read is done already.
        geometry = recheck.geometry(clients, sizes=own_sizes, history=history)
        decision, seed, sketch = weigh(rule, geometry, clients), recheck.seed, recheck.sketch
        watch.lap("weigh")
    scores = None
    if rule.needs_distances:
        scores = np.empty(clients.n_sent)
        scores.fill(np.nan)
        scores[list(clients.clients)] = geometry.distances_to_mean(decision.weights)
    return Verdict(decision, clients.quarantined, scores, seed, sketch, None if recheck is None else recheck.seed)


def weigh(rule: Rule | CoordinateWise, geometry: Geometry, clients: Updates) -> Decision:
    """The rule's decision on the clients that are left; a coordinate-wise rule only checks that they are enough."""
    quarantined, f = clients.quarantined, rule.max_byzantine()
    n_bad, n_sent = len(quarantined), clients.n_sent
    if f is not None and n_bad > f:
        raise TooFewClientsError(
            f"{n_bad} of {n_sent} clients are quarantined, and {rule!r} withstands {f}.", quarantined
        )
    if f is None and 2 * n_bad >= n_sent:
        raise TooFewClientsError(
            f"{n_bad} of {n_sent} clients are quarantined: no honest majority can be counted on.", quarantined
        )
    rule = rule.with_fewer_byzantine(n_bad)
    try:
        if isinstance(rule, Rule):
            return rule.decide(geometry)
        rule.check(geometry.n_clients)
    except TooFewClientsError as too_few:
        if not quarantined:
            raise
        raise TooFewClientsError(f"After {n_bad} of {n_sent} were quarantined: {too_few}", quarantined) from None
    return Decision(geometry.shares, geometry.history, CoordinateStage(rule, None, geometry.sizes))
