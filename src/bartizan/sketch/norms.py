"""Only the norms: for rules that want no distances, but whose clients must be finite all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan.geometry import Look
from bartizan.sketch.base import Streaming
from bartizan.sketch.reading import Reading
from bartizan.types import Array
from bartizan.updates import Updates


@dataclass(frozen=True)
class Norms(Streaming):
    """One read of the updates, for their exact squared norms."""

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        clients = Updates.of(updates, strict=True)
        return np.sqrt(self.read(clients, 0).squared_norms)[:, None]

    def read_few(self, clients: Updates, seed: int) -> Reading:
        from bartizan.kernels import cpu

        every = clients.every_row()
        reading = Reading.empty(len(every), 0, trusted=clients.trusted is not None)
        for _, rows, origin in clients.blocks(every, fixed=True):
            cpu.squared_norms(rows, origin, reading.squared_norms)
            if reading.dots is not None:
                cpu.dots(rows, origin, reading.dots)
        return reading

    def seen(self, clients: Updates, reading: Reading, seed: int) -> Look:
        nothing = np.zeros((len(reading.squared_norms), len(reading.squared_norms)))
        return Look(nothing, reading.squared_norms, lambda row: nothing, reading.dots)
