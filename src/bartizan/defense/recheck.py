"""A second look by a seed that is drawn when a round closes: to know the first one's helps nobody."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bartizan._util.seeds import fresh_seed
from bartizan._util.types import Array, Floats
from bartizan.defense.quarantine import ODDS
from bartizan.geometry import Geometry, GramStats, MeasuredPoints
from bartizan.rules.base import Decision, Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch.base import Projection, Sketch
from bartizan.sketch.rotated import Rotated
from bartizan.sketch.sketched_rows import SketchedRows
from bartizan.updates.updates import Updates

# A read is what it costs: with a smaller k the kernels take longer, not less (`benchmarks/adaptive.py cost`).
RECHECK_SKETCH = Rotated()
# Of squared norms: what float32 sums may have lost of a distance.
ROUNDING = 1e-11
TRUSTED = -1  # whose reading it is, beside those of the clients


@dataclass(frozen=True)
class Recheck:
    """Looks again at those who were chosen and at enough others, by a seed of its own.

    Client i is judged by the lower median over the others j of d'_ij / d_ij, squared distances in the second look over
    those in the first. Attackers are the minority, so for an honest client most of these ratios are between honest
    ones; for one who hides in the first look's null space most are with honest ones who see it far away now.

    That names those who are found out. Where all were read again, the rule weighs by this look and not by the first: no
    update was made for it.
    """

    most: float
    """How many times larger a squared distance may be in the second look."""
    seed: int = field(default_factory=fresh_seed, repr=False)
    readings: dict[int, SketchedRows] = field(default_factory=dict, repr=False)
    looks: dict[tuple[int, ...], GramStats] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, sketch: Sketch) -> Recheck | None:
        """For a round that was looked at by this sketch; None where it projects nothing, or promises nothing."""
        least = sketch.typical_norm_ratio_range(ODDS)[0] if isinstance(sketch, Projection) else 0.0
        return cls(RECHECK_SKETCH.norm_ratio_range(ODDS)[1] / least) if least else None

    def found_out(
        self, rule: Rule | CoordinateWise, decision: Decision, geometry: Geometry, clients: Updates
    ) -> dict[int, str]:
        """Rows whose place is another in the second look than in the first, and how much so."""
        if len(clients) < 3:  # two can't tell which of them lies
            return {}
        rows = witnesses(decision, geometry, rule.max_byzantine(), len(clients.quarantined))
        first, again = geometry, self.geometry(clients.only(rows))
        slack = np.add.outer(*[ROUNDING * (_squares(first)[rows] + _squares(again))] * 2)
        distances = first.squared_distances[np.ix_(rows, rows)] + slack
        with np.errstate(over="ignore"):  # a attacker may be as far as can be
            ratios = np.divide(again.squared_distances, distances, out=np.zeros_like(distances), where=distances > 0)
        others = np.sort(ratios + np.diag(np.full(len(rows), np.inf)), axis=1)[:, :-1]
        typical = others[:, (len(rows) - 2) // 2]
        return {rows[i]: self._reason(typical[i]) for i in np.flatnonzero(typical > self.most)}

    def _reason(self, ratio: float) -> str:
        return (
            f"its squared distances to most others are {ratio:.3g} times larger by the projection drawn at close than "
            f"by the one drawn before, where {self.most:.2g} is the most of an update that knows neither"
        )

    def has_read(self, clients: Updates) -> bool:
        return all(client in self.readings for client in clients.clients)

    def geometry(self, clients: Updates, **more: Any) -> Geometry:
        """The second look at these clients; who was read already is not read again."""
        new = [row for row, client in enumerate(clients.clients) if client not in self.readings]
        vouched = [] if clients.trusted is None else [TRUSTED]
        if new:
            clients.column_pass.begin("recheck")
            reading = RECHECK_SKETCH.sketch_rows(clients.only(new), self.seed)
            for at, who in enumerate([*(clients.clients[row] for row in new), *vouched]):
                self.readings[who] = reading.part(slice(at, at + 1))
        return Geometry.from_stats(
            self._look((*clients.clients, *vouched), clients), len(clients), seed=self.seed, **more
        )

    def _look(self, rows: tuple[int, ...], clients: Updates) -> GramStats:
        """Of these rows; a part of one that there was, which may have been read once more already."""
        for before, look in self.looks.items():
            if set(rows) <= set(before):
                return look if rows == before else look.keep(np.array([before.index(row) for row in rows]))
        known = SketchedRows.concatenated([self.readings[row] for row in rows])
        self.looks[rows] = RECHECK_SKETCH.stats_from(clients, known, self.seed)
        return self.looks[rows]


def witnesses(decision: Decision, geometry: Geometry, withstands: int | None, gone: int) -> list[int]:
    """The rows that are read again: all that enter the answer, and others for an honest majority.

    With at most f attackers, 2f + 1 others have an honest majority; where f is not known all are taken. Those close to
    the heaviest come first, since small distances show most.
    """
    used = np.asarray(
        decision.weights > 0 if decision.coordinate_stage is None else decision.coordinate_stage.mixing.any(axis=0)
    )
    enough = len(used) if withstands is None else 2 * max(0, withstands - gone) + 2
    near = geometry.squared_distances[int(np.argmax(decision.weights))]
    order: Array = np.lexsort((near, ~used))
    return sorted(order[: max(enough, int(used.sum()), 3)].tolist())


def _squares(geometry: Geometry) -> Floats:
    """Squared norms about the point that distances were taken from."""
    points = geometry.points
    assert isinstance(points, MeasuredPoints)
    about = points.products if points.about_centre is None else points.about_centre
    return np.diag(about)[: geometry.n_clients]
