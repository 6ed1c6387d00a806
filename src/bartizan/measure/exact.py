"""No projection: the exact Gram matrix, or the exact norms alone for rules that need no distances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan._util.types import Array
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.measure.base import ColumnSketch, StreamingSketch
from bartizan.measure.measurements import SHORT_OF_DIGITS, SHORT_OF_FLOAT32_SUMS, Measurements
from bartizan.updates import UpdateRows, Updates, parse_updates
from bartizan.updates.layout import on_host

AddProbed = Callable[[ColumnBlock, Vector | None, int, Vector], None]


@dataclass(frozen=True)
class Exact(ColumnSketch):
    """The identity: distances of the updates themselves, at a cost of M^2 p / 2 multiplications.

    >>> Exact()([[3.0, 4.0]]).tolist()
    [[3.0, 4.0]]
    """

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        """The updates as one (M, p) array; copied unless they are one already. Aggregation never calls this."""
        if isinstance(updates, np.ndarray) and updates.ndim == 2:
            return updates
        clients = parse_updates(updates, strict=True)
        return np.hstack([np.asarray(rows) for _, rows, _ in clients.blocks(clients.rows)])

    def measure(
        self, clients: Updates, seed: int, about: UpdateRows | None = None, probe: AddProbed | None = None
    ) -> Measurements:
        """`probe`, if any, adds the blocks' inner products to the Gram matrix, and takes something more of them."""
        every = clients.all_rows
        M, on_gpu = len(every), every.on_gpu
        gram = every.zeros(M, M)
        for start, rows, origin in clients.blocks(every):
            if about is not None:
                origin = about.row(0, start, start + rows.width)
            if probe is None:
                rows.kernels.gram(rows, origin, gram)
            else:
                probe(rows, origin, start, gram)
        norms = gram.diagonal() if on_gpu else gram.diagonal().copy()
        dots = gram[-1] if clients.trusted is not None else None
        short = SHORT_OF_FLOAT32_SUMS if on_gpu and clients.layout.widest.itemsize < 8 else SHORT_OF_DIGITS
        return Measurements(clients.clients, norms, None, gram, dots, short, clients.scale, self, seed)


@dataclass(frozen=True)
class Norms(StreamingSketch):
    """The exact norms of the updates, at the cost of one read."""

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        clients = parse_updates(updates, strict=True)
        return np.sqrt(on_host(self.measure(clients, 0).squared_norms))[:, None]

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.squared_norms(rows, origin, norms)
