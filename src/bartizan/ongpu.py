"""Rows on a GPU: what `Located` is for host memory, so that sketches and rules need not know where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bartizan.columns import Columns, Row
from bartizan.kernels import gpu
from bartizan.kernels.gpu.rows import TILE
from bartizan.kernels.rows import FLOAT32, FLOAT64
from bartizan.types import Array, Floats


@dataclass(frozen=True, eq=False)
class OnGpu:
    """Rows of all p coordinates, each a list of flat tensors; or the rows of one matrix."""

    arrays: Any  # of row m and entry e: arrays[m][e]
    ends: Array
    matrix: Any = None

    odd = False

    @classmethod
    def of(cls, rows: Sequence[Row], columns: Columns) -> OnGpu:
        return cls([row.floats for row in rows], columns.ends)

    @classmethod
    def of_matrix(cls, x: Any) -> OnGpu:
        x = x.detach().reshape(len(x), -1)
        return cls([(row,) for row in x], np.array([x.shape[1]]), x)

    def __len__(self) -> int:
        return len(self.arrays)

    @property
    def device(self) -> Any:
        return self.arrays[0][0].device

    @property
    def dtype(self) -> np.dtype:
        return FLOAT64 if any(array.dtype == torch.float64 for array in self.arrays[0]) else FLOAT32

    def rows(self, indices: Sequence[int] | Array) -> OnGpu:
        """Some of the rows."""
        chosen = [int(i) for i in indices]
        one = self.matrix is not None and len(chosen) == 1
        return OnGpu([self.arrays[i] for i in chosen], self.ends, self.matrix[chosen[0], None] if one else None)

    def with_row(self, other: OnGpu) -> OnGpu:
        """These rows, and the one of `other`, in their dtypes."""
        alike = [row.to(own.dtype) for row, own in zip(other.arrays[0], self.arrays[0], strict=True)]
        return OnGpu([*self.arrays, alike], self.ends)

    def blocks(
        self, multiple_of: int = 1, most: int | None = None, *, narrow: bool = True, tile: int = 1
    ) -> Iterator[tuple[int, Any]]:
        """Walk the columns: (first coordinate, where the block's rows lie); the kernels cut blocks as they like."""
        yield from gpu.walk(self.arrays if self.matrix is None else self.matrix, max(TILE, tile))

    def row(self, index: int, start: int, stop: int) -> Any:
        """These columns of one row, in one piece."""
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        begins = np.append(0, self.ends)
        pieces = [self.arrays[index][e][max(0, start - begins[e]) : stop - begins[e]] for e in range(first, last + 1)]
        return pieces[0] if len(pieces) == 1 else torch.cat([piece.to(self._wide) for piece in pieces])

    @property
    def _wide(self) -> Any:
        return torch.float64 if self.dtype == FLOAT64 else torch.float32

    def zeros(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def inner_products(self, sketches: Any) -> Any:
        upper = torch.triu(sketches @ sketches.T)
        return upper + torch.triu(upper, 1).T  # the same both ways, to the last bit

    def host(self, *arrays: Any) -> tuple[Any, ...]:
        """These arrays as NumPy's, by one transfer: the only time that the host waits for the device."""
        there = [array for array in arrays if array is not None]
        ends = np.cumsum([array.numel() for array in there])
        flat = iter(np.split(torch.cat([array.reshape(-1) for array in there]).cpu().numpy(), ends))
        return tuple(None if array is None else next(flat).reshape(tuple(array.shape)) for array in arrays)

    def combined(self, weights: Floats, rest: float, reference: OnGpu | None) -> list[Any]:
        """sum_m w_m x_m + rest * reference, an array an entry; rows of weight 0 are not read."""
        numbers = torch.from_numpy(np.append(weights, rest)).to(self.device, non_blocking=True)
        out = torch.empty(int(self.ends[-1]), dtype=self._common, device=self.device)
        origin = rest and reference
        for start, rows in self.blocks():
            part = out[start : start + rows.width]
            about = origin.row(0, start, start + rows.width) if origin else None
            gpu.weighted_sum(rows, numbers[:-1], part, about, numbers[-1:] if origin else None)
        return self.entries(out)

    def entries(self, flat: Any) -> list[Any]:
        """A result of all columns as one tensor an entry, each in its dtype."""
        pieces = flat.split(np.diff(self.ends, prepend=0).tolist())
        return [piece.to(own.dtype) for piece, own in zip(pieces, self.arrays[0], strict=True)]

    @property
    def _common(self) -> Any:
        """The dtype of all entries, or one that holds them all."""
        dtypes = {array.dtype for array in self.arrays[0]}
        return dtypes.pop() if len(dtypes) == 1 else self._wide

    def reduced(
        self, function: Callable[[Array], Floats], mixing: Floats, rest: Floats, reference: OnGpu | None, most: int
    ) -> list[Any]:
        """A coordinate-wise function of the mixed rows, by way of the host: it sorts, which no kernel here does."""
        p = int(self.ends[-1])
        out = torch.empty(p, dtype=self._wide, device=self.device)
        for start in range(0, p, most):
            stop = min(start + most, p)
            x = mixing @ self.on_host(start, stop).astype(np.float64)
            if reference is not None:
                x += rest * reference.on_host(start, stop)
            out[start:stop] = torch.from_numpy(np.asarray(function(x), dtype=np.float64)).to(self.device)
        return self.entries(out)

    def on_host(self, start: int, stop: int) -> Array:
        """These columns of all rows, copied to host memory."""
        return torch.stack([self.row(m, start, stop).to(self._wide) for m in range(len(self))]).cpu().numpy()
