"""What every sketch is: a linear map R^p -> R^k that is a pure function of (seed, k, p)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bartizan.geometry import Look
from bartizan.kernels.rows import Rows
from bartizan.randomness import checked_seed, fresh_seed
from bartizan.types import Array, Floats
from bartizan.updates import Updates


class Sketch(ABC):
    """How the aggregator looks at the updates."""

    @abstractmethod
    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        """One row of k numbers a client; without a seed, a fresh secret one."""

    @abstractmethod
    def look(self, clients: Updates, seed: int) -> Look:
        """One walk over the p coordinates: all that the geometry needs."""


@dataclass(frozen=True)
class Projection(Sketch):
    """A random matrix that is drawn afresh from each seed, and never held."""

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise ValueError(f"{type(self).__name__} needs k, a positive whole number of dimensions; got {self.k!r}.")

    @abstractmethod
    def add(self, rows: Rows, origin: Floats | None, start: int, seed: int, out: Floats, norms: Floats) -> None:
        """Add what these columns contribute to the sketches of the rows, and to their exact squared norms."""

    # Blocks of columns that `add` takes: a multiple of this, and at most that (None: as memory allows).
    multiple_of: ClassVar[int] = 1
    most: ClassVar[int | None] = None

    def __call__(self, updates: Any, *, seed: int | None = None) -> Floats:
        """
        >>> from bartizan import Rotated
        >>> Rotated(k=64)([[1.0, 2.0], [0.5, -1.0]], seed=7).shape
        (2, 64)
        """
        clients = Updates.of(updates, strict=True)
        seed = fresh_seed() if seed is None else checked_seed(seed)
        out, norms = np.zeros((len(clients.rows), self.k)), np.zeros(len(clients.rows))
        for start, rows, origin in clients.blocks(clients.rows, self.multiple_of, self.most):
            self.add(rows, origin, start, seed, out, norms)
        return out

    def look(self, clients: Updates, seed: int) -> Look:
        from bartizan.kernels import cpu

        every = clients.every_row()
        sketches, norms, dots = np.zeros((len(every), self.k)), np.zeros(len(every)), np.zeros(len(every))
        for start, rows, origin in clients.blocks(every, self.multiple_of, self.most):
            self.add(rows, origin, start, seed, sketches, norms)
            if clients.trusted is not None:
                cpu.dots(rows, origin, dots)

        def about(row: int | None) -> Floats:
            gram = np.zeros((len(every), len(every)))
            cpu.gram(Rows.of(sketches), None if row is None else sketches[row], gram)
            return gram

        return Look(about(None), norms, about, dots if clients.trusted is not None else None)
