"""Base classes of the sketches: linear maps R^p -> R^k that are pure functions of (seed, k, p)."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from bartizan._util.seeds import checked_seed, fresh_seed
from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.kernels.rows import UNIT
from bartizan.measure.geometry import SHORT_OF_DIGITS, SHORT_OF_FLOAT32_DIGITS, GramStats
from bartizan.updates import UpdateRows, Updates, parse_updates
from bartizan.updates.columns import RowsElsewhere
from bartizan.updates.layout import is_tensor

UseBlock = Callable[[Updates, int, ColumnBlock], None]
"""Takes some clients, the first column of a block, and the block's rows of these clients."""
TWICE = 2**15  # columns of a block that is read twice, for the sketch and for the dots: it stays in cache


@dataclass(frozen=True)
class SketchedRows:
    """Sketches of updates, one a row, a trusted update last; `trusted_dots` are the exact inner products with it.

    A row depends on the update, its layout and the seed, never on the other rows: a round that sketches updates as
    they arrive keeps the same numbers, to the bit, as one call that has them all.
    """

    sketches: Floats
    squared_norms: Floats
    trusted_dots: Floats | None = None

    @classmethod
    def empty(cls, rows: UpdateRows, k: int, *, trusted: bool) -> SketchedRows:
        """Zeros on the device of these rows, for kernels to add to, in one allocation."""
        M = len(rows)
        flat = rows.zeros(M * (k + 1 + trusted))
        return cls(flat[: M * k].reshape(M, k), flat[M * k : M * (k + 1)], flat[M * (k + 1) :] if trusted else None)

    @classmethod
    def stacked(cls, parts: Sequence[SketchedRows]) -> SketchedRows:
        """The clients of all parts, in this order, and the last one's trusted update."""
        if len(parts) == 1:
            return parts[0]
        if parts[-1].trusted_dots is None:
            return cls.concatenated(parts)
        return cls.concatenated([*(part.part(slice(-1)) for part in parts[:-1]), parts[-1]])

    @classmethod
    def concatenated(cls, parts: Sequence[SketchedRows]) -> SketchedRows:
        """The rows of all parts, in order."""
        return cls(
            joined([part.sketches for part in parts]),
            joined([part.squared_norms for part in parts]),
            None if parts[-1].trusted_dots is None else joined([part.trusted_dots for part in parts]),
        )

    def part(self, rows: slice) -> SketchedRows:
        return SketchedRows(
            self.sketches[rows],
            self.squared_norms[rows],
            None if self.trusted_dots is None else self.trusted_dots[rows],
        )


def joined(parts: Sequence[Any]) -> Any:
    if is_tensor(parts[0]):
        return sys.modules["torch"].cat(list(parts))
    return np.concatenate(parts)


class Sketch(ABC):
    """A linear map of the updates from which the clients' distances are computed."""

    @abstractmethod
    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        """Sketch each client's update to a row of k numbers; without a seed, a fresh secret one is drawn."""

    @abstractmethod
    def gram_stats(self, clients: Updates, seed: int) -> GramStats:
        """Compute the Gram matrix and the exact squared norms, in one pass over the p coordinates."""

    def norm_ratio_range(self, odds: float) -> tuple[float, float]:
        """The range of |Px|^2 / |x|^2 for a vector x that was chosen without the seed.

        The ratio is below the first number, and above the second, with at most these odds. (0, inf) is no guarantee.
        """
        return 0.0, np.inf

    def short_of_digits(self, clients: Updates) -> float:
        """The least ratio of squared distance to squared norm for which the Gram matrix has enough digits."""
        return SHORT_OF_DIGITS

    def working_set(self) -> tuple[int, int | None]:
        """Numbers kept of each update, and columns of a row that are read in place at a time, None if none are."""
        return 0, None


class StreamingSketch(Sketch):
    """A sketch that reads each update separately, so that a round can sketch updates as they arrive."""

    unit: ClassVar[int] = UNIT  # columns of a row that are summed separately

    # Widths of the blocks of columns that `add` takes: a multiple of `multiple_of`, at most `most` (None: by memory).
    multiple_of: ClassVar[int] = 1
    most: ClassVar[int | None] = None

    @abstractmethod
    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        """Add the contribution of these columns to the rows' sketches and to their exact squared norms."""

    def sketch_part(
        self, clients: Updates, seed: int, about: UpdateRows | None = None, use: UseBlock | None = None
    ) -> SketchedRows:
        """Sketch as many clients as may be held at a time, a trusted update last, in one pass over the columns.

        Rows are centred at the reference, or at the row `about`. `use` gets each block of columns too, as it is read.
        """
        trusted, (k, _) = clients.trusted is not None, self.working_set()
        sketched = SketchedRows.empty(clients.all_rows, k, trusted=trusted)
        most = self.widest_block(trusted=trusted)
        multiple_of = self.unit if most is None else self.multiple_of
        for start, rows, origin in clients.units(multiple_of, most, about, self.multiple_of):
            self.add(rows, origin, start, seed, sketched.sketches, sketched.squared_norms)
            if sketched.trusted_dots is not None:
                rows.kernels.dots(rows, origin, sketched.trusted_dots)
            if use is not None:
                use(clients, start, rows)
        return sketched

    def widest_block(self, *, trusted: bool) -> int | None:
        """The most columns that `add` takes at a time, on which the last digits may depend; None: any whole units."""
        return self.most or (TWICE if trusted and self.working_set()[0] else None)

    @abstractmethod
    def stats_from(self, clients: Updates, sketched: SketchedRows, seed: int) -> GramStats:
        """Gram matrix and norms from sketched rows; `clients` are read again only where digits are short."""

    def sketch_rows(
        self, clients: Updates, seed: int, about: UpdateRows | None = None, use: UseBlock | None = None
    ) -> SketchedRows:
        """Sketch all clients, where they are."""
        if isinstance(clients.rows, RowsElsewhere):
            return clients.rows.sketched(self, clients, seed, about)
        return SketchedRows.stacked([self.sketch_part(part, seed, about, use) for part in clients.parts(self.unit)])

    def gram_stats(self, clients: Updates, seed: int) -> GramStats:
        return self.stats_from(clients, self.sketch_rows(clients, seed), seed)

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
        sketched = self.sketch_rows(clients, fresh_seed() if seed is None else checked_seed(seed))
        return clients.rows.host(sketched.sketches)[0]

    def stats_from(self, clients: Updates, sketched: SketchedRows, seed: int) -> GramStats:
        @lru_cache(maxsize=4)  # as clients leave the round, the same row is asked for again
        def about(row: int) -> Floats:
            # Read once more about that row: the sketches may have lost the digits in which the clients differ.
            again = self.sketch_rows(clients, seed, every.take([row])).sketches
            return every.host(every.inner_products(again))[0]

        every = clients.all_rows
        gram, norms, dots = every.host(
            every.inner_products(sketched.sketches), sketched.squared_norms, sketched.trusted_dots
        )
        return GramStats(gram, norms, about, dots, self.short_of_digits(clients), 1 / clients.scale)

    def short_of_digits(self, clients: Updates) -> float:
        narrow = clients.reference is not None and clients.layout.widest.itemsize < 8
        return SHORT_OF_FLOAT32_DIGITS if narrow else SHORT_OF_DIGITS
