"""Rows of all p coordinates on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from bartizan._util.types import Array, Floats
from bartizan.kernels import gpu
from bartizan.kernels.gpu.device_rows import TILE
from bartizan.kernels.rows import FLOAT32, FLOAT64
from bartizan.updates.columns import MatrixRows, Row, UpdateRows
from bartizan.updates.layout import Layout

if TYPE_CHECKING:
    from bartizan.updates.build import ColumnFunction

MIXED_NUMBERS = 2**21  # float64 numbers of rows and mixtures that are in memory at a time
MIRROR_FROM_NUMBERS = 2**16  # of a Gram matrix, from which on the device makes it symmetric faster than the host


@dataclass(frozen=True, eq=False)
class GpuRows:
    """Rows of all p coordinates, each a list of flat tensors; or the rows of one matrix."""

    arrays: Sequence[Sequence[torch.Tensor]]  # of row m and entry e: arrays[m][e]
    ends: Array
    matrix: torch.Tensor | None = None
    placed: dict[int, gpu.Placed] = field(default_factory=dict)  # by tile: kept for a second pass

    on_gpu: ClassVar[bool] = True
    needs_copy: ClassVar[bool] = False

    @classmethod
    def of(cls, rows: Sequence[Row], layout: Layout) -> GpuRows:
        return cls([row.floats for row in rows], layout.ends)

    @classmethod
    def of_matrix(cls, x: torch.Tensor, layout: Layout) -> GpuRows:
        if x.requires_grad or x.ndim > 2:
            x = x.detach().reshape(len(x), -1)
        return cls(MatrixRows(x), layout.ends, x)

    def __len__(self) -> int:
        return len(self.arrays)

    @property
    def first(self) -> Sequence[torch.Tensor]:
        return self.arrays[0]

    @property
    def device(self) -> torch.device:
        return self.first[0].device

    @property
    def wide(self) -> torch.dtype:
        """The precision of sums of these rows."""
        return torch.float64 if any(array.dtype == torch.float64 for array in self.first) else torch.float32

    @property
    def dtype(self) -> np.dtype:
        return FLOAT64 if self.wide == torch.float64 else FLOAT32

    def take(self, indices: Sequence[int] | Array) -> GpuRows:
        return GpuRows([self.arrays[int(i)] for i in indices], self.ends)

    def with_row(self, other: GpuRows) -> GpuRows:
        """Return these rows, and after them the one row of `other`, in their dtypes."""
        alike = [row.to(own.dtype) for row, own in zip(other.first, self.first, strict=True)]
        return GpuRows([*(self.arrays[m] for m in range(len(self))), alike], self.ends)

    def blocks(
        self, multiple_of: int = 1, most: int | None = None, *, narrow: bool = True, tile: int = 1
    ) -> gpu.Placed:
        """Blocks of columns; the kernels choose their widths."""
        tile = max(TILE, tile)
        if tile not in self.placed:
            rows = [self.arrays[m] for m in range(len(self))] if self.matrix is None else self.matrix
            self.placed[tile] = gpu.Placed.of(rows, tile)
        return self.placed[tile]

    def row(self, index: int, start: int, stop: int) -> torch.Tensor:
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right")
        begins = np.append(0, self.ends)
        pieces = [self.arrays[index][e][max(0, start - begins[e]) : stop - begins[e]] for e in range(first, last + 1)]
        return pieces[0].to(self.wide) if len(pieces) == 1 else torch.cat([piece.to(self.wide) for piece in pieces])

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def weighted_sum(self, weights: Floats, rest: float, reference: UpdateRows | None) -> tuple[torch.Tensor, ...]:
        """sum_m w_m x_m + rest * reference, an array an entry; rows of weight 0 are not read."""
        out = torch.empty(int(self.ends[-1]), dtype=self._common, device=self.device)
        origin = reference if rest else None
        for start, rows in self.blocks():
            about = origin.row(0, start, start + rows.width) if origin is not None else None
            part = out if rows.width == len(out) else out[start : start + rows.width]
            gpu.weighted_sum(rows, weights, rest, about, part)
        return self._entries(out)

    def reduce(
        self, then: ColumnFunction, mixing: Floats | None, rest: Floats, reference: UpdateRows | None
    ) -> tuple[torch.Tensor, ...]:
        """A function of each column of the rows or of mixtures of them; by way of the host where it has no kernel."""
        kernel = then.kernel(gpu)
        out = torch.empty(int(self.ends[-1]), dtype=self.wide, device=self.device)
        for start, rows in self.blocks():
            part = out[start : start + rows.width]
            if mixing is None and kernel is not None:
                kernel(rows, out=part)
                continue
            for low, x in self._mixtures(start, rows, mixing, rest, reference):
                result = part[low : low + x.shape[1]]
                if kernel is not None:
                    kernel(gpu.DeviceRows.of(x), out=result)
                else:
                    result.copy_(torch.from_numpy(np.asarray(then.reduce(x.cpu().numpy()), dtype=np.float64)))
        return self._entries(out)

    def _mixtures(
        self, start: int, rows: gpu.DeviceRows, mixing: Floats | None, rest: Floats, reference: UpdateRows | None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """(first column, mixtures in float64), a few columns at a time; without a mixing matrix, the rows."""
        if mixing is None:
            yield from gpu.copied(rows, None)
            return
        there, short = (torch.from_numpy(array).to(self.device) for array in (mixing, rest))
        origin = None if reference is None else reference.row(0, start, start + rows.width)
        step = max(1, MIXED_NUMBERS // sum(mixing.shape))
        for low in range(0, rows.width, step):
            high = min(low + step, rows.width)
            x = torch.empty((len(mixing), high - low), dtype=torch.float64, device=self.device)
            gpu.mixed(rows, there, short, origin, low, x)
            yield low, x

    def _entries(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A result of all columns as one tensor an entry, each in its dtype."""
        if len(self.ends) == 1:
            return (flat if flat.dtype == self.first[0].dtype else flat.to(self.first[0].dtype),)
        pieces = torch.split(flat, np.diff(self.ends, prepend=0).tolist())
        return tuple(piece.to(own.dtype) for piece, own in zip(pieces, self.first, strict=True))

    @property
    def _common(self) -> torch.dtype:
        """The dtype of all entries, or one that holds them all."""
        dtypes = {array.dtype for array in self.first}
        return dtypes.pop() if len(dtypes) == 1 else self.wide


def host(*arrays: Any) -> tuple[Any, ...]:
    """Return these tensors as NumPy arrays, by one transfer: the only time that the host waits for the device.

    Gram matrices come out the same both ways, to the last bit.
    """
    there = [mirrored(array) for array in arrays if array is not None]
    here = [torch.empty(array.shape, dtype=array.dtype, pin_memory=array.is_cuda) for array in there]
    for array, copy in zip(there, here, strict=True):
        copy.copy_(array, non_blocking=array is not there[-1])  # in order: when the last is here, all are
    copies = (copy.numpy() for copy in here)
    out = (None if array is None else next(copies) for array in arrays)
    return tuple((a + a.T) / 2 if a is not None and is_gram(a) and a.size < MIRROR_FROM_NUMBERS else a for a in out)


def mirrored(array: Any) -> Any:
    """A large Gram matrix, made symmetric where it is."""
    return (array + array.T) / 2 if is_gram(array) and array.numel() >= MIRROR_FROM_NUMBERS else array


def is_gram(array: Any) -> bool:
    return array.ndim == 2 and array.shape[0] == array.shape[1]
