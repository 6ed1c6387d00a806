"""Where the numbers of one column block lie: a table of addresses, so that no kernel needs the rows gathered."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bartizan.types import Array


@dataclass(frozen=True)
class Rows:
    """`len(rows)` contiguous runs of `width` float32 or float64 numbers, one a client, anywhere in memory."""

    pointers: Array
    width: int
    dtype: np.dtype
    owner: object  # keeps the memory alive while the addresses are in use

    @classmethod
    def of(cls, arrays: Sequence[Array] | Array) -> Rows:
        """Point at the 1-D arrays of a sequence, or at the rows of a 2-D array."""
        arrays = [np.ascontiguousarray(a) for a in arrays]
        pointers = np.array([address(a) for a in arrays], dtype=np.uintp)
        return cls(pointers, arrays[0].size, arrays[0].dtype, arrays)

    def __len__(self) -> int:
        return len(self.pointers)

    def __getitem__(self, row: int) -> Array:
        """One row, as a view of its memory."""
        size = self.width * self.dtype.itemsize
        return np.frombuffer(memoryview((ctypes.c_char * size).from_address(int(self.pointers[row]))), self.dtype)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> Array:
        """All rows, copied."""
        return np.stack([self[row] for row in range(len(self))]).astype(dtype or self.dtype, copy=False)


def address(array: Array) -> int:
    return array.__array_interface__["data"][0]
