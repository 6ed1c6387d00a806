"""The clients of all parts as the caller sees them: their layouts and sketches, while workers hold the numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan._util.types import Array
from bartizan.errors import BadClientError
from bartizan.kernels.rows import FLOAT32
from bartizan.measure.base import SketchedRows, StreamingSketch
from bartizan.rules.base import Decision
from bartizan.sources.partitioned.steps import (
    CHANGED,
    FirstReading,
    PartialSum,
    PartReport,
    ReadPlan,
    inspect_part,
    send_row,
    weighted_sum,
)
from bartizan.sources.partitioned.workers import WorkerError, Workers, failed
from bartizan.updates import Noise, Updates
from bartizan.updates.build import finish_sum, rest_of
from bartizan.updates.columns import Row, RowsElsewhere, stack
from bartizan.updates.layout import Layout, rebuild
from bartizan.updates.lazy import LostUpdatesError
from bartizan.updates.parse import InspectedUpdates, ParsedUpdate


@dataclass(frozen=True)
class RemoteRows(RowsElsewhere):
    """Rows of clients that workers hold."""

    parts: AllParts
    clients: tuple[int, ...]
    dtype = FLOAT32

    @property
    def arrays(self) -> Sequence[tuple[()]]:
        return [()] * len(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def take(self, indices: Sequence[int] | Array) -> RemoteRows:
        return RemoteRows(self.parts, tuple(self.clients[int(row)] for row in indices))

    def with_row(self, other: Any) -> RemoteRows:
        return self  # workers have the trusted update, and sketch it with their clients

    def sketched(self, sketch: StreamingSketch, clients: Updates, seed: int, about: RemoteRows | None) -> SketchedRows:
        return self.parts.sketched(sketch, clients, seed, about)

    def fault(self, row: int) -> str | None:
        return self.parts.faults.get(self.clients[row])


class AllParts:
    """Asks the workers, checks what they answer, and numbers the clients of all parts in their order."""

    def __init__(self, workers: Workers, plan: ReadPlan, points: Mapping[str, Any]) -> None:
        self.workers, self.plan, self.points = workers, plan, points
        given = any(point is not None for point in points.values())
        self.shared = workers.share(points) if given else points
        self.firsts: list[int] = []  # the first client of each part, and the number of all
        self.faults: dict[int, str] = {}
        self.digests: dict[int, bytes] = {}
        self.parsed: dict[int, ParsedUpdate] = {}  # containers, without numbers, of the clients that fit
        self.gone: set[int] = set()  # clients that could not be read again, which nobody asks for any more

    def inspect(self, strict: bool) -> tuple[Updates, SketchedRows]:
        """The clients that fit the common layout, and their sketches; the others are quarantined."""
        every = range(self.workers.n_parts)
        reports = self._reports(self.plan, dict.fromkeys(every, (None, None)))
        self.firsts = np.cumsum([0, *(reports[part].n_sent for part in every)]).tolist()
        inspected = self._inspected(reports)
        layout = inspected.common_layout(self.points["reference"])
        misfits = inspected.quarantined(layout)
        containers: dict[int, Any] = {}  # only of those that fit: others may claim to be of any size
        for client, one in inspected.parsed.items():
            if client not in misfits:
                if id(one.plain) not in containers:
                    containers[id(one.plain)] = rebuild(one.plain, lambda _, shell: shell.array())
                self.parsed[client] = one._replace(plain=containers[id(one.plain)])
        inspected.parsed.update(self.parsed)
        rows = RemoteRows(self, tuple(range(self.firsts[-1])))
        clients = inspected.fitted(layout, **self.points, strict=strict, elsewhere=rows)
        self.plan = replace(self.plan, layout=layout)
        wanted = self._by_part(clients.clients)
        # A part most of whose clients sent another layout, or the same in another order, has guessed wrongly.
        again = {part: (own, None) for part, own in wanted.items() if reports[part].layout != layout}
        reports |= self._reports(self.plan, again)
        if missing := self._missing(reports, wanted):  # they changed before they were sketched
            if strict:
                raise BadClientError(*min(missing.items()))
            clients = clients.without(missing)
            wanted = self._by_part(clients.clients)
        for part in wanted:
            first = self.firsts[part]
            self.faults |= {first + client: fault for client, fault in reports[part].faults.items()}
            self.digests |= {first + client: digest for client, digest in reports[part].digests.items()}
        return clients, self._sketches(reports, wanted)

    def sketched(self, sketch: StreamingSketch, clients: Updates, seed: int, about: RemoteRows | None) -> SketchedRows:
        """Have these clients sketched again: another sketch, another seed or scale, or about one of them."""
        plan = replace(self.plan, sketch=sketch, seed=seed, scale=clients.scale)
        centre = None if about is None else self._row(about.clients[0])
        rows = [row for row, client in enumerate(clients.clients) if client not in self.gone]
        wanted = self._by_part([clients.clients[row] for row in rows])
        asked = {part: (own, centre, self._first_reading(part, own)) for part, own in wanted.items()}
        reports = self._reports(plan, asked)
        self._check_changed(self._missing(reports, wanted))
        sketched = self._sketches(reports, wanted)
        if clients.trusted is None:  # the workers sketched it all the same
            sketched = replace(sketched.part(slice(len(rows))), trusted_dots=None)
        if len(rows) == len(clients):
            return sketched
        # Zeros for those that are gone: their rows are not used any more.
        rows += [len(clients)] if clients.trusted is not None else []
        every = np.zeros((len(clients) + (clients.trusted is not None), sketched.sketches.shape[1]))
        norms = every[:, 0].copy()
        every[rows], norms[rows] = sketched.sketches, sketched.squared_norms
        dots = None
        if sketched.trusted_dots is not None:
            dots = np.zeros(len(every))
            dots[rows] = sketched.trusted_dots
        return SketchedRows(every, norms, dots)

    def combined(self, clients: Updates, decision: Decision, seed: int) -> Any:
        """Return the weighted sum of these clients, from one sum per worker."""
        weights = decision.weights
        rows = np.flatnonzero(weights) if weights.any() else np.arange(len(clients))
        clients, layout = clients.only(rows.tolist()), clients.layout
        weight_of = dict(zip(clients.clients, weights[rows].tolist(), strict=True))
        asked = {}
        for part, own in self._by_part(clients.clients).items():
            offset = self.firsts[part]
            asked[part] = self._first_reading(part, own), self.shared, offset, {m: weight_of[offset + m] for m in own}
        sums: list[PartialSum] = self.workers.sum(weighted_sum, asked)
        self._check_changed({client: reason for each in sums for client, reason in each.changed.items()})
        integers = {client: arrays for each in sums for client, arrays in each.integers.items()}
        sizes = [each.floats.size for each in sums]
        if set(sizes) != {layout.dim} or integers.keys() != weight_of.keys():
            raise WorkerError(
                f"The workers' sum is wrongly shaped: wanted {len(clients)} clients and {layout.dim} numbers, "
                f"got {len(integers)} and {sizes}."
            )
        # Dask's arrays begin at any byte of a message, and kernels read aligned numbers only.
        aligned = [np.require(each.floats, requirements="A") for each in sums]
        summed = stack([Row(tuple(np.split(floats, layout.ends[:-1])), ()) for floats in aligned], layout)
        clients = replace(clients, rows=summed, integers=tuple(integers[client] for client in clients.clients))
        return finish_sum(clients, weights[rows], rest_of(weights), Noise(decision.noise, seed))

    def _first_reading(self, part: int, own: Sequence[int]) -> FirstReading:
        """What these clients of a part were when they were sketched first."""
        first = self.firsts[part]
        digests = {client: self.digests[first + client] for client in own if first + client in self.digests}
        return FirstReading(self.plan, digests)

    def _reports(self, plan: ReadPlan, wanted: Mapping[int, tuple[Any, ...]]) -> dict[int, PartReport]:
        if not wanted:
            return {}  # at the cost of no step
        reports = self.workers.map(inspect_part, {part: (plan, self.shared, *each) for part, each in wanted.items()})
        for part, report in reports.items():
            problem = _problem(report, plan, self.points["trusted"] is not None, wanted[part][0] is None)
            if problem:
                failed(f"part {part}", f"its worker answered wrongly: {problem}")
        return reports

    def _inspected(self, reports: Mapping[int, PartReport]) -> InspectedUpdates:
        """What the containers of all clients hold, without numbers."""
        parsed: dict[int, ParsedUpdate] = {}
        unreadable: dict[int, str] = {}
        layouts: dict[Layout, Layout] = {}  # one object for equal ones
        for part, first in enumerate(self.firsts[:-1]):
            report = reports[part]
            kinds = [
                ParsedUpdate(shells, {}, layouts.setdefault(layout, layout), Row((), ()))
                for layout, _, shells in report.kinds
            ]
            for client in range(report.n_sent):
                if client in report.kind_of:
                    parsed[first + client] = kinds[report.kind_of[client]]
                else:
                    unreadable[first + client] = report.unreadable[client]
        return InspectedUpdates(parsed, unreadable)

    def _by_part(self, clients: Sequence[int]) -> dict[int, list[int]]:
        """The clients of each part that has some of these, numbered within their part."""
        found: dict[int, list[int]] = {}
        for client in clients:
            part = bisect_right(self.firsts, client) - 1
            found.setdefault(part, []).append(client - self.firsts[part])
        return found

    def _row(self, client: int) -> Any:
        """The numbers of one client, from its worker; sent to all workers once."""
        ((part, (own,)),) = self._by_part([client]).items()
        asked = self._first_reading(part, [own]), self.shared, own
        arrays = self.workers.map(send_row, {part: asked})[part]
        if isinstance(arrays, str):
            self._check_changed({client: arrays})
        return self.workers.share(arrays)

    def _missing(self, reports: Mapping[int, PartReport], wanted: Mapping[int, list[int]]) -> dict[int, str]:
        """Clients that were wanted and could not be sketched, and why."""
        return {
            self.firsts[part] + client: reports[part].unreadable.get(client, CHANGED)
            for part, own in wanted.items()
            for client in set(own) - set(reports[part].clients)
        }

    def _sketches(self, reports: Mapping[int, PartReport], wanted: Mapping[int, list[int]]) -> SketchedRows:
        """The sketches of these clients."""
        for part, own in wanted.items():
            if reports[part].clients != own:
                failed(f"part {part}", "its worker answered wrongly: it sketched clients that were not asked for")
        return SketchedRows.stacked([sketched for part in wanted if (sketched := reports[part].sketched) is not None])

    def _check_changed(self, reasons: dict[int, str]) -> None:
        if reasons:
            self.gone |= set(reasons)
            raise LostUpdatesError(dict(sorted(reasons.items())))


def _problem(report: Any, plan: ReadPlan, trusted: bool, of_all: bool) -> str | None:
    """What is wrong with a worker's answer; a worker may run another version of this library."""
    if not isinstance(report, PartReport):
        return f"wanted a PartReport, got {type(report).__name__}"
    if (version := getattr(report, "version", None)) != __version__:
        return f"it runs bartizan {version} and this process {__version__}; install the same on all workers"
    if of_all and set(range(report.n_sent)) != set(report.kind_of) | set(report.unreadable):
        counts = f"{len(report.kind_of)} and {len(report.unreadable)} that can't be read"
        return f"wanted {report.n_sent} clients, got {counts}"
    if report.sketched is None:
        return "no sketches came" if report.clients else None
    M, (k, _) = len(report.clients) + trusted, plan.sketch.working_set()
    for name, array, shape in (
        ("sketches", report.sketched.sketches, (M, k)),
        ("squared norms", report.sketched.squared_norms, (M,)),
        ("inner products with the trusted update", report.sketched.trusted_dots, (M,) if trusted else None),
    ):
        if getattr(array, "shape", None) != shape:
            return f"wanted {name} of shape {shape}, got {getattr(array, 'shape', None)}"
    return None
