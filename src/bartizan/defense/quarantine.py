"""Clients that can't take part: they leave the round, and use up one each of the attackers that the rule withstands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bartizan._util.types import Floats
from bartizan.errors import BadClientError, TooFewClientsError
from bartizan.geometry import Geometry, GramStats, norm_limit
from bartizan.rules.base import CoordinateStage, Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch.base import Projection, Sketch
from bartizan.updates.updates import Updates

# A client that does not know the seed is accused by its norms with no more than these odds, a round.
ODDS = 1e-9
SMALLEST = float(np.finfo(np.float32).tiny)


def without_the_unfit(
    clients: Updates, look: GramStats, strict: bool, faults: Callable[[list[int]], list[str]] | None = None
) -> tuple[Updates, GramStats]:
    """Quarantine the clients whose numbers are not finite or overflow: their squared norm says so, at no extra read.

    `faults` finds out what is wrong with rows, where not all of their columns are here.
    """
    M = len(clients)
    fit = look.squared_norms <= norm_limit(clients.columns.widest)  # False for NaN
    if fit.all():
        return clients, look
    if not fit[M:].all():
        raise ValueError(f"trusted is too large: its squares overflow {clients.columns.widest}.")
    rows = np.flatnonzero(~fit).tolist()
    bad = dict(zip(rows, map(clients.fault, rows) if faults is None else faults(rows), strict=True))
    return without(clients, look, bad, strict)


def without_the_hidden(clients: Updates, look: GramStats, sketch: Sketch, strict: bool) -> tuple[Updates, GramStats]:
    """Quarantine the clients of whom the projection shows less or more than of any vector that does not know the seed.

    Their exact norms were taken by the same read. Who shows too little hides a move; who shows too much leaves out what
    the projection does not show, and stands where the others are with next to no length.
    """
    least, most = sketch.norm_ratio_range(ODDS) if isinstance(sketch, Projection) else (0.0, np.inf)
    if not least:
        return clients, look
    M = len(clients)
    exact, shown = look.squared_norms[:M], np.diag(look.gram)[:M]
    outside = (shown < (1 - 1e-4) * least * exact) | (shown > (1 + 1e-4) * most * exact)
    # Below the smallest normal numbers the digits are gone, and with them what a ratio means.
    outside &= exact > clients.columns.dim * SMALLEST**2
    if not outside.any():
        return clients, look
    bad = {
        int(r): f"the projection shows {shown[r] / exact[r]:.2g} of its squared norm {exact[r]:.3g}, where an update "
        f"that does not know the seed keeps {least:.2g} to {most:.2g}: it "
        + ("hides from the projection" if shown[r] < exact[r] else "leaves out what the projection does not show")
        for r in np.flatnonzero(outside)
    }
    return without(clients, look, bad, strict)


def without(clients: Updates, look: GramStats, bad: dict[int, str], strict: bool) -> tuple[Updates, GramStats]:
    """The same round with these rows quarantined for these reasons; under `strict` the first is raised."""
    if strict:
        row = min(bad)
        raise BadClientError(clients.clients[row], bad[row])
    rest = clients.without(bad)
    if not len(rest):
        raise TooFewClientsError("No client sent a usable update.", rest.quarantined)
    return rest, look.keep(np.array([r for r in range(len(look.squared_norms)) if r not in bad]))


def decided(rule: Rule | CoordinateWise, geometry: Geometry, clients: Updates) -> Decision:
    """What the rule decides on those that are left; a coordinate-wise rule decides later, on all as they are."""
    gone, f = clients.quarantined, rule.max_byzantine()
    if f is not None and len(gone) > f:
        raise TooFewClientsError(
            f"{len(gone)} of {clients.n_sent} clients are quarantined, and {rule!r} withstands {f}.", gone
        )
    if f is None and 2 * len(gone) >= clients.n_sent:
        raise TooFewClientsError(
            f"{len(gone)} of {clients.n_sent} clients are quarantined: no honest majority can be counted on.", gone
        )
    rule = rule.with_fewer_byzantine(len(gone))
    try:
        if isinstance(rule, Rule):
            return rule.decide(geometry)
        rule.check(geometry.n_clients)
    except TooFewClientsError as too_few:
        if not gone:
            raise
        raise TooFewClientsError(f"After {len(gone)} of {clients.n_sent} were quarantined: {too_few}", gone) from None
    everyone = CoordinateStage(rule, np.eye(geometry.n_clients), geometry.sizes)
    return Decision(geometry.shares, geometry.history, everyone)


def scored(rule: Rule | CoordinateWise, geometry: Geometry, decision: Decision, clients: Updates) -> Floats | None:
    """How far each client lies from the weighted centre, NaN if quarantined; None where the rule takes no distances."""
    if not rule.needs_distances:
        return None
    scores = np.full(clients.n_sent, np.nan)
    scores[list(clients.clients)] = geometry.distances_to_mean(decision.weights)
    return scores
