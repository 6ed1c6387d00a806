"""No projection: the exact Gram matrix, or the exact norms alone for rules that need no distances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.kernels.protocol import ColumnBlock, Vector
from bartizan.measure.base import Sketch, SketchedRows, StreamingSketch
from bartizan.measure.geometry import SHORT_OF_DIGITS, SHORT_OF_FLOAT32_SUMS, GramStats
from bartizan.updates import Updates, parse_updates

AddProbed = Callable[[ColumnBlock, Vector | None, int, Vector], None]


@dataclass(frozen=True)
class Exact(Sketch):
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

    def gram_stats(self, clients: Updates, seed: int, probe: AddProbed | None = None) -> GramStats:
        """`probe`, if any, adds the blocks' inner products to the Gram matrix, and takes something more of them."""

        def about(row: int) -> Floats:
            return clients.all_rows.host(self.gram(clients, row))[0]

        gram = clients.all_rows.host(self.gram(clients, probe=probe))[0]
        dots = gram[-1] if clients.trusted is not None else None
        return GramStats(gram, np.diag(gram).copy(), about, dots, self.short_of_digits(clients), 1 / clients.scale)

    def short_of_digits(self, clients: Updates) -> float:
        return SHORT_OF_FLOAT32_SUMS if clients.on_gpu and clients.layout.widest.itemsize < 8 else SHORT_OF_DIGITS

    def gram(self, clients: Updates, about: int | None = None, probe: AddProbed | None = None) -> Floats:
        """The inner products of all rows, about the reference or about a row, where the rows are."""
        every = clients.all_rows
        gram = every.zeros(len(every), len(every))
        for start, rows, origin in clients.blocks(every):
            if about is not None:
                origin = every.row(about, start, start + rows.width)
            if probe is None:
                rows.kernels.gram(rows, origin, gram)
            else:
                probe(rows, origin, start, gram)
        return gram


@dataclass(frozen=True)
class Norms(StreamingSketch):
    """The exact norms of the updates, at the cost of one read."""

    def __call__(self, updates: Any, *, seed: int | None = None) -> Array:
        clients = parse_updates(updates, strict=True)
        return np.sqrt(clients.rows.host(self.sketch_rows(clients, 0).squared_norms)[0])[:, None]

    def add(self, rows: ColumnBlock, origin: Vector | None, start: int, seed: int, out: Vector, norms: Vector) -> None:
        rows.kernels.squared_norms(rows, origin, norms)

    def stats_from(self, clients: Updates, sketched: SketchedRows, seed: int) -> GramStats:
        norms, dots = clients.all_rows.host(sketched.squared_norms, sketched.trusted_dots)
        nothing = np.broadcast_to(np.float64(0), (len(norms), len(norms)))
        return GramStats(nothing, norms, lambda row: nothing, dots, unit=1 / clients.scale, norms_only=True)
