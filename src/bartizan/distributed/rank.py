"""From the partial sums of all ranks to one verdict: the first rank decides, the others answer its requests."""

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
from bartizan.distributed.collectives import RankError, RankGrid
from bartizan.distributed.failure import Failure, RankFailed
from bartizan.distributed.partial_gram import PartialSums
from bartizan.geometry import norm_limit
from bartizan.rules.base import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch import Sketch
from bartizan.updates import Updates


@dataclass(frozen=True)
class SumAbout:
    """Request: sum the columns once more, about this row."""

    row: int


@dataclass(frozen=True)
class DescribeFaults:
    """Request: describe what is wrong with these rows in the rank's columns."""

    rows: list[int]


@dataclass(frozen=True)
class ReportFailure:
    """Request: report the error of the last sum, if there was one."""


REQUESTS = (SumAbout, DescribeFaults, ReportFailure, Failure, Verdict)


class Rank:
    """One rank's part in one round."""

    def __init__(
        self, ranks: RankGrid, partial: PartialSums, clients: Updates, agreement: Agreement, watch: Stopwatch
    ) -> None:
        self._ranks, self._partial, self._clients = ranks, partial, clients
        self._agreement, self._watch = agreement, watch
        self._norms: Floats | None = None
        self._failure: Failure | None = None

    def verdict(
        self, rule: Rule | CoordinateWise, sketch: Sketch, sizes: Floats, history: tuple[float, ...], strict: bool
    ) -> Verdict:
        """The verdict, the same on all ranks; or the same error."""
        totals = self._sum(None)
        if not self._ranks.is_leader:
            return self._answer_requests()
        try:
            verdict = decide(
                rule,
                self._clients,
                self._partial.gram_stats(self._checked(totals), self._sum_about),
                sketch=sketch,
                sizes=sizes,
                seed=self._partial.seed,
                history=history,
                strict=strict,
                watch=self._watch,
                find_faults=self._find_faults,
            )
            self._request(verdict)
        except RankError:
            raise
        except RankFailed as failed:
            self._request(failed.failure)
            raise failed.failure.error() from None
        except Exception as wrong:
            failure = Failure.of(wrong, self._ranks.global_rank, of_all_ranks=True)
            self._request(failure)
            raise failure.error() from wrong
        self._watch.lap("weigh")
        return verdict

    def _answer_requests(self) -> Verdict:
        self._watch.lap("sketch")
        while True:
            match self._request():
                case SumAbout(row):
                    self._sum(row)
                case DescribeFaults(rows):
                    self._all_faults(rows)
                case ReportFailure():
                    self._all_failures()
                case Failure() as failure:
                    raise failure.error()
                case Verdict() as verdict:
                    self._watch.lap("weigh")
                    return verdict

    def _request(self, request: Any = None) -> Any:
        """Send a request, on the first rank; receive it, on the others."""
        return self._ranks.broadcast(request, *REQUESTS)

    def _sum(self, about: int | None) -> list[Any]:
        """The totals of all ranks, on the first one. A rank that fails sends zeros, and counts as failed.

        Copies do not take part: their sums would be the same.
        """
        if not self._ranks.in_first_copy:
            return []
        self._failure = None
        try:
            sums = self._partial.sums(about)
            if about is None:
                self._norms = self._partial.squared_norms(sums)
        except Exception as wrong:
            self._failure = Failure.of(wrong, self._ranks.global_rank)
            sums = [np.zeros(shape) for shape in self._partial.shapes]
        return self._ranks.sum_to_leader([*sums, np.array([float(self._failure is not None)])])

    def _checked(self, totals: list[Any]) -> list[Any]:
        if float(totals[-1][0]):
            self._request(ReportFailure())
            raise RankFailed(next(failure for failure in self._all_failures() if failure is not None))
        return totals[:-1]

    def _all_failures(self) -> list[Failure | None]:
        return self._ranks.gather(self._failure, Failure, NoneType)

    def _sum_about(self, row: int) -> list[Any]:
        self._request(SumAbout(row))
        return self._checked(self._sum(row))

    def _find_faults(self, clients: Updates, rows: Sequence[int]) -> list[str]:
        self._request(DescribeFaults(list(rows)))
        overflow = "its values are so large that their squares, summed over all ranks, overflow"
        faults = zip(*self._all_faults(rows), strict=True)
        return [next((fault for fault in of_a_row if fault), overflow) for of_a_row in faults]

    def _all_faults(self, rows: Sequence[int]) -> list[list[str | None]]:
        first, width = (each[self._ranks.rank] for each in (self._agreement.firsts, self._agreement.widths))
        where = f"rank {self._ranks.global_rank}, columns {first} to {first + width}"
        limit = norm_limit(self._clients.layout.widest)
        norms = np.zeros(len(self._clients)) if self._norms is None else self._norms
        own = [None if norms[row] <= limit else f"{where}: {self._clients.fault(row)}" for row in rows]
        return self._ranks.gather(own, list)
