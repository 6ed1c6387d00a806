"""The sums over one rank's columns; those of all ranks add up to the Gram statistics of all columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.distributed.shard import padded_to_block
from bartizan.geometry import GramStats
from bartizan.kernels.rows import Rows
from bartizan.sketch import Exact, Sketch
from bartizan.sketch.base import Projection, StreamingSketch
from bartizan.updates import Updates
from bartizan.updates.layout import on_host


@dataclass(frozen=True)
class PartialSums:
    """Sums over the columns of this rank."""

    sketch: Sketch
    clients: Updates
    first: int  # coordinate of the whole update that the first column is
    seed: int

    @cached_property
    def _padded(self) -> Updates:
        if not isinstance(self.sketch, Projection):
            return self.clients
        return padded_to_block(self.clients, self.first, self.sketch.multiple_of)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the sums: known without reading, so that a rank that fails can send zeros."""
        M = len(self.clients) + (self.clients.trusted is not None)
        if not isinstance(self.sketch, StreamingSketch):
            return [(M, M)]
        k = self.sketch.k if isinstance(self.sketch, Projection) else 0
        return [(M, k), (M,), (M if self.clients.trusted is not None else 0,)]

    def sums(self, about: int | None = None) -> list[Any]:
        """About the reference, or about a row."""
        sketch, clients = self.sketch, self._padded
        if isinstance(sketch, Exact):
            return [sketch.gram(clients, about)]
        if not isinstance(sketch, StreamingSketch):
            raise TypeError(f"{sketch!r} can't read columns by themselves: wanted Exact() or a projection.")
        rows = sketch.sketch_rows(clients, self.seed, None if about is None else clients.all_rows.take([about]))
        dots = clients.all_rows.zeros(0) if rows.trusted_dots is None else rows.trusted_dots
        return [rows.sketches, rows.squared_norms, dots]

    def squared_norms(self, sums: Sequence[Any]) -> Floats:
        """Of these columns alone, as a NumPy array."""
        norms = sums[1] if isinstance(self.sketch, StreamingSketch) else sums[0].diagonal()
        return np.array(on_host(norms))

    def gram_stats(self, totals: Sequence[Any], totals_about: Callable[[int], Sequence[Any]]) -> GramStats:
        """From the totals of all ranks; `totals_about` gives those about a row."""
        gram = self._gram(totals[0])
        if isinstance(self.sketch, StreamingSketch):
            norms, dots = map(on_host, totals[1:])
        else:
            norms, dots = np.diag(gram).copy(), gram[-1]
        trusted = self.clients.trusted is not None
        return GramStats(gram, norms, lambda row: self._gram(totals_about(row)[0]), dots if trusted else None)

    def _gram(self, total: Any) -> Floats:
        """Symmetric to the last bit, which sums of several ranks need not be."""
        if isinstance(self.sketch, StreamingSketch) and isinstance(total, np.ndarray):
            rows, gram = Rows.of(total), np.zeros((len(total), len(total)))
            rows.kernels.gram(rows, None, gram)
            return gram
        gram = on_host(total @ total.T if isinstance(self.sketch, StreamingSketch) else total)
        return (gram + gram.T) / 2
