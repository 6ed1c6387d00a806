"""Sketch the selected clients again with a seed drawn after the last arrival."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bartizan._util.seeds import fresh_seed
from bartizan._util.types import Array, Floats
from bartizan.judge.quarantine import ODDS
from bartizan.measure.base import Projection, Sketch, SketchedRows
from bartizan.measure.geometry import Geometry, GramStats, MeasuredPoints, norm_limit
from bartizan.measure.rotated import Rotated
from bartizan.rules.base import Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.updates import Updates

# It costs one read: with a smaller k the kernels take longer, not less (`python -m studies adaptive cost`).
RECHECK_SKETCH = Rotated()
# Of squared norms: what float32 sums may have lost of a distance.
ROUNDING = 1e-11
NOT_FINITE = "its values are not finite, or too large, when it is read again: it has changed since it was sketched"
TRUSTED = -1  # key of the trusted update's reading, beside those of the clients


@dataclass(frozen=True)
class Recheck:
    """Sketches the selected clients and enough others again, with a seed of its own.

    Client i is judged by the lower median over the others j of d'_ij / d_ij, squared distances in the second sketch
    over those in the first. Attackers are the minority, so for an honest client most of these ratios are between honest
    clients; for an attacker in the first sketch's null space most are with honest clients, far away in the second.

    Where all clients were sketched again, the rule weighs by the second sketch: no update was made for its seed.
    """

    sketch: Projection
    most: float
    """The largest ratio of squared distances, second sketch over first, of an update that depends on neither seed."""
    seed: int = field(default_factory=fresh_seed, repr=False)
    readings: dict[int, tuple[SketchedRows, int]] = field(default_factory=dict, repr=False)  # rows of what was read
    stats: dict[tuple[int, ...], GramStats] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, first: Sketch, second: Projection = RECHECK_SKETCH) -> Recheck | None:
        """For a round that was sketched by `first`; None where that projects nothing, or guarantees nothing."""
        least = first.typical_norm_ratio_range(ODDS)[0] if isinstance(first, Projection) else 0.0
        return cls(second, second.norm_ratio_range(ODDS)[1] / least) if least else None

    def suspects(
        self, rule: Rule | CoordinateWise, decision: Decision, geometry: Geometry, clients: Updates
    ) -> dict[int, str]:
        """Clients whose distances differ between the two sketches, and by how much."""
        if len(clients) < 3:  # of two clients no majority can be formed
            return {}
        rows = rows_to_recheck(decision, geometry, rule.max_byzantine())
        if unusable := self._unusable(clients.only(rows)):
            return unusable
        first, second = geometry, self.geometry(clients.only(rows))
        slack = np.add.outer(*[ROUNDING * (_squared_norms(first)[rows] + _squared_norms(second))] * 2)
        distances = first.squared_distances[np.ix_(rows, rows)] + slack
        with np.errstate(over="ignore"):  # an attacker may be arbitrarily far away
            ratios = np.divide(second.squared_distances, distances, out=np.zeros_like(distances), where=distances > 0)
        others = np.sort(ratios + np.diag(np.full(len(rows), np.inf)), axis=1)[:, :-1]
        typical = others[:, (len(rows) - 2) // 2]
        return {clients.clients[rows[i]]: self._reason(typical[i]) for i in np.flatnonzero(~(typical <= self.most))}

    def _unusable(self, clients: Updates) -> dict[int, str]:
        """Clients whose numbers were finite in the first sketch, and are not in the second: no ratio shows them."""
        self._read(clients)
        limit = norm_limit(clients.layout.widest)
        norms = {
            client: float(self.readings[client][0].squared_norms[self.readings[client][1]])
            for client in clients.clients
        }
        return {client: NOT_FINITE for client, norm in norms.items() if not norm <= limit}

    def _reason(self, ratio: float) -> str:
        return (
            f"its squared distances to most others are {ratio:.3g} times larger by the projection drawn at close than "
            f"by the one drawn before, where {self.most:.2g} is the most for an update that depends on neither"
        )

    def has_read(self, clients: Updates) -> bool:
        return all(client in self.readings for client in clients.clients)

    def geometry(self, clients: Updates, **more: Any) -> Geometry:
        """The geometry of these clients in the second sketch; each client is read once."""
        trusted = self._read(clients)
        stats = self._stats((*clients.clients, *trusted), clients)
        return Geometry.from_stats(stats, len(clients), seed=self.seed, **more)

    def _read(self, clients: Updates) -> list[int]:
        """Sketch those of these clients again that were not yet; the key of the trusted update, if there is one."""
        new = [row for row, client in enumerate(clients.clients) if client not in self.readings]
        trusted = [] if clients.trusted is None else [TRUSTED]
        if new:
            clients.column_pass.begin("recheck")
            reading = self.sketch.sketch_rows(clients.only(new), self.seed)
            for at, client in enumerate([*(clients.clients[row] for row in new), *trusted]):
                self.readings[client] = reading, at
        return trusted

    def _stats(self, rows: tuple[int, ...], clients: Updates) -> GramStats:
        """Gram statistics of these rows: a part of earlier ones where possible, else from their sketches."""
        for before, stats in self.stats.items():
            if set(rows) <= set(before):
                return stats if rows == before else stats.keep(np.array([before.index(row) for row in rows]))
        parts = [self.readings[row] for row in rows]
        known = parts[0][0]
        if [at if part is known else None for part, at in parts] != list(range(len(known.squared_norms))):
            known = SketchedRows.concatenated([part.part(slice(at, at + 1)) for part, at in parts])
        self.stats[rows] = self.sketch.stats_from(clients, known, self.seed)
        return self.stats[rows]


def rows_to_recheck(decision: Decision, geometry: Geometry, withstands: int | None) -> list[int]:
    """All rows that enter the result, and as many others as an honest majority needs.

    With at most f attackers, 2f + 1 others have an honest majority; where f is not known all are taken. Those close to
    the heaviest come first, since small distances show most.
    """
    used, stage = np.asarray(decision.weights > 0), decision.coordinate_stage
    if stage is not None:
        used[stage.used(len(used))] = True
    enough = len(used) if withstands is None else 2 * withstands + 2
    near = geometry.squared_distances[int(np.argmax(decision.weights))]
    order: Array = np.lexsort((near, ~used))
    return sorted(order[: max(enough, int(used.sum()), 3)].tolist())


def _squared_norms(geometry: Geometry) -> Floats:
    """Squared norms about the point that distances were taken from."""
    points = geometry.points
    assert isinstance(points, MeasuredPoints)
    about = points.products if points.about_centre is None else points.about_centre
    return np.diag(about)[: geometry.n_clients]
