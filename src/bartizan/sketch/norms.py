"""Only the norms: for rules that want no distances, but whose clients must be finite all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan.geometry import Look
from bartizan.sketch.base import Sketch
from bartizan.types import Array
from bartizan.updates import Updates


@dataclass(frozen=True)
class Norms(Sketch):
    """One read of the updates, for their exact squared norms."""

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        clients = Updates.of(updates, strict=True)
        return np.sqrt(self.look(clients, 0).squared_norms)[:, None]

    def look(self, clients: Updates, seed: int) -> Look:
        every = clients.everyone
        norms, dots = np.zeros(len(every)), np.zeros(len(every))
        for _, rows, origin in clients.blocks(every):
            rows.kernels.squared_norms(rows, origin, norms)
            if clients.trusted is not None:
                rows.kernels.dots(rows, origin, dots)
        nothing = np.zeros((len(every), len(every)))
        return Look(nothing, norms, lambda row: nothing, dots if clients.trusted is not None else None)
