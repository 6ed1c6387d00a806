"""Columns on the ranks of a group as one source: the first rank judges, and asks the others for their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, TypeVar

import numpy as np

from bartizan._util.seeds import fresh_seed
from bartizan._util.stopwatch import Stopwatch
from bartizan.measure import Exact, Sketch
from bartizan.measure.geometry import norm_limit
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import ColumnSketch, Projection, StreamingSketch, exact_is_faster, settled
from bartizan.source import WHOLE, AnyRule, Combined, Judgement, Reading, Roster
from bartizan.sources.sharded.collectives import Failure, RankGrid
from bartizan.sources.sharded.shard import padded_to_block
from bartizan.updates import Noise, Updates, combine
from bartizan.updates.layout import on_host

T = TypeVar("T")
OVERFLOW = "its values are so large that their squares, summed over all ranks, overflow"


class ShardedUpdates:
    """Updates whose columns are on the ranks of a group, copies of them perhaps on further ranks.

    The first rank calls the methods of a `Source`, the others `follow`. A rank that fails tells all, and all raise.
    """

    def __init__(self, ranks: RankGrid, clients: Updates, first: int, widest: int, roster: Roster) -> None:
        self.ranks, self.clients, self.first, self.roster = ranks, clients, first, roster
        self._widest = widest  # columns of the rank that has most
        self._where = f"rank {ranks.global_rank}, columns {first} to {first + roster.dim}"
        self._norms: dict[int, float] = {}

    def refuses(self, rule: AnyRule, sketch: Sketch) -> str | None:
        if isinstance(sketch, (Exact, StreamingSketch)):
            return None
        return f"{sketch!r} can't read columns by themselves: wanted Exact() or a projection such as Rotated(k=4096)."

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        size = len(self.clients), self._widest, "cuda" if self.clients.on_gpu else "cpu"
        chosen = settled(sketch, rule.needs_distances, lambda: exact_is_faster(*size))
        return chosen, fresh_seed() if seed is None else seed

    def measure(self, sketch: Sketch, seed: int, reading: Reading = WHOLE) -> Measurements:
        clients, about, scale = reading
        some = None if clients is None or len(clients) == len(self.clients) else tuple(clients)
        total: Measurements = self._ask("_measure", sketch, seed, some, about, scale)
        return total

    def explain(self, clients: Sequence[int]) -> dict[int, str]:
        faults = zip(*self._ask("_explain", tuple(clients)), strict=True)
        reasons = (next((fault for fault in of_a_client if fault), OVERFLOW) for of_a_client in faults)
        return dict(zip(clients, reasons, strict=True))

    def combine(self, judgement: Judgement) -> Combined:
        combined: Combined = self._ask("_combine", judgement)
        return combined

    def follow(self, watch: Stopwatch) -> tuple[Combined, Judgement]:
        """Answer the first rank's requests, until a result is combined."""
        while True:
            verb, *arguments = self.ranks.broadcast(None, tuple)
            if verb == "_combine":
                watch.lap("weigh")
            answer = getattr(self, verb)(*arguments)
            watch.lap("combine" if verb == "_combine" else "sketch")
            if isinstance(answer, Combined):
                return answer, arguments[0]

    def _ask(self, verb: str, *arguments: Any) -> Any:
        """Have all ranks call one of the methods below, this one included."""
        self.ranks.broadcast((verb, *arguments), tuple)  # a class of its own would take 80 bytes more per request
        return getattr(self, verb)(*arguments)

    # What every rank does.

    def _measure(self, sketch: ColumnSketch, seed: int, *reading: Any) -> Measurements | None:
        """Measure these columns, and add up those of all ranks on the first one.

        Copies do not take part: their sums would be the same.
        """
        in_first_copy = self.ranks.in_first_copy
        measured = self._or_raise(lambda: self._own(sketch, seed, *reading) if in_first_copy else None)
        if measured is None:
            return None
        sums = summands(measured)
        totals = dict(zip(sums, self.ranks.sum_to_leader(list(sums.values())), strict=True))
        if not self.ranks.is_leader:
            return None
        if "gram" in totals:
            gram = on_host(totals["gram"])
            gram = (gram + gram.T) / 2  # symmetric to the last bit, which sums of several ranks need not be
            dots = None if measured.trusted_dots is None else gram[-1]
            totals = {"gram": gram, "squared_norms": np.diag(gram).copy(), "trusted_dots": dots}
        return replace(measured, **totals)

    def _or_raise(self, work: Callable[[], T]) -> T:
        """Return the result of `work` if it fails on no rank; else raise the error on all."""
        own = self.ranks.attempt(work)
        self.ranks.gather(own if isinstance(own, Failure) else None, NoneType)
        assert not isinstance(own, Failure)
        return own

    def _own(
        self, sketch: ColumnSketch, seed: int, clients: Sequence[int] | None, about: int | None, scale: float | None
    ) -> Measurements:
        own = self.clients if clients is None else self._only(clients)
        every = self.clients
        if isinstance(sketch, Projection):
            own, every = (padded_to_block(one, self.first, sketch.multiple_of) for one in (own, every))
        if scale is not None:
            own, every = own.scaled(scale), every.scaled(scale)
        if about is not None:
            return sketch.measure(own, seed, every.rows.take([every.clients.index(about)]))
        measured = sketch.measure(own, seed)
        self._norms = dict(zip(own.clients, np.array(on_host(measured.squared_norms)).tolist(), strict=False))
        return measured

    def _explain(self, clients: Sequence[int]) -> list[list[str | None]]:
        """Return the faults of these clients in the columns of each rank; None for a client without one."""
        limit = norm_limit(self.roster.dtype)

        def own() -> list[str | None]:
            fit = [self._norms.get(client, 0.0) <= limit for client in clients]  # False for NaN
            return [None if ok else f"{self._where}: {self._fault(c)}" for c, ok in zip(clients, fit, strict=True)]

        return self.ranks.gather(self.ranks.attempt(own), list)

    def _fault(self, client: int) -> str:
        return self.clients.fault(self.clients.clients.index(client))

    def _combine(self, judgement: Judgement) -> Combined:
        """Combine this rank's columns."""
        decision, own = judgement.decision, self._only(judgement.clients)
        noise = Noise(decision.noise, judgement.seed, self.first)
        return Combined(self._or_raise(lambda: combine(own, decision.weights, decision.coordinate_stage, noise)))

    def _only(self, clients: Sequence[int]) -> Updates:
        own = self.clients
        return own if len(clients) == len(own) else own.only([own.clients.index(client) for client in clients])


def summands(measured: Measurements) -> dict[str, Any]:
    """Return the sums that measurements are made of, by field."""
    names = ("gram",) if measured.sketches is None else ("sketches", "squared_norms", "trusted_dots")
    return {name: value for name in names if (value := getattr(measured, name)) is not None}
