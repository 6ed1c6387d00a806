"""Rows on a GPU: what `Located` is for host memory, so that sketches and rules need not know where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bartizan.columns import Columns, Lines, Row
from bartizan.kernels import gpu
from bartizan.kernels.gpu.rows import TILE
from bartizan.kernels.rows import FLOAT32, FLOAT64
from bartizan.types import Array, Floats

MANY = 256  # clients from which on the device mirrors a Gram matrix faster than the host


@dataclass(frozen=True, eq=False)
class OnGpu:
    """Rows of all p coordinates, each a list of flat tensors; or the rows of one matrix."""

    arrays: Any  # of row m and entry e: arrays[m][e]
    ends: Array
    matrix: Any = None
    placed: dict[int, Any] = field(default_factory=dict)  # by tile: made once, walked over twice

    odd = False

    @classmethod
    def of(cls, rows: Sequence[Row], columns: Columns) -> OnGpu:
        return cls([row.floats for row in rows], columns.ends)

    @classmethod
    def of_matrix(cls, x: Any, columns: Columns) -> OnGpu:
        x = x.detach().reshape(len(x), -1)
        return cls(Lines(x), columns.ends, x)

    def __len__(self) -> int:
        return len(self.arrays)

    @property
    def first(self) -> Sequence[Any]:
        return self.arrays[0]

    @property
    def device(self) -> Any:
        return self.first[0].device

    @property
    def wide(self) -> Any:
        """What sums of these rows are kept in."""
        return torch.float64 if any(array.dtype == torch.float64 for array in self.first) else torch.float32

    @property
    def dtype(self) -> np.dtype:
        return FLOAT64 if self.wide == torch.float64 else FLOAT32

    def rows(self, indices: Sequence[int] | Array) -> OnGpu:
        """Some of the rows."""
        return OnGpu([self.arrays[int(i)] for i in indices], self.ends)

    def with_row(self, other: OnGpu) -> OnGpu:
        """These rows, and the one of `other`, in their dtypes."""
        alike = [row.to(own.dtype) for row, own in zip(other.first, self.first, strict=True)]
        return OnGpu([*(self.arrays[m] for m in range(len(self))), alike], self.ends)

    def blocks(self, multiple_of: int = 1, most: int | None = None, *, narrow: bool = True, tile: int = 1) -> Any:
        """Walk the columns: (first coordinate, where the block's rows lie); the kernels cut blocks as they like."""
        tile = max(TILE, tile)
        if tile not in self.placed:
            self.placed[tile] = gpu.walk(
                self.matrix if self.matrix is not None else [self.arrays[m] for m in range(len(self))], tile
            )
        return self.placed[tile]

    def row(self, index: int, start: int, stop: int) -> Any:
        """These columns of one row, in one piece."""
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        begins = np.append(0, self.ends)
        pieces = [self.arrays[index][e][max(0, start - begins[e]) : stop - begins[e]] for e in range(first, last + 1)]
        return pieces[0].to(self.wide) if len(pieces) == 1 else torch.cat([piece.to(self.wide) for piece in pieces])

    def zeros(self, *shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def inner_products(self, sketches: Any) -> Any:
        gram = sketches @ sketches.T
        return gram if len(gram) < MANY else mirrored(gram)

    def host(self, *arrays: Any) -> tuple[Any, ...]:
        """These arrays as NumPy's, by one transfer: the only time that the host waits for the device.

        Square ones come out the same both ways, to the last bit.
        """
        there = [array for array in arrays if array is not None]
        flat = torch.cat([array.reshape(-1) for array in there]).cpu().numpy()
        at, out = 0, list[Any]()
        for array in arrays:
            if array is None:
                out.append(None)
                continue
            shape, count = tuple(array.shape), array.numel()
            here = flat[at : at + count].reshape(shape)
            at += count
            out.append(np.triu(here) + np.triu(here, 1).T if _square(shape) and len(here) < MANY else here)
        return tuple(out)

    def combined(self, weights: Floats, rest: float, reference: OnGpu | None) -> list[Any]:
        """sum_m w_m x_m + rest * reference, an array an entry; rows of weight 0 are not read."""
        chosen = np.flatnonzero(weights)
        if len(chosen) == 1 and weights[chosen[0]] == 1 and not rest:
            return [array.clone() for array in self.arrays[int(chosen[0])]]
        numbers = torch.from_numpy(np.append(weights, rest)).to(self.device, non_blocking=True)
        out = torch.empty(int(self.ends[-1]), dtype=self._common, device=self.device)
        origin = rest and reference
        for start, rows in self.blocks():
            about = origin.row(0, start, start + rows.width) if origin else None
            part = out if rows.width == len(out) else out[start : start + rows.width]
            gpu.weighted_sum(rows, numbers, numbers[-1:] if origin else None, about, part)
        return self._entries(out)

    def reduced(
        self, function: Callable[[Array], Floats], mixing: Floats, rest: Floats, reference: OnGpu | None, most: int
    ) -> list[Any]:
        """A coordinate-wise function of the mixed rows, by way of the host: it sorts, which no kernel here does."""
        p = int(self.ends[-1])
        out = torch.empty(p, dtype=self.wide, device=self.device)
        for start in range(0, p, most):
            stop = min(start + most, p)
            x = mixing @ self._on_host(start, stop).astype(np.float64)
            if reference is not None:
                x += rest * reference._on_host(start, stop)
            out[start:stop] = torch.from_numpy(np.asarray(function(x), dtype=np.float64)).to(self.device)
        return self._entries(out)

    def _on_host(self, start: int, stop: int) -> Array:
        return torch.stack([self.row(m, start, stop) for m in range(len(self))]).cpu().numpy()

    def _entries(self, flat: Any) -> list[Any]:
        """A result of all columns as one tensor an entry, each in its dtype."""
        if len(self.ends) == 1:
            return [flat.to(self.first[0].dtype)]
        pieces = flat.split(np.diff(self.ends, prepend=0).tolist())
        return [piece.to(own.dtype) for piece, own in zip(pieces, self.first, strict=True)]

    @property
    def _common(self) -> Any:
        """The dtype of all entries, or one that holds them all."""
        dtypes = {array.dtype for array in self.first}
        return dtypes.pop() if len(dtypes) == 1 else self.wide


def mirrored(gram: Any) -> Any:
    upper = torch.triu(gram)
    return upper + torch.triu(upper, 1).T


def _square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1]
