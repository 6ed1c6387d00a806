"""What a rank's columns contribute to the look at all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.distributed.shard import at_their_place
from bartizan.geometry import GramStats
from bartizan.kernels.rows import Rows
from bartizan.sketch import Exact, Sketch
from bartizan.sketch.base import Projection, StreamingSketch
from bartizan.updates import Updates
from bartizan.updates.layout import on_host


@dataclass(frozen=True)
class Contribution:
    """Sums over the columns here. Those of all ranks add up to what one process would see."""

    effective_sketch: Sketch
    clients: Updates
    first: int  # which of all coordinates their first column is
    seed: int

    @cached_property
    def _placed(self) -> Updates:
        if not isinstance(self.effective_sketch, Projection):
            return self.clients
        return at_their_place(self.clients, self.first, self.effective_sketch.multiple_of)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the sums: they are known without a look, so that a rank that fails can send zeros."""
        M = len(self.clients) + (self.clients.trusted is not None)
        if not isinstance(self.effective_sketch, StreamingSketch):
            return [(M, M)]
        k = self.effective_sketch.k if isinstance(self.effective_sketch, Projection) else 0
        return [(M, k), (M,), (M if self.clients.trusted is not None else 0,)]

    def sums(self, about: int | None = None) -> list[Any]:
        """About the reference, or about a row."""
        effective_sketch, clients = self.effective_sketch, self._placed
        if isinstance(effective_sketch, Exact):
            return [effective_sketch.gram(clients, about)]
        if not isinstance(effective_sketch, StreamingSketch):
            raise TypeError(f"{effective_sketch!r} can't look at columns: wanted Exact() or a projection.")
        row = None if about is None else clients.everyone.rows([about])
        reading = effective_sketch.sketch_rows(clients, self.seed, row)
        dots = clients.everyone.zeros(0) if reading.trusted_dots is None else reading.trusted_dots
        return [reading.sketches, reading.squared_norms, dots]

    def squared_norms(self, sums: Sequence[Any]) -> Floats:
        """Of these columns alone, as NumPy's."""
        norms = sums[1] if isinstance(self.effective_sketch, StreamingSketch) else sums[0].diagonal()
        return np.array(on_host(norms))

    def gram_stats(self, totals: Sequence[Any], again: Callable[[int], Sequence[Any]]) -> GramStats:
        """What all ranks together saw; `again` asks them to look about a row."""
        gram = self._gram(totals[0])
        if isinstance(self.effective_sketch, StreamingSketch):
            norms, dots = map(on_host, totals[1:])
        else:
            norms, dots = np.diag(gram).copy(), gram[-1]
        trusted = self.clients.trusted is not None
        return GramStats(gram, norms, lambda row: self._gram(again(row)[0]), dots if trusted else None)

    def _gram(self, total: Any) -> Floats:
        """Symmetric to the last bit, which sums of several ranks need not be."""
        if isinstance(self.effective_sketch, StreamingSketch) and isinstance(total, np.ndarray):
            rows, gram = Rows.of(total), np.zeros((len(total), len(total)))
            rows.kernels.gram(rows, None, gram)
            return gram
        gram = on_host(total @ total.T if isinstance(self.effective_sketch, StreamingSketch) else total)
        return (gram + gram.T) / 2
