"""Base classes of the sketches: linear maps R^p -> R^k that are pure functions of (seed, k, p)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.kernels.rows import UNIT
from bartizan.measure.measurements import SHORT_OF_DIGITS, SHORT_OF_FLOAT32_DIGITS, Measurements
from bartizan.updates import UpdateRows, Updates, parse_updates
from bartizan.updates.layout import Layout, on_host

UseBlock = Callable[[Updates, int, ColumnBlock], None]
"""Takes some clients, the first column of a block, and the block's rows of these clients."""
PROBABILITY_OF_ERROR = 1e-9  # per round, of quarantining an honest client by the norm of its sketch
COLUMNS_READ_TWICE = 2**15  # of a block that is read for the sketch and for the dots: it stays in cache


class Sketch(ABC):
    """A linear map of the updates from which the clients' distances are computed."""

    @abstractmethod
    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        """Sketch each client's update to a row of k numbers; without a seed, a fresh secret one is drawn."""

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        """Return the range of |Px|^2 / |x|^2 for a vector x that was chosen without the seed.

        The ratio is below the first number, and above the second, each with at most this probability. (0, inf) is no
        guarantee.
        """
        return 0.0, np.inf

    def working_set(self) -> tuple[int, int | None]:
        """Return the numbers that are kept per client, and the columns read in place at a time (None if none are)."""
        return 0, None


class ColumnSketch(Sketch):
    """A sketch of the columns of updates."""

    @abstractmethod
    def measure(self, clients: Updates, seed: int, about: UpdateRows | None = None) -> Measurements:
        """Measure all clients, a trusted update last, in one pass over the columns.

        Rows are taken from the reference, or from the one row of `about`.
        """


class StreamingSketch(ColumnSketch):
    """A sketch that reads each update separately, so that a round can sketch updates as they arrive.

    A row depends on the update, its layout and the seed, never on the other rows: a round that sketches updates as
    they arrive keeps the same numbers, to the bit, as one call that has them all.
    """

    most: ClassVar[int | None] = None
    """The most columns of a block that `add` takes; None: as many as memory admits."""

    @property
    def unit(self) -> int:
        """Columns of a row that are summed separately."""
        return UNIT

    @property
    def multiple_of(self) -> int:
        """The divisor of the width of every block that `add` takes, but the last one."""
        return 1

    @abstractmethod
    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        """Add the contribution of these columns to the rows' sketches and to their exact squared norms."""

    def measure(
        self, clients: Updates, seed: int, about: UpdateRows | None = None, use: UseBlock | None = None
    ) -> Measurements:
        """Measure as many clients at a time as memory admits; `use` gets each block of columns too, as it is read."""
        trusted, (k, _), tile, measured = clients.trusted is not None, self.working_set(), self.multiple_of, []
        most = self.widest_block(trusted=trusted)
        short = SHORT_OF_DIGITS if clients.reference is None else self._short_of_digits(clients.layout)
        for part in clients.parts(self.unit):
            M = len(part.clients) + trusted
            flat = part.rows.zeros(M * (k + 1 + trusted))  # where the rows are, in one allocation
            sketches, norms = flat[: M * k].reshape(M, k), flat[M * k : M * (k + 1)]
            dots = flat[M * (k + 1) :] if trusted else None
            for start, rows, origin in part.units(self.unit if most is None else tile, most, about, tile):
                self.add(rows, origin, start, seed, sketches, norms)
                if dots is not None:
                    rows.kernels.dots(rows, origin, dots)
                if use is not None:
                    use(part, start, rows)
            found = Measurements(part.clients, norms, sketches, None, dots, short, part.scale, self, seed)
            measured.append(found)
        return Measurements.joined(measured)

    def _short_of_digits(self, layout: Layout) -> float:
        """Return the least ratio of squared distance to squared norm whose digits survive, beside a reference."""
        return SHORT_OF_DIGITS

    def widest_block(self, *, trusted: bool) -> int | None:
        """The most columns that `add` takes at a time, on which the last digits may depend; None: any whole units."""
        return self.most or (COLUMNS_READ_TWICE if trusted and self.working_set()[0] else None)

    def working_set(self) -> tuple[int, int | None]:
        return 0, self.unit


@dataclass(frozen=True)
class Projection(StreamingSketch):
    """A random k x p matrix that is a function of the seed and is never stored."""

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise ValueError(f"{type(self).__name__} needs k, a positive whole number of dimensions; got {self.k!r}.")

    def working_set(self) -> tuple[int, int | None]:
        return self.k, self.unit

    def typical_norm_ratio_range(self, odds: float) -> tuple[float, float]:
        """The same range for vectors that were not fitted to the structure of the sketch."""
        return self.norm_ratio_range(odds)

    def __call__(self, updates: Any, *, seed: int | None = None) -> Floats:
        """
        >>> from bartizan import Rotated
        >>> Rotated(k=64)([[1.0, 2.0], [0.5, -1.0]], seed=7).shape
        (2, 64)
        """
        clients = parse_updates(updates, strict=True)
        return on_host(self.measure(clients, fresh_seed() if seed is None else checked_seed(seed)).sketches)

    def _short_of_digits(self, layout: Layout) -> float:
        return SHORT_OF_FLOAT32_DIGITS if layout.widest.itemsize < 8 else SHORT_OF_DIGITS
