"""Mixing matrices of many clients, without M x M numbers: of few entries per row, or of neighbours as bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan._util.machine import free_memory
from bartizan._util.types import Array, Floats
from bartizan.errors import MemoryBudgetError


def check_memory(needed: int, what: str) -> None:
    """Raise MemoryBudgetError unless so many bytes of memory are free."""
    if needed > (free := free_memory("cpu")):
        raise MemoryBudgetError(
            f"{what} takes about {needed / 2**30:,.0f} GiB, and {free / 2**30:,.0f} GiB are free. Of many clients, "
            "GeometricMedian, MCA, CenteredClipping, Krum, MultiKrum, CAF and FLAME need no such matrix, with NNM in "
            "front or not; Bucketing(size=...) in front of a rule makes fewer clients."
        )


class MixingMatrix(ABC):
    """A matrix of M' rows and M columns, by what is asked of it."""

    shape: tuple[int, int]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    @abstractmethod
    def sums(self) -> Floats:
        """The sums of the rows."""

    @abstractmethod
    def mix(self, X: Floats, centre: Floats, out: Floats) -> None:
        """Write A (X - centre) into `out`; A is this matrix."""

    @abstractmethod
    def back(self, weights: Floats) -> Floats:
        """Return A' w: the clients' weights from those of their mixtures."""

    @abstractmethod
    def stripe(self, first: int, last: int) -> Floats:
        """Return rows first:last of A as a dense array."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        n, M = self.shape
        check_memory(8 * n * M, f"A mixing matrix of {n:,} x {M:,} numbers")
        return self.stripe(0, len(self)).astype(dtype or np.float64, copy=False)

    def __matmul__(self, other: Any) -> Floats:
        return np.concatenate([self.stripe(row, row + 1) @ other for row in range(len(self))])


@dataclass(frozen=True, eq=False)
class Listed(MixingMatrix):
    """Few entries: row `rows[e]` has `values[e]` in column `columns[e]`; rows ascend."""

    rows: Array
    columns: Array
    values: Floats
    shape: tuple[int, int]

    @classmethod
    def of(cls, mixing: Floats | MixingMatrix) -> Listed | None:
        """Return a matrix with at most as many entries as rows or columns; None if it has more."""
        if isinstance(mixing, MixingMatrix):
            return mixing if isinstance(mixing, Listed) else None
        if np.count_nonzero(mixing) > max(mixing.shape):
            return None
        rows, columns = np.nonzero(mixing)
        return cls(rows, columns, mixing[rows, columns], mixing.shape)

    @classmethod
    def diagonal(cls, factors: Floats) -> Listed:
        """Return the matrix that scales each client."""
        every = np.arange(len(factors))
        return cls(every, every, factors, (len(factors), len(factors)))

    @property
    def sums(self) -> Floats:
        return np.bincount(self.rows, self.values, len(self)).astype(np.float64)

    def mix(self, X: Floats, centre: Floats, out: Floats) -> None:
        from bartizan.kernels import row_passes

        out[:] = 0
        row_passes.add_listed(self.rows, self.columns, self.values, X, centre, out)

    def back(self, weights: Floats) -> Floats:
        return np.bincount(self.columns, self.values * weights[self.rows], self.shape[1]).astype(np.float64)

    def __matmul__(self, other: Any) -> Floats:
        return np.bincount(self.rows, self.values * other[self.columns], len(self)).astype(np.float64)

    def stripe(self, first: int, last: int) -> Floats:
        own = slice(*np.searchsorted(self.rows, [first, last]))
        out = np.zeros((last - first, self.shape[1]))
        out[self.rows[own] - first, self.columns[own]] = self.values[own]
        return out


@dataclass(frozen=True, eq=False)
class Neighbours(MixingMatrix):
    """Averages, by sizes, of the clients whose bit is set in each row: M^2 / 8 bytes."""

    bits: Array
    sizes: Floats
    totals: Floats

    @classmethod
    def of(cls, stripes: Iterable[Array], sizes: Floats) -> Neighbours:
        """Pack rows of booleans, some at a time."""
        packed, totals = [], []
        for near in stripes:
            packed.append(np.packbits(near, axis=1))
            totals.append(near @ sizes)
        return cls(np.concatenate(packed), sizes, np.concatenate(totals))

    @cached_property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        return len(self.bits), len(self.sizes)

    @property
    def sums(self) -> Floats:
        return np.ones(len(self.bits))

    def stripe(self, first: int, last: int) -> Floats:
        near = np.unpackbits(self.bits[first:last], axis=1, count=len(self.sizes))
        out: Floats = near * self.sizes
        out /= self.totals[first:last, None]
        return out

    def mix(self, X: Floats, centre: Floats, out: Floats) -> None:
        from bartizan.kernels import row_passes

        for first, last in self._parts():
            out[first:last] = row_passes.mixtures(self.stripe(first, last), X, centre)

    def back(self, weights: Floats) -> Floats:
        from bartizan.kernels import row_passes

        out = np.zeros(self.shape[1])
        for first, last in self._parts():
            out += row_passes.weighted(self.stripe(first, last), np.zeros_like(out), weights[first:last])
        return out

    def _parts(self) -> Iterable[tuple[int, int]]:
        size = max(16, 2**23 // self.shape[1] // 16 * 16)
        return ((low, min(low + size, len(self))) for low in range(0, len(self), size))
