"""From the sums of all ranks to one verdict: the first rank leads, the others do what it asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bartizan.coordinatewise import CoordinateWise
from bartizan.distributed.agreement import Agreement
from bartizan.distributed.failure import Failure
from bartizan.distributed.grid import Grid
from bartizan.distributed.looking import Contribution
from bartizan.distributed.peers import RankError
from bartizan.geometry import Geometry, norm_limit
from bartizan.quarantine import decided, scored, without_the_hidden, without_the_unfit
from bartizan.rules.base import Decision, Rule
from bartizan.stopwatch import Stopwatch
from bartizan.types import Floats
from bartizan.updates import Updates


@dataclass(frozen=True)
class Verdict:
    """What the first rank decided, for all."""

    decision: Decision
    quarantined: dict[int, str]
    scores: Floats | None

    def to_send(self, rule: Rule | CoordinateWise) -> Verdict:
        """Without the identity that a coordinate-wise rule mixes its clients with: M^2 numbers that all ranks know."""
        then = self.decision.then
        if then is None or isinstance(rule, Rule):
            return self
        return replace(self, decision=replace(self.decision, then=replace(then, mixing=np.empty((0, 0)))))


@dataclass(frozen=True)
class Again:
    """An order: look once more, about this row."""

    row: int


@dataclass(frozen=True)
class Faults:
    """An order: say what is wrong with these rows, as far as it is in your columns."""

    rows: list[int]


@dataclass(frozen=True)
class Explain:
    """An order: say why you could not look."""


class Rank:
    """One rank's part in one round."""

    def __init__(
        self, peers: Grid, contribution: Contribution, clients: Updates, agreement: Agreement, watch: Stopwatch
    ) -> None:
        self._peers, self._contribution, self._clients = peers, contribution, clients
        self._agreement, self._watch = agreement, watch
        self._norms: Floats | None = None
        self._failure: Failure | None = None

    def verdict(self, rule: Rule | CoordinateWise, sizes: Floats, history: tuple[float, ...], strict: bool) -> Verdict:
        """The same on all ranks; or the same error."""
        totals = self._totals(None)
        if not self._peers.leads:
            return self._obeyed()
        try:
            said = self._led(totals, rule, sizes, history, strict).to_send(rule)
            self._peers.from_the_leader(said)
        except RankError:
            raise
        except Exception as wrong:
            self._peers.from_the_leader(Failure.of(wrong))
            raise
        self._watch.lap("weigh")
        return said

    def _led(
        self, totals: list[Any], rule: Rule | CoordinateWise, sizes: Floats, history: tuple[float, ...], strict: bool
    ) -> Verdict:
        look = self._contribution.look(self._checked(totals), self._again)
        clients = replace(self._clients, quarantined=self._agreement.quarantined)
        clients, look = without_the_unfit(clients, look, strict, self._faults)
        clients, look = without_the_hidden(clients, look, self._contribution.eye, strict)
        self._watch.lap("sketch")
        kept = list(clients.clients)
        geometry = Geometry.seen(look, len(kept), sizes=sizes[kept], seed=self._contribution.seed, history=history)
        decision = decided(rule, geometry, clients)
        return Verdict(decision, clients.quarantined, scored(rule, geometry, decision, clients))

    def _obeyed(self) -> Verdict:
        self._watch.lap("sketch")
        while True:
            match self._peers.from_the_leader():
                case Again(row):
                    self._totals(row)
                case Faults(rows):
                    self._peers.everyones(self._own_faults(rows))
                case Explain():
                    self._peers.everyones(self._failure)
                case Failure() as failure:
                    raise failure.error()
                case Verdict() as verdict:
                    self._watch.lap("weigh")
                    return verdict

    def _totals(self, row: int | None) -> list[Any]:
        """What all ranks see, on the first; a rank that can't look sends zeros, and counts itself as failed.

        Copies do not look: they would see the same.
        """
        if not self._peers.looks:
            return []
        self._failure = None
        try:
            sums = self._contribution.sums(row)
            if row is None:
                self._norms = self._contribution.squared_norms(sums)
        except Exception as wrong:
            self._failure = Failure.of(wrong)
            sums = [np.zeros(shape) for shape in self._contribution.shapes]
        return self._peers.totals([*sums, np.array([float(self._failure is not None)])])

    def _checked(self, totals: list[Any]) -> list[Any]:
        if float(totals[-1][0]):
            self._peers.from_the_leader(Explain())
            for rank, failure in enumerate(self._peers.everyones(self._failure)):
                if failure is not None:
                    raise failure.error(rank)
        return totals[:-1]

    def _again(self, row: int) -> list[Any]:
        self._peers.from_the_leader(Again(row))
        return self._checked(self._totals(row))

    def _faults(self, rows: list[int]) -> list[str]:
        self._peers.from_the_leader(Faults(rows))
        told = self._peers.everyones(self._own_faults(rows))
        overflow = "its values are so large that their squares, summed over all ranks, overflow"
        return [next((fault for fault in faults if fault), overflow) for faults in zip(*told, strict=True)]

    def _own_faults(self, rows: list[int]) -> list[str | None]:
        rank = self._peers.rank
        first = self._agreement.firsts[rank]
        where = f"rank {rank}, columns {first} to {first + self._agreement.widths[rank]}"
        limit = norm_limit(self._clients.columns.widest)
        norms = np.zeros(len(self._clients)) if self._norms is None else self._norms
        return [None if norms[row] <= limit else f"{where}: {self._clients.fault(row)}" for row in rows]
