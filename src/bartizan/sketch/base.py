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

TWICE = 2**15  # columns of a block that is read twice, by the sketch and for the dots: it stays in cache


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
        return self.read(clients, fresh_seed() if seed is None else checked_seed(seed))[0]

    def look(self, clients: Updates, seed: int) -> Look:
        sketches, norms, dots = self.read(clients, seed)
        # Read once more about that row: the sketches may have lost the digits in which the clients differ.
        return Look(inner_products(sketches), norms, lambda row: inner_products(self.read(clients, seed, row)[0]), dots)

    def read(self, clients: Updates, seed: int, about: int | None = None) -> tuple[Floats, Floats, Floats | None]:
        """One walk over the columns: sketches, exact squared norms, and exact dots with the trusted update if any.

        About the reference, or about one of the rows.
        """
        every, trusted = clients.everyone, clients.trusted is not None
        sketches, norms, dots = np.zeros((len(every), self.k)), np.zeros(len(every)), np.zeros(len(every))
        most = self.most or (TWICE if trusted else None)
        for start, rows, origin in clients.blocks(every, self.multiple_of, most):
            origin = origin if about is None else rows[about]
            self.add(rows, origin, start, seed, sketches, norms)
            if trusted:
                rows.kernels.dots(rows, origin, dots)
        return sketches, norms, dots if trusted else None


def inner_products(sketches: Floats) -> Floats:
    rows = Rows.of(sketches)
    gram = np.zeros((len(rows), len(rows)))
    rows.kernels.gram(rows, None, gram)
    return gram
