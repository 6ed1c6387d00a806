"""Metrics that nodes report, brought together so that no node can spoil them or end the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from flwr.app import MetricRecord, RecordDict

from bartizan.flower.decode import of_kind

log = logging.getLogger("flwr")
Together = Callable[[list[RecordDict], str], MetricRecord]


def without_arrays(content: RecordDict) -> RecordDict:
    """A reply's metrics alone, so that its arrays need not be kept."""
    return RecordDict({name: record for name, record in content.items() if isinstance(record, MetricRecord)})


def medians(contents: Iterable[RecordDict], key: str) -> dict[str, float]:
    """The median of every number that most nodes report, but for the one that says how many examples they have.

    A median is moved by no minority; one number a node is all that is looked at.
    """
    reports = [_numbers(content) for content in contents]
    names = dict.fromkeys(name for report in reports for name in report if name != key)
    values = {name: [report[name] for report in reports if name in report] for name in names}
    return {name: float(median(found)) for name, found in values.items() if 2 * len(found) > len(reports)}


def together(contents: list[RecordDict], key: str, own: Together | None) -> MetricRecord:
    """Medians, or what the app's own function makes of them; where that raises, it is said and the run goes on."""
    if own is None:
        return MetricRecord(dict(medians(contents, key)))
    try:
        return own(contents, key) if contents else MetricRecord()
    except Exception as wrong:  # nodes choose what it is given
        log.warning("The app's function for metrics raised %s: %s; this round has none.", type(wrong).__name__, wrong)
        return MetricRecord()


def _numbers(content: RecordDict) -> Mapping[str, float]:
    found: dict[str, Any] = {}
    for record in of_kind(content, MetricRecord):
        for name, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found[name] = value
    return found
