"""Base class of the coordinate-wise rules."""

from __future__ import annotations

from abc import ABC, abstractmethod

from bartizan._util.types import Array, Floats
from bartizan.rules.robust import Robust


class CoordinateWise(Robust, ABC):
    """A rule that reduces the M values of each coordinate to one; there is no single weight a client."""

    needs_distances = False

    def __call__(self, columns: Array, sizes: Floats) -> Floats:
        """Reduce (M, w) finite values to (w,)."""
        self.check(len(columns))
        return self.reduce(columns, sizes)

    @abstractmethod
    def reduce(self, columns: Array, sizes: Floats) -> Floats:
        """Reduce (M, w) values to (w,); the breakdown condition was checked."""
