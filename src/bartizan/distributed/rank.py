"""From the sums of all ranks to one verdict: the first rank leads, the others do what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np

from bartizan._util.stopwatch import Stopwatch
from bartizan._util.types import Floats
from bartizan.defense.decide import Verdict, decide
from bartizan.distributed.agreement import Agreement
from bartizan.distributed.collectives import RankError
from bartizan.distributed.failure import Failed, Failure
from bartizan.distributed.grid import Grid
from bartizan.distributed.partial_gram import Contribution
from bartizan.geometry import norm_limit
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch import Sketch
from bartizan.updates import Updates


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


ORDERS = (Again, Faults, Explain, Failure, Verdict)


class Rank:
    """One rank's part in one round."""

    def __init__(
        self, peers: Grid, contribution: Contribution, clients: Updates, agreement: Agreement, watch: Stopwatch
    ) -> None:
        self._peers, self._contribution, self._clients = peers, contribution, clients
        self._agreement, self._watch = agreement, watch
        self._norms: Floats | None = None
        self._failure: Failure | None = None

    def verdict(
        self, rule: Rule | CoordinateWise, sketch: Sketch, sizes: Floats, history: tuple[float, ...], strict: bool
    ) -> Verdict:
        """The same on all ranks; or the same error."""
        totals = self._totals(None)
        if not self._peers.leads:
            return self._obeyed()
        try:
            verdict = decide(
                rule,
                self._clients,
                self._contribution.gram_stats(self._checked(totals), self._again),
                sketch=sketch,
                sizes=sizes,
                seed=self._contribution.seed,
                history=history,
                strict=strict,
                watch=self._watch,
                find_faults=self._faults,
            )
            self._told(verdict)
        except RankError:
            raise
        except Failed as of_some_rank:
            self._told(of_some_rank.failure)
            raise of_some_rank.failure.error() from None
        except Exception as wrong:
            failure = Failure.of(wrong, self._peers.process, of_the_round=True)
            self._told(failure)
            raise failure.error() from wrong
        self._watch.lap("weigh")
        return verdict

    def _obeyed(self) -> Verdict:
        self._watch.lap("sketch")
        while True:
            match self._told():
                case Again(row):
                    self._totals(row)
                case Faults(rows):
                    self._everyones_faults(rows)
                case Explain():
                    self._everyones_failures()
                case Failure() as failure:
                    raise failure.error()
                case Verdict() as verdict:
                    self._watch.lap("weigh")
                    return verdict

    def _told(self, order: Any = None) -> Any:
        return self._peers.from_the_leader(order, *ORDERS)

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
            self._failure = Failure.of(wrong, self._peers.process)
            sums = [np.zeros(shape) for shape in self._contribution.shapes]
        return self._peers.totals([*sums, np.array([float(self._failure is not None)])])

    def _checked(self, totals: list[Any]) -> list[Any]:
        if float(totals[-1][0]):
            self._told(Explain())
            raise Failed(next(failure for failure in self._everyones_failures() if failure is not None))
        return totals[:-1]

    def _everyones_failures(self) -> list[Failure | None]:
        return self._peers.everyones(self._failure, Failure, NoneType)

    def _again(self, row: int) -> list[Any]:
        self._told(Again(row))
        return self._checked(self._totals(row))

    def _faults(self, clients: Updates, rows: Sequence[int]) -> list[str]:
        self._told(Faults(list(rows)))
        overflow = "its values are so large that their squares, summed over all ranks, overflow"
        faults = zip(*self._everyones_faults(rows), strict=True)
        return [next((fault for fault in of_a_row if fault), overflow) for of_a_row in faults]

    def _everyones_faults(self, rows: Sequence[int]) -> list[list[str | None]]:
        return self._peers.everyones(self._own_faults(rows), list)

    def _own_faults(self, rows: Sequence[int]) -> list[str | None]:
        first, width = (each[self._peers.rank] for each in (self._agreement.firsts, self._agreement.widths))
        where = f"rank {self._peers.process}, columns {first} to {first + width}"
        limit = norm_limit(self._clients.columns.widest)
        norms = np.zeros(len(self._clients)) if self._norms is None else self._norms
        return [None if norms[row] <= limit else f"{where}: {self._clients.fault(row)}" for row in rows]
