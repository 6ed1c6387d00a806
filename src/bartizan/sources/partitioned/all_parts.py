"""The clients of all parts as the caller sees them: their layouts and sketches, while workers hold the numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan._util.types import Array
from bartizan.errors import BadClientError, LostUpdatesError
from bartizan.judge.judge import Verdict
from bartizan.kernels.rows import FLOAT32
from bartizan.measure.base import SketchedRows, StreamingSketch
from bartizan.rules.base import CoordinateStage
from bartizan.sources.partitioned.own_clients import (
    CHANGED,
    FirstReading,
    PartReport,
    Reading,
    filled,
    inspect_part,
    send_row,
    shells_of,
)
from bartizan.sources.partitioned.own_sums import (
    Chosen,
    PartialSum,
    changed_of,
    cut_columns,
    finished,
    reduced_columns,
    weighted_sum,
)
from bartizan.sources.partitioned.workers import Workers, failed
from bartizan.updates import Noise, Updates
from bartizan.updates.build import rest_of
from bartizan.updates.columns import Row, RowsElsewhere
from bartizan.updates.layout import Layout
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

    def __init__(self, workers: Workers, reading: Reading, points: Mapping[str, Any]) -> None:
        self.workers, self.reading, self.points = workers, reading, points
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
        reports = self._reports(self.reading, dict.fromkeys(every, (None, None)))
        self.firsts = np.cumsum([0, *(reports[part].n_sent for part in every)]).tolist()
        inspected = self._inspected(reports)
        layout = inspected.common_layout(self.points["reference"])
        misfits = inspected.quarantined(layout)
        containers: dict[int, Any] = {}  # only of those that fit: others may claim to be of any size
        for client, one in inspected.parsed.items():
            if client not in misfits:
                if id(one.plain) not in containers:
                    containers[id(one.plain)] = filled(one.plain)
                self.parsed[client] = one._replace(plain=containers[id(one.plain)])
        inspected.parsed.update(self.parsed)
        rows = RemoteRows(self, tuple(range(self.firsts[-1])))
        clients = inspected.fitted(layout, **self.points, strict=strict, elsewhere=rows)
        self.reading = replace(self.reading, layout=layout)
        wanted = self._by_part(clients.clients)
        # A part most of whose clients sent another layout, or the same in another order, has guessed wrongly.
        again = {part: (own, None) for part, own in wanted.items() if reports[part].layout != layout}
        reports |= self._reports(self.reading, again)
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
        reading = replace(self.reading, sketch=sketch, seed=seed, scale=clients.scale)
        centre = None if about is None else self._row(about.clients[0])
        rows = [row for row, client in enumerate(clients.clients) if client not in self.gone]
        wanted = self._by_part([clients.clients[row] for row in rows])
        asked = {part: (own, centre, self._first_reading(part, own)) for part, own in wanted.items()}
        reports = self._reports(reading, asked)
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

    def combined(self, clients: Updates, verdict: Verdict, out: Any) -> Any:
        """The result of these clients: in the caller's process, or left on a worker."""
        weights, stage, stays = verdict.decision.weights, verdict.decision.coordinate_stage, isinstance(out, str)
        if stage is None:
            rows = np.flatnonzero(weights) if weights.any() else np.arange(len(clients))
        else:
            rows = np.sort(stage.used(len(clients)))
        weight_of = {clients.clients[row]: float(weights[row]) for row in rows.tolist()}
        rest, noise = rest_of(weights) if stage is None else 0.0, Noise(verdict.decision.noise, verdict.seed)
        plan = clients.layout, shells_of(clients.like_of(weights)), weight_of, rest, noise
        chosen = self._chosen(weight_of)
        if stage is not None:
            partial_sums = [self._reduced(clients.layout, rows, stage, chosen)]
        else:
            sums = self.workers.sum(weighted_sum, chosen)
            if stays:
                changed = self.workers.then(changed_of, sums)
                update = self.workers.then(finished, sums, *plan, self.shared, None)
                self._check_changed(self.workers.get(changed)[0])
                return self.workers.left(update)
            partial_sums = self.workers.get(sums)
            self._check_changed(changed_of(*partial_sums))
        update = finished(*plan, self.points, None if stays else out, *partial_sums)
        return self.workers.left(self.workers.hold(update)) if stays else update

    def _reduced(
        self, layout: Layout, rows: Array, stage: CoordinateStage, chosen: Mapping[int, tuple[Any, ...]]
    ) -> PartialSum:
        """A coordinate-wise stage: each worker takes some of the coordinates of all clients."""
        if stage.mixing is not None:
            stage = replace(stage, mixing=stage.mixing[:, rows])
        elif stage.selected is not None:
            stage = replace(stage, selected=np.searchsorted(rows, stage.selected))
        n = min(self.workers.n_parts, layout.dim)
        ends = [layout.dim * (at + 1) // n for at in range(n)]
        ranges = [(stage, layout, self.shared, low, high) for low, high in zip([0, *ends], ends, strict=False)]
        cuts = {part: (*given, ends) for part, given in chosen.items()}
        rests, columns = self.workers.exchange(cut_columns, cuts, reduced_columns, ranges)
        total = reduce(add, rests)
        self._check_changed(total.changed)
        return replace(total, floats=np.concatenate(columns))

    def _chosen(self, weight_of: Mapping[int, float]) -> dict[int, tuple[Any, ...]]:
        """What each part that has some of these clients is told of them."""
        arguments = {}
        for part, own in self._by_part(list(weight_of)).items():
            first, digests = self.firsts[part], self._first_reading(part, own).digests
            chosen = Chosen(first, {client: weight_of[first + client] for client in own}, digests)
            arguments[part] = self.reading, self.shared, chosen
        return arguments

    def _first_reading(self, part: int, own: Sequence[int]) -> FirstReading:
        """What these clients of a part were when they were sketched first."""
        first = self.firsts[part]
        digests = {client: self.digests[first + client] for client in own if first + client in self.digests}
        return FirstReading(self.reading, digests)

    def _reports(self, reading: Reading, wanted: Mapping[int, tuple[Any, ...]]) -> dict[int, PartReport]:
        if not wanted:
            return {}  # at the cost of no step
        reports = self.workers.map(inspect_part, {part: (reading, self.shared, *each) for part, each in wanted.items()})
        for part, report in reports.items():
            problem = _problem(report, reading, self.points["trusted"] is not None, wanted[part][0] is None)
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
        asked = self.reading, self.shared, own, self.digests.get(client)
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


def _problem(report: Any, reading: Reading, trusted: bool, of_all: bool) -> str | None:
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
    M, (k, _) = len(report.clients) + trusted, reading.sketch.working_set()
    for name, array, shape in (
        ("sketches", report.sketched.sketches, (M, k)),
        ("squared norms", report.sketched.squared_norms, (M,)),
        ("inner products with the trusted update", report.sketched.trusted_dots, (M,) if trusted else None),
    ):
        if getattr(array, "shape", None) != shape:
            return f"wanted {name} of shape {shape}, got {getattr(array, 'shape', None)}"
    return None
