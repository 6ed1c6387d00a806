"""What a coordinate-wise rule is: a function of each column by itself, so one that no projection can serve."""

from __future__ import annotations

from abc import ABC, abstractmethod

from bartizan._util.types import Array, Floats
from bartizan.rules.robust import Robust


class CoordinateWise(Robust, ABC):
    """M values and sizes in, one value out, for each of the p coordinates; there is no one weight a client."""

    needs_distances = False

    def __call__(self, columns: Array, sizes: Floats) -> Floats:
        """Reduce (M, w) finite values to (w,)."""
        self.check(len(columns))
        return self.reduce(columns, sizes)

    @abstractmethod
    def reduce(self, columns: Array, sizes: Floats) -> Floats:
        """The answer; the breakdown condition holds already."""
