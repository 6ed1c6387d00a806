"""Measure a server by OpenTelemetry: its rounds, stages, clients that are out, and memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bartizan import __version__
from bartizan._util.extras import missing_extra
from bartizan.watch.base import Line

REASONS = {
    "values": ("NaN", "Inf", "not finite", "overflow"),
    "crafted": ("sketched / exact",),
    "changed": ("changed", "another one when"),
}
"""Parts of the reasons for quarantine by kind; any other reason is of kind "layout". Texts would be unbounded."""


class OpenTelemetry:
    """Report each round of a server as OpenTelemetry metrics, whose attributes never name a client.

    `bartizan.stage.duration` (histogram, seconds, by `stage`), `bartizan.rounds` (by `outcome`: combined or refused),
    `bartizan.clients.judged`, `bartizan.clients.quarantined` (by `reason`: values, layout, changed or crafted),
    `bartizan.clients.failed`, `bartizan.n_byzantine` (the f of the last round) and `bartizan.process.memory` (bytes).

    Args:
        provider: The MeterProvider; by default the one of the process, which the application sets with its exporter.
        attributes: Attributes of all measurements, such as ``{"federation": "hospitals"}``.
    """

    def __init__(self, provider: Any = None, attributes: dict[str, str] | None = None) -> None:
        try:
            from opentelemetry import metrics
        except ModuleNotFoundError as missing:
            raise missing_extra("bartizan.watch.OpenTelemetry needs OpenTelemetry", "opentelemetry") from missing
        self.attributes = dict(attributes or {})
        meter = (provider or metrics.get_meter_provider()).get_meter("bartizan", __version__)
        self._seconds = meter.create_histogram("bartizan.stage.duration", "s", "Seconds of a stage of a round")
        self._rounds = meter.create_counter("bartizan.rounds", "{round}", "Rounds that ended")
        self._judged = meter.create_counter("bartizan.clients.judged", "{client}", "Updates that were given weights")
        self._quarantined = meter.create_counter("bartizan.clients.quarantined", "{client}", "Updates not usable")
        self._failed = meter.create_counter("bartizan.clients.failed", "{client}", "Clients without an update")
        self._n_byzantine = meter.create_gauge("bartizan.n_byzantine", "{client}", "The f of the last round")

        def memory(options: Any) -> Iterable[Any]:
            if (resident := resident_bytes()) is not None:
                yield metrics.Observation(resident, self.attributes)

        meter.create_observable_gauge("bartizan.process.memory", [memory], "By", "Resident memory of the process")

    def __call__(self, line: Line) -> None:
        """Take a line of the run."""
        if line["kind"] != "round":
            return
        quarantined, failed = line.get("quarantined") or {}, line.get("failed") or {}
        refused = "combine" not in (line.get("seconds") or {})
        self._rounds.add(1, self.attributes | {"outcome": "refused" if refused else "combined"})
        self._judged.add(len({*map(str, line["clients"])} - {*quarantined}), self.attributes)
        self._failed.add(len(failed), self.attributes)
        for reason in quarantined.values():
            self._quarantined.add(1, self.attributes | {"reason": kind_of(reason)})
        for stage, spent in (line.get("seconds") or {}).items():
            self._seconds.record(spent, self.attributes | {"stage": stage})
        if line.get("n_byzantine") is not None:
            self._n_byzantine.set(line["n_byzantine"], self.attributes)


def kind_of(reason: str) -> str:
    """Return the kind of a reason for quarantine, of those in `REASONS`.

    >>> kind_of("the update holds NaN, first at 7"), kind_of("array 'extra' is not part of the model")
    ('values', 'layout')
    """
    return next((kind for kind, parts in REASONS.items() if any(part in reason for part in parts)), "layout")


def resident_bytes() -> int | None:
    """Return the memory of this process that is in RAM; None where the system has no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
