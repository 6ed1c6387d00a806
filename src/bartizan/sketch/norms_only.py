"""Only the norms: for rules that want no distances, but whose clients must be finite all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.geometry import GramStats
from bartizan.kernels.rows import UNIT
from bartizan.sketch.base import Streaming
from bartizan.sketch.reading import Reading
from bartizan.updates import UpdateRows, Updates, parse_updates


@dataclass(frozen=True)
class Norms(Streaming):
    """One read of the updates, for their exact squared norms."""

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        clients = parse_updates(updates, strict=True)
        return np.sqrt(clients.located.host(self.read(clients, 0).squared_norms)[0])[:, None]

    def read_few(self, clients: Updates, seed: int, about: UpdateRows | None = None) -> Reading:
        reading = Reading.empty(clients.everyone, 0, trusted=clients.trusted is not None)
        for _, rows, origin in clients.units(UNIT, None, about):
            rows.kernels.squared_norms(rows, origin, reading.squared_norms)
            if reading.dots is not None:
                rows.kernels.dots(rows, origin, reading.dots)
        return reading

    def seen(self, clients: Updates, reading: Reading, seed: int) -> GramStats:
        norms, dots = clients.everyone.host(reading.squared_norms, reading.dots)
        nothing = np.zeros((len(norms), len(norms)))
        return GramStats(nothing, norms, lambda row: nothing, dots)
