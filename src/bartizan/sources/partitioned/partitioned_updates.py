"""Whole updates on many workers as one source: they measure and sum, the caller sees layouts, sketches and sums."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bartizan import __version__
from bartizan.errors import LostClients
from bartizan.measure import Sketch
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import StreamingSketch
from bartizan.source import WHOLE, AnyRule, Combined, Judgement, Reading, Roster
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
from bartizan.sources.partitioned.workers import Workers, failed
from bartizan.updates import Noise, Updates
from bartizan.updates.build import finish_sum, rest_of
from bartizan.updates.column_pass import UNLIMITED
from bartizan.updates.columns import Row, stack
from bartizan.updates.layout import Layout, rebuild
from bartizan.updates.parse import InspectedUpdates, ParsedUpdate
from bartizan.updates.server_inputs import Target, server_row
from bartizan.updates.updates import usual_container

OVERFLOW = "its values are so large that their squares overflow"


def refusal(rule: AnyRule, sketch: Sketch) -> str | None:
    """Return why clients on workers admit no such rule, or no such sketch; None if they do."""
    if rule.ends_coordinate_wise():
        return (
            f"{rule!r} ends coordinate-wise, which needs the values of all clients in one place. Divide the updates by "
            "columns (bartizan.distributed), or end with a rule that weighs the clients, such as GeometricMedian()."
        )
    if isinstance(sketch, StreamingSketch):
        return None
    return (
        f"{rule!r} needs the distances of all pairs of clients, and {sketch!r} would send every update to every "
        "worker. Use a projection, such as Rotated(k=4096)."
    )


class PartitionedUpdates:
    """Updates of which each worker holds some, whole; clients are numbered through all parts in their order.

    Workers inspect and sketch their clients in one step, so the sketch is settled when the source opens.
    """

    def __init__(self, workers: Workers, plan: ReadPlan, points: Mapping[str, Any], *, strict: bool = False) -> None:
        self.workers, self.plan, self.points = workers, plan, points
        given = any(point is not None for point in points.values())
        self.shared = workers.share(points) if given else points
        self.target: Target | None = None
        self.first: Measurements | None = None
        self.faults: dict[int, str] = {}
        self.digests: dict[int, bytes] = {}
        every = range(workers.n_parts)
        reports = self._reports(plan, dict.fromkeys(every, (None, None)))
        self.firsts: list[int] = np.cumsum([0, *(reports[part].n_sent for part in every)]).tolist()
        inspected = self._inspected(reports)
        self.layout = layout = inspected.common_layout(points["reference"])
        self.reference = server_row("reference", points["reference"], layout, UNLIMITED)
        server_row("trusted", points["trusted"], layout, UNLIMITED)
        roster = Roster(self.firsts[-1], layout.dim, layout.widest, strict=strict)
        self.roster = roster.without(inspected.quarantined(layout))
        fitting = (client for client in inspected.parsed if client not in self.roster.quarantined)
        self.containers = {client: inspected.parsed[client].plain for client in fitting}  # without numbers
        self._measure_first(reports)

    def _measure_first(self, reports: dict[int, PartReport]) -> None:
        """Take the sketches out of the reports, or have clients sketched whose part guessed another layout."""
        self.plan = replace(self.plan, layout=self.layout)
        wanted = self._by_part(list(self.containers))
        again = {part: (own, None) for part, own in wanted.items() if reports[part].layout != self.layout}
        reports |= self._reports(self.plan, again)
        missing = self._missing(reports, wanted)  # they changed before they were sketched
        self.roster = self.roster.without(missing)
        wanted = self._by_part([client for client in self.containers if client not in missing])
        for part in wanted:
            first = self.firsts[part]
            self.faults |= {first + client: fault for client, fault in reports[part].faults.items()}
            self.digests |= {first + client: digest for client, digest in reports[part].digests.items()}
        self.first = self._measured(reports, wanted)

    def write_to(self, out: Any) -> None:
        """Write the result into the caller's arrays."""
        self.target = None if out is None else Target.of(out, self.layout, [], self.points)

    @property
    def like(self) -> Any:
        """An update of the usual form, without numbers."""
        containers = tuple(self.containers.values())
        return usual_container(containers, np.ones(len(containers)))

    def refuses(self, rule: AnyRule, sketch: Sketch) -> str | None:
        return refusal(rule, sketch)

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        """Return the sketch and the seed that were settled before the workers began."""
        return self.plan.sketch, self.plan.seed

    def measure(self, sketch: Sketch, seed: int, reading: Reading = WHOLE) -> Measurements:
        if self.first is not None and reading.clients is None:
            first, self.first = self.first, None  # its memory is the caller's
            return first
        assert isinstance(sketch, StreamingSketch)
        plan = replace(self.plan, sketch=sketch, seed=seed, scale=reading.scale)
        centre = None if reading.about is None else self._row(reading.about)
        wanted = self._by_part(list(self.containers) if reading.clients is None else reading.clients)
        asked = {part: (own, centre, self._first_reading(part, own)) for part, own in wanted.items()}
        reports = self._reports(plan, asked)
        if missing := self._missing(reports, wanted):
            raise LostClients(missing)
        return self._measured(reports, wanted)

    def explain(self, clients: Sequence[int]) -> dict[int, str]:
        return {client: self.faults.get(client, OVERFLOW) for client in clients}

    def combine(self, judgement: Judgement) -> Combined:
        """Return the weighted sum of the clients, from one sum per worker."""
        weights, layout = judgement.decision.weights, self.layout
        if judgement.decision.coordinate_stage is not None:
            raise ValueError("The rule ends coordinate-wise, which needs the values of all clients in one place.")
        rows = np.flatnonzero(weights) if weights.any() else np.arange(len(weights))
        weight_of = {judgement.clients[row]: float(weights[row]) for row in rows}
        asked = {}
        for part, own in self._by_part(list(weight_of)).items():
            offset = self.firsts[part]
            asked[part] = self._first_reading(part, own), self.shared, offset, {m: weight_of[offset + m] for m in own}
        sums: list[PartialSum] = self.workers.sum(weighted_sum, asked)
        if changed := {client: reason for each in sums for client, reason in each.changed.items()}:
            raise LostClients(dict(sorted(changed.items())))
        integers = {client: arrays for each in sums for client, arrays in each.integers.items()}
        # Dask's arrays begin at any byte of a message, and kernels read aligned numbers only.
        aligned = [np.require(each.floats, requirements="A") for each in sums]
        summed = Updates(
            layout=layout,
            rows=stack([Row(tuple(np.split(floats, layout.ends[:-1])), ()) for floats in aligned], layout),
            integers=tuple(integers[client] for client in weight_of),
            clients=tuple(weight_of),
            n_sent=len(weight_of),
            quarantined={},
            containers=tuple(self.containers[client] for client in weight_of),
            reference=self.reference,
            target=self.target,
        )
        noise = Noise(judgement.decision.noise, judgement.seed)
        return Combined(finish_sum(summed, weights[rows], rest_of(weights), noise))

    def _first_reading(self, part: int, own: Sequence[int]) -> FirstReading:
        """Return the state of these clients of a part when they were sketched first."""
        first = self.firsts[part]
        digests = {client: self.digests[first + client] for client in own if first + client in self.digests}
        return FirstReading(self.plan, digests)

    def _reports(self, plan: ReadPlan, wanted: Mapping[int, tuple[Any, ...]]) -> dict[int, PartReport]:
        if not wanted:
            return {}  # at the cost of no step
        reports = self.workers.map(inspect_part, {part: (plan, self.shared, *each) for part, each in wanted.items()})
        for part, report in reports.items():
            if (version := getattr(report, "version", None)) != __version__:
                failed(
                    f"part {part}",
                    f"its worker runs bartizan {version} and this process {__version__}; install the same on all",
                )
        return reports

    def _inspected(self, reports: Mapping[int, PartReport]) -> InspectedUpdates:
        """Return the containers of all clients, without numbers."""
        parsed: dict[int, ParsedUpdate] = {}
        unreadable: dict[int, str] = {}
        layouts: dict[Layout, Layout] = {}  # one object for equal ones
        for part, first in enumerate(self.firsts[:-1]):
            report = reports[part]
            kinds = []
            for (layout, _), shells in zip(report.kinds, report.shells, strict=True):
                plain = rebuild(shells, lambda _, shell: shell.array())
                kinds.append(ParsedUpdate(plain, {}, layouts.setdefault(layout, layout), Row((), ())))
            for client in range(report.n_sent):
                if client in report.kind_of:
                    parsed[first + client] = kinds[report.kind_of[client]]
                else:
                    unreadable[first + client] = report.unreadable[client]
        return InspectedUpdates(parsed, unreadable)

    def _by_part(self, clients: Sequence[int]) -> dict[int, list[int]]:
        """Group these clients by part, numbered within their part."""
        found: dict[int, list[int]] = {}
        for client in clients:
            part = bisect_right(self.firsts, client) - 1
            found.setdefault(part, []).append(client - self.firsts[part])
        return found

    def _row(self, client: int) -> Any:
        """Fetch the update of one client from its worker, and share it with all workers."""
        ((part, (own,)),) = self._by_part([client]).items()
        asked = self._first_reading(part, [own]), self.shared, own
        arrays = self.workers.map(send_row, {part: asked})[part]
        if isinstance(arrays, str):
            raise LostClients({client: arrays})
        return self.workers.share(arrays)

    def _missing(self, reports: Mapping[int, PartReport], wanted: Mapping[int, list[int]]) -> dict[int, str]:
        """Return the clients that were wanted and could not be sketched, and why."""
        return {
            self.firsts[part] + client: reports[part].unreadable.get(client, CHANGED)
            for part, own in wanted.items()
            for client in set(own) - set(reports[part].clients)
        }

    def _measured(self, reports: Mapping[int, PartReport], wanted: Mapping[int, list[int]]) -> Measurements:
        """The measurements of these clients, which the reports hold."""
        measured = []
        for part, own in wanted.items():
            found, offset = reports[part].measured, self.firsts[part]
            assert found is not None
            measured.append(replace(found, clients=tuple(offset + client for client in own)))
        return Measurements.joined(measured)
