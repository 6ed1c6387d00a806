"""Exact norms only, for rules that need no distances; they also show which updates are not finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.geometry import GramStats
from bartizan.kernels.rows import UNIT
from bartizan.sketch.base import StreamingSketch
from bartizan.sketch.sketched_rows import SketchedRows
from bartizan.updates import UpdateRows, Updates, parse_updates


@dataclass(frozen=True)
class Norms(StreamingSketch):
    """The exact norms of the updates, at the cost of one read."""

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        clients = parse_updates(updates, strict=True)
        return np.sqrt(clients.rows.host(self.sketch_rows(clients, 0).squared_norms)[0])[:, None]

    def sketch_part(self, clients: Updates, seed: int, about: UpdateRows | None = None) -> SketchedRows:
        sketched = SketchedRows.empty(clients.all_rows, 0, trusted=clients.trusted is not None)
        for _, rows, origin in clients.units(UNIT, None, about):
            rows.kernels.squared_norms(rows, origin, sketched.squared_norms)
            if sketched.trusted_dots is not None:
                rows.kernels.dots(rows, origin, sketched.trusted_dots)
        return sketched

    def stats_from(self, clients: Updates, sketched: SketchedRows, seed: int) -> GramStats:
        norms, dots = clients.all_rows.host(sketched.squared_norms, sketched.trusted_dots)
        nothing = np.zeros((len(norms), len(norms)))
        return GramStats(nothing, norms, lambda row: nothing, dots)
