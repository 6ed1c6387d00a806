"""The decision on one round: quarantine clients, weigh the rest, recheck those with weight, score all.

Clients are measured again about the medoid where digits are short, and with a seed drawn after the last arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bartizan._util.seeds import fresh_seed, generator_of
from bartizan._util.stopwatch import Stopwatch
from bartizan._util.types import Array, Floats
from bartizan.judge.byzantine_budget import rule_for_remaining
from bartizan.measure.geometry import (
    FLOAT32_SQUARES_UNDERFLOW,
    TARGET_MEDIAN_NORM,
    TRIAL_SCALE,
    Geometry,
    enlargement,
    mostly_below,
    norm_limit,
)
from bartizan.measure.measurements import ROWS_FROM_CLIENTS, Measurements
from bartizan.measure.row_points import stripe_rows
from bartizan.measure.sketches import LEAST_K, PROBABILITY_OF_ERROR, Exact, Norms, Projection, Rotated, Sketch
from bartizan.rules.base import Decision
from bartizan.source import AnyRule, Judgement, Reading, Roster, Source

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
# It costs one read: with a smaller k the kernels take longer, not less (`python -m studies adaptive cost`).
RECHECK_SKETCH = Rotated()
MAX_RECHECK_BYTES = 2**29  # of the second sketches of many clients, of which two copies are held
# Of squared norms: what float32 sums may have lost of a distance.
ROUNDING = 1e-11
GRANTED = (
    0.45  # share of many clients that may attack where the rule does not say how many do: `Recheck._compared_with`
)
RECHECK_DRAW = 2**31 + 1  # its place in the second seed's randomness, behind that of the medoid
NOT_FINITE = "its values are not finite, or too large, when it is read again: it has changed since it was sketched"


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
        decision = rule_left.decide(geometry)
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
        decision = rule_left.decide(geometry)
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


def is_ordinary(measured: Measurements, roster: Roster) -> bool:
    """Return whether no norm is tiny, too large or distorted: one quick test, which most rounds pass."""
    from bartizan.kernels import weigh

    norms, least, most = measured.squared_norms, FLOAT32_SQUARES_UNDERFLOW, norm_limit(roster.dtype)
    if measured.norms_only:
        return bool(norms.min() >= least and norms.max() <= most)  # False for NaN
    ratios = (0.0, np.inf) if isinstance(measured.sketch, Exact) else _ratios(measured.sketch)
    if measured.by_rows:
        shown = measured.shown
        fits = (norms >= least) & (norms <= most) & (shown >= ratios[0] * norms) & (shown <= ratios[1] * norms)
        return bool(fits.all())
    return bool(weigh.ordinary(measured.gram, norms, least, most, *ratios))


def enlarged(source: Source, measured: Measurements) -> Measurements:
    """Return measurements of the updates times a power of two, if the squares of most would underflow."""

    def measure(sketch: Sketch, scale: float) -> Measurements:
        return source.measure(sketch, measured.seed, Reading(measured.clients, scale=scale)).on_host()

    def norms(scale: float) -> Floats:
        return np.asarray(measure(Norms(), scale).squared_norms[:M])

    M = len(measured.clients)
    if source.roster.dtype.itemsize == 8:
        scale = enlargement(measured.squared_norms, M, lambda: norms(TRIAL_SCALE))
        return measured if scale == 1 else measure(measured.sketch, scale)
    if source.roster.on_gpu and mostly_below(FLOAT32_SQUARES_UNDERFLOW, measured.squared_norms[:M]):
        return measure(measured.sketch, 1.0) if np.median(norms(1.0)) > 0 else measured
    return measured


def unusable_numbers(source: Source, measured: Measurements) -> dict[int, str]:
    """Return the clients whose numbers are not finite or overflow, by their squared norms, and why."""
    M, dtype = len(measured.clients), source.roster.dtype
    fit = measured.squared_norms <= norm_limit(dtype)  # False for NaN
    if fit.all():
        return {}
    if not fit[M:].all():
        raise ValueError(f"trusted is too large: its squares overflow {dtype}.")
    typical = measured.unit * TARGET_MEDIAN_NORM
    beside = "" if measured.unit == 1 else f", next to the other clients' of about {typical:.0e}"
    reasons = source.explain([measured.clients[row] for row in np.flatnonzero(~fit)])
    return {client: reason + beside for client, reason in reasons.items()}


def distorted_norms(source: Source, measured: Measurements) -> dict[int, str]:
    """Return the clients whose projected norm is outside the range for vectors that do not depend on the seed.

    The exact norms were taken in the same pass. A norm that is too small hides a large update from the rule; one that
    is too large belongs to an update without the part that the projection does not show.
    """
    least, most = _ratios(measured.sketch)
    if not least:
        return {}
    M = len(measured.clients)
    exact, shown = measured.squared_norms[:M], measured.shown[:M]
    outside = (shown < least * exact) | (shown > most * exact)
    # Below the smallest normal numbers the digits are gone, and the ratio means nothing.
    outside &= exact > max(source.roster.dim * SMALLEST_NORMAL**2, measured.negligible)
    return {
        measured.clients[
            r
        ]: f"the projection shows {shown[r] / exact[r]:.2g} of its squared norm {exact[r]:.3g}, where "
        f"an update that does not depend on the seed keeps {least:.2g} to {most:.2g}: it "
        + ("hides from the projection" if shown[r] < exact[r] else "leaves out what the projection does not show")
        for r in np.flatnonzero(outside)
    }


def _ratios(sketch: Sketch) -> tuple[float, float]:
    """The range of projected over exact squared norm, rounding included."""
    least, most = sketch.norm_ratio_range(PROBABILITY_OF_ERROR)
    return (1 - 1e-4) * least, (1 + 1e-4) * most


def recheck_sketch(n_clients: int) -> Projection:
    """Return what clients are sketched by again: to fewer dimensions only where all sketches would be too large.

    >>> recheck_sketch(20), recheck_sketch(16_384).k, recheck_sketch(100_000).k
    (Rotated(k=4096, mixing=32), 4096, 512)
    """
    most = MAX_RECHECK_BYTES // (8 * n_clients)
    return RECHECK_SKETCH if most >= RECHECK_SKETCH.k else Rotated(max(LEAST_K, 2 ** int(math.log2(most))))


def geometry_of(
    source: Source,
    measured: Measurements,
    looks: dict[int, Measurements],
    roster: Roster | None = None,
    history: tuple[float, ...] = (),
) -> Geometry:
    """Return the geometry of measured clients; where digits are short, measure the source again about the medoid.

    `looks` keeps the last such measurement, which serves again as clients leave the round.
    """

    def measured_about(row: int) -> Floats:
        client, clients = measured.clients[row], measured.clients
        if client not in looks or not set(clients) <= set(looks[client].clients):
            looks.clear()
            reading = Reading(clients, client, measured.scale)
            looks[client] = source.measure(measured.sketch, measured.seed, reading).on_host()
        again = looks[client].of(clients)
        found: Floats = again.sketches if measured.by_rows else again.on_host().gram
        return found

    sizes = None if roster is None or roster.sizes is None else roster.sizes[list(measured.clients)]
    return Geometry.measured(measured, measured_about, sizes=sizes, seed=measured.seed, history=history)


def geometry_by(sketch: Sketch, source: Source, seed: int = 0) -> Geometry:
    """Return the geometry of all clients of a source, none of them quarantined for its numbers."""
    return geometry_of(source, source.measure(sketch, seed).on_host(), {})


def largest_ratio(first: Sketch, second: Projection) -> float | None:
    """Return the largest ratio of squared distances, second sketch over first, of updates that depend on neither seed.

    None where the first sketch projects or guarantees nothing.
    """
    least = first.typical_norm_ratio_range(PROBABILITY_OF_ERROR)[0] if isinstance(first, Projection) else 0.0
    return second.norm_ratio_range(PROBABILITY_OF_ERROR)[1] / least if least else None


@dataclass
class Recheck:
    """Sketches the selected clients and enough others again, with a seed of its own.

    Client i is judged by the lower median over the others j of d'_ij / d_ij, squared distances in the second sketch
    over those in the first. Attackers are the minority, so for an honest client most of these ratios are between honest
    clients; for an attacker in the first sketch's null space most are with honest clients, far away in the second.

    Where all clients were sketched again, the rule weighs by the second sketch: no update was made for its seed.
    """

    source: Source
    sketch: Projection
    most: float
    """The `largest_ratio`."""
    scale: float | None
    seed: int = field(default_factory=fresh_seed, repr=False)
    read: Measurements | None = None
    """The clients that were sketched again so far."""
    compared: Measurements | None = None
    """The ones among them whose inner products are known."""
    looks: dict[int, Measurements] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source, first: Measurements, second: Projection) -> Recheck | None:
        """Return the recheck of a round that was measured so; None where that projects or guarantees nothing."""
        most = largest_ratio(first.sketch, second)
        return None if most is None else cls(source, second, most, first.scale)

    def suspects(self, rule: AnyRule, decision: Decision, geometry: Geometry, clients: Sequence[int]) -> dict[int, str]:
        """Return the clients whose distances differ between the two sketches, and by how much."""
        if len(clients) < 3:  # of two clients no majority can be formed
            return {}
        rows = rows_to_recheck(decision, geometry, rule.max_byzantine())
        chosen = [clients[row] for row in rows]
        others = self._compared_with(len(rows), rule.max_byzantine())
        measured = self.measured(chosen)
        unfit = ~(measured.squared_norms[: len(chosen)] <= norm_limit(self.source.roster.dtype))  # True for NaN
        if unfit.any():  # finite in the first sketch: no ratio shows them
            return {chosen[row]: NOT_FINITE for row in np.flatnonzero(unfit)}
        first, second, at = geometry, geometry_of(self.source, measured, self.looks), np.array(rows)
        rounding = ROUNDING * (first.squared_lengths[rows] + second.squared_lengths)
        typical = np.empty(len(rows))
        for low in range(0, len(rows), size := stripe_rows(len(others))):
            some = np.arange(low, min(low + size, len(rows)))
            distances = first.squared_distances_between(at[some], at[others])
            distances = distances + np.add.outer(rounding[some], rounding[others])
            between = second.squared_distances_between(some, others)
            with np.errstate(over="ignore"):  # an attacker may be arbitrarily far away
                ratios = np.divide(between, distances, out=np.zeros_like(distances), where=distances > 0)
            itself = some[:, None] == others
            ratios[itself] = np.inf
            middle = np.where(itself.any(axis=1), len(others) - 2, len(others) - 1) // 2
            typical[some] = np.take_along_axis(np.sort(ratios, axis=1), middle[:, None], axis=1)[:, 0]
        return {chosen[i]: self._reason(typical[i]) for i in np.flatnonzero(~(typical <= self.most))}

    def _compared_with(self, n_clients: int, withstands: int | None) -> Array:
        """Return the rows that each client is compared with: all, or of many a sample with an honest majority.

        It is drawn by the second seed, which no attacker knows. If f of the n clients attack, half of s drawn are
        attackers with a probability of at most exp(-2 s (1/2 - f/n)^2) (Hoeffding), and s is such that this is
        `PROBABILITY_OF_ERROR`. A rule that does not know f is granted `GRANTED` of the clients; one that knows it is
        granted f, and where f is so near to half that the sample would be all clients, all are compared.
        """
        if n_clients < ROWS_FROM_CLIENTS:
            return np.arange(n_clients)
        share = GRANTED if withstands is None else withstands / n_clients
        enough = -math.log(PROBABILITY_OF_ERROR) / (2 * max(0.5 - share, 1e-9) ** 2)
        if n_clients <= enough:
            return np.arange(n_clients)
        return np.sort(generator_of(self.seed, RECHECK_DRAW).choice(n_clients, math.ceil(enough), replace=False))

    def _reason(self, ratio: float) -> str:
        return (
            f"its squared distances to most others are {ratio:.3g} times larger by the projection drawn at close than "
            f"by the one drawn before, where {self.most:.2g} is the most for an update that depends on neither"
        )

    def has_read(self, clients: Sequence[int]) -> bool:
        return self.read is not None and set(clients) <= set(self.read.clients)

    def measured(self, clients: Sequence[int]) -> Measurements:
        """Return the second sketch of these clients; each is read once."""
        known = set() if self.read is None else set(self.read.clients)
        new = [client for client in clients if client not in known]
        if self.read is None or new:
            reading = self.source.measure(self.sketch, self.seed, Reading(new, scale=self.scale))
            self.read = reading if self.read is None else Measurements.joined([self.read, reading])
        if self.compared is None or not set(clients) <= set(self.compared.clients):
            self.compared, self.looks = self.read.of(clients).on_host(), {}
        return self.compared.of(clients)


def rows_to_recheck(decision: Decision, geometry: Geometry, withstands: int | None) -> list[int]:
    """Return all rows that enter the result, and as many others as an honest majority needs.

    With at most f attackers, 2f + 1 others have an honest majority; where f is not known all are taken. Those close to
    the heaviest come first, since small distances show most.
    """
    used, stage = np.asarray(decision.weights > 0), decision.coordinate_stage
    if stage is not None:
        used[stage.used(len(used))] = True
    enough = len(used) if withstands is None else 2 * withstands + 2
    near = geometry.squared_distances_from(int(np.argmax(decision.weights)))
    order: Array = np.lexsort((near, ~used))
    return sorted(order[: max(enough, int(used.sum()), 3)].tolist())
