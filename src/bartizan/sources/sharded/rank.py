"""Decide one verdict for all ranks: each sums over its columns, the first decides, the others answer its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Literal

import numpy as np

from bartizan._util.stopwatch import Stopwatch
from bartizan._util.types import Floats
from bartizan.judge.judge import Verdict, decide
from bartizan.measure import Exact, Sketch
from bartizan.measure.base import Projection, StreamingSketch
from bartizan.measure.geometry import GramStats, norm_limit
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sources.sharded.collectives import Failure, RankGrid
from bartizan.sources.sharded.shard import padded_to_block
from bartizan.updates import Noise, Updates, combine
from bartizan.updates.columns import inner_products
from bartizan.updates.layout import on_host


@dataclass(frozen=True)
class PartialSums:
    """Sums over the columns of one rank; those of all ranks add up to the Gram statistics of all columns."""

    sketch: Sketch
    clients: Updates
    first: int  # coordinate of the whole update that the first column is
    seed: int

    @cached_property
    def _padded(self) -> Updates:
        if not isinstance(self.sketch, Projection):
            return self.clients
        return padded_to_block(self.clients, self.first, self.sketch.multiple_of)

    def zeros(self) -> list[Any]:
        """Zeros in place of the sums, from a rank that failed."""
        M = len(self.clients) + (self.clients.trusted is not None)
        if not isinstance(self.sketch, StreamingSketch):
            return [np.zeros((M, M))]
        k = self.sketch.k if isinstance(self.sketch, Projection) else 0
        return [np.zeros((M, k)), np.zeros(M), np.zeros(M if self.clients.trusted is not None else 0)]

    def sums(self, about: int | None = None) -> list[Any]:
        """The sums over these columns, about the reference or about a row."""
        sketch, clients = self.sketch, self._padded
        if isinstance(sketch, Exact):
            return [sketch.gram(clients, about)]
        if not isinstance(sketch, StreamingSketch):
            raise TypeError(f"{sketch!r} can't read columns by themselves: wanted Exact() or a projection.")
        rows = sketch.sketch_rows(clients, self.seed, None if about is None else clients.all_rows.take([about]))
        dots = clients.all_rows.zeros(0) if rows.trusted_dots is None else rows.trusted_dots
        return [rows.sketches, rows.squared_norms, dots]

    def squared_norms(self, sums: Sequence[Any]) -> Floats:
        """The squared norms over these columns alone, as a NumPy array."""
        norms = sums[1] if isinstance(self.sketch, StreamingSketch) else sums[0].diagonal()
        return np.array(on_host(norms))

    def gram_stats(self, totals: Sequence[Any], totals_about: Callable[[int], Sequence[Any]]) -> GramStats:
        """Gram statistics from the totals of all ranks; `totals_about` gives the totals about a row."""
        gram = self._gram(totals[0])
        if isinstance(self.sketch, StreamingSketch):
            norms, dots = map(on_host, totals[1:])
        else:
            norms, dots = np.diag(gram).copy(), gram[-1]
        trusted = self.clients.trusted is not None
        short = self.sketch.short_of_digits(self.clients)
        return GramStats(gram, norms, lambda row: self._gram(totals_about(row)[0]), dots if trusted else None, short)

    def _gram(self, total: Any) -> Floats:
        """Symmetric to the last bit, which sums of several ranks need not be."""
        if isinstance(self.sketch, StreamingSketch) and isinstance(total, np.ndarray):
            return inner_products(total)
        gram = on_host(total @ total.T if isinstance(self.sketch, StreamingSketch) else total)
        return (gram + gram.T) / 2


@dataclass(frozen=True)
class Request:
    """A request of the first rank to all: new sums about a row, the faults of rows, or the error of the last sum."""

    wanted: Literal["sums", "faults", "error"]
    rows: Sequence[int] = ()


class Rank:
    """One rank's part in one round."""

    def __init__(self, ranks: RankGrid, partial: PartialSums, width: int, watch: Stopwatch) -> None:
        self._ranks, self._partial, self._watch = ranks, partial, watch
        self._where = f"rank {ranks.global_rank}, columns {partial.first} to {partial.first + width}"
        self._norms = np.zeros(len(partial.clients))
        self._failure: Failure | None = None

    def verdict(
        self, rule: Rule | CoordinateWise, sketch: Sketch, sizes: Floats, history: tuple[float, ...], strict: bool
    ) -> Verdict:
        """The verdict, the same on all ranks; or the same error."""

        def decided() -> Verdict:
            return decide(
                rule,
                self._partial.clients,
                self._partial.gram_stats(self._checked(totals), self._sum_about),
                sketch=sketch,
                sizes=sizes,
                seed=self._partial.seed,
                history=history,
                strict=strict,
                watch=self._watch,
                find_faults=self._find_faults,
            )

        totals = self._sum(None)
        if self._ranks.is_leader:
            verdict = self._request(self._ranks.attempt(decided, of_all_ranks=True))
        else:
            self._watch.lap("sketch")
            while not isinstance(verdict := self._request(), Verdict):
                self._answer(verdict)
        self._watch.lap("weigh")
        return verdict

    def combined(self, verdict: Verdict) -> Any:
        """This rank's columns of the result."""
        decision, clients = verdict.decision, self._partial.clients.without(verdict.quarantined)
        noise = Noise(decision.noise, verdict.seed, self._partial.first)
        return combine(clients, decision.weights, decision.coordinate_stage, noise)

    def _request(self, request: Request | Verdict | Failure | None = None) -> Any:
        """Send a request or the verdict, on the first rank; receive it, on the others."""
        return self._ranks.broadcast(request, Request, Verdict)

    def _answer(self, request: Request) -> None:
        if request.wanted == "sums":
            self._sum(request.rows[0])
        elif request.wanted == "faults":
            self._all_faults(request.rows)
        else:
            self._raise_failure()

    def _sum(self, about: int | None) -> list[Any]:
        """The totals of all ranks, on the first one. A rank that fails sends zeros, and counts as failed.

        Copies do not take part: their sums would be the same.
        """
        if not self._ranks.in_first_copy:
            return []
        sums = self._ranks.attempt(lambda: self._own_sums(about))
        self._failure = sums if isinstance(sums, Failure) else None
        own = self._partial.zeros() if isinstance(sums, Failure) else sums
        return self._ranks.sum_to_leader([*own, np.array([float(self._failure is not None)])])

    def _own_sums(self, about: int | None) -> list[Any]:
        sums = self._partial.sums(about)
        if about is None:
            self._norms = self._partial.squared_norms(sums)
        return sums

    def _checked(self, totals: list[Any]) -> list[Any]:
        if float(totals[-1][0]):
            self._request(Request("error"))
            self._raise_failure()
        return totals[:-1]

    def _raise_failure(self) -> None:
        self._ranks.gather(self._failure, NoneType)

    def _sum_about(self, row: int) -> list[Any]:
        self._request(Request("sums", [row]))
        return self._checked(self._sum(row))

    def _find_faults(self, clients: Updates, rows: Sequence[int]) -> list[str]:
        self._request(Request("faults", rows))
        overflow = "its values are so large that their squares, summed over all ranks, overflow"
        faults = zip(*self._all_faults(rows), strict=True)
        return [next((fault for fault in of_a_row if fault), overflow) for of_a_row in faults]

    def _all_faults(self, rows: Sequence[int]) -> list[list[str | None]]:
        clients = self._partial.clients
        limit = norm_limit(clients.layout.widest)

        def own() -> list[str | None]:
            return [None if self._norms[row] <= limit else f"{self._where}: {clients.fault(row)}" for row in rows]

        return self._ranks.gather(self._ranks.attempt(own), list)
