"""The interface that the kernels for host memory, for a GPU and the reference definitions share."""

from __future__ import annotations

from typing import Any, Protocol

Vector = Any
"""A NumPy array, or a torch tensor on the device of the rows."""


class Kernels(Protocol):
    """A module of kernels; `reference` defines what each of them computes.

    `rows` is a block of columns, `origin` the point that is subtracted first (None for zero), `start` the index of the
    block's first coordinate among all. Results are added to `out` and `norms`, which are float64; weighted sums, order
    statistics and mixtures are written. `sizes` is a float64 array in host memory, one positive number per row.
    """

    def gram(self, rows: Any, origin: Vector | None, out: Vector) -> None: ...

    def squared_norms(self, rows: Any, origin: Vector | None, out: Vector) -> None: ...

    def dots(self, rows: Any, origin: Vector | None, out: Vector) -> None: ...

    def weighted_sum(self, rows: Any, weights: Vector, rest: Any, origin: Vector | None, out: Any) -> None: ...

    def median(self, rows: Any, sizes: Any, out: Any) -> None: ...

    def trimmed_mean(self, rows: Any, sizes: Any, f: int, out: Any) -> None: ...

    def meamed(self, rows: Any, sizes: Any, f: int, out: Any) -> None: ...

    def mixed(self, rows: Any, mixing: Any, rest: Any, origin: Vector | None, start: int, out: Vector) -> None: ...

    def rotated(
        self, rows: Any, origin: Vector | None, start: int, key: Any, mixing: int, out: Vector, norms: Vector
    ) -> None: ...

    def achlioptas(
        self, rows: Any, origin: Vector | None, start: int, key: Any, s: int, out: Vector, norms: Vector
    ) -> None: ...

    def gaussian(self, rows: Any, origin: Vector | None, start: int, key: Any, out: Vector, norms: Vector) -> None: ...


class ColumnBlock(Protocol):
    """The rows of a block of columns, in host memory or on a GPU, and the kernels that can read them."""

    def __len__(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def kernels(self) -> Kernels: ...
