"""What every sketch is: a linear map R^p -> R^k that is a pure function of (seed, k, p)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bartizan.geometry import Look
from bartizan.kernels.rows import Rows
from bartizan.randomness import checked_seed, fresh_seed
from bartizan.sketch.reading import Reading
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


class Streaming(Sketch):
    """A sketch that reads each update by itself, so that it can do so as they arrive."""

    @abstractmethod
    def read_few(self, clients: Updates, seed: int) -> Reading:
        """The walk over the p coordinates of as many clients as may be held at a time, a trusted update's row last."""

    def read(self, clients: Updates, seed: int) -> Reading:
        """The walk over the p coordinates of all clients, a trusted update's row last."""
        return Reading.stacked([self.read_few(part, seed) for part in clients.parts()])

    @abstractmethod
    def seen(self, clients: Updates, reading: Reading, seed: int) -> Look:
        """What the geometry needs, from what was read; the clients are there to be read once more, if it must be."""

    def look(self, clients: Updates, seed: int) -> Look:
        return self.seen(clients, self.read(clients, seed), seed)


@dataclass(frozen=True)
class Projection(Streaming):
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
        seed = fresh_seed() if seed is None else checked_seed(seed)
        return self.read(Updates.of(updates, strict=True), seed).sketches

    def read_few(self, clients: Updates, seed: int) -> Reading:
        from bartizan.kernels import cpu

        every = clients.every_row()
        reading = Reading.empty(len(every), self.k, trusted=clients.trusted is not None)
        for start, rows, origin in clients.blocks(every, self.multiple_of, self.most, fixed=True):
            self.add(rows, origin, start, seed, reading.sketches, reading.squared_norms)
            if reading.dots is not None:
                cpu.dots(rows, origin, reading.dots)
        return reading

    def seen(self, clients: Updates, reading: Reading, seed: int) -> Look:
        from bartizan.kernels import cpu

        sketches = reading.sketches

        def about(row: int | None) -> Floats:
            gram = np.zeros((len(sketches), len(sketches)))
            cpu.gram(Rows.of(sketches), None if row is None else sketches[row], gram)
            return gram

        return Look(about(None), reading.squared_norms, about, reading.dots)
