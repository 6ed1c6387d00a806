"""Metrics that nodes report, brought together so that no node can spoil them or end the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from bartizan._util.text import short
from bartizan.flower.decode import of_kind

MOST = 2**20
"""Bytes of one node's metrics that are kept until the round is over."""
log = logging.getLogger("flwr")
Together = Callable[[list[RecordDict], str], MetricRecord]


def medians(contents: list[RecordDict], key: str) -> MetricRecord:
    """The median of every number that most nodes report, but for the one that says how many examples they have.

    A median is moved by no minority; one number a node is all that is looked at.
    """
    reports = [_numbers(content) for content in contents]
    names = dict.fromkeys(name for report in reports for name in report if name != key)
    values = {name: [report[name] for report in reports if name in report] for name in names}
    return MetricRecord({name: float(median(found)) for name, found in values.items() if 2 * len(found) > len(reports)})


def kept(content: RecordDict, function: Together) -> RecordDict:
    """What is held of a reply until the others have come: what the function looks at, if that is not too much."""
    if function is medians:
        found = RecordDict({"metrics": MetricRecord(dict(_numbers(content)))})
    else:
        found = RecordDict({name: record for name, record in content.items() if not isinstance(record, ArrayRecord)})
    size = sum(_size(name) + _size(value) for record in found.values() for name, value in record.items())
    return found if size <= MOST else RecordDict()


def together(contents: list[RecordDict], key: str, function: Together) -> MetricRecord:
    """What the function makes of them; where an app's own raises, it is said and the run goes on."""
    if not contents:
        return MetricRecord()
    try:
        told = function(contents, key)
    except Exception as wrong:  # nodes choose what it is given
        said = short(f"{type(wrong).__name__}: {wrong}")
        log.warning("The app's function for metrics raised %s; this round has none.", said)
        return MetricRecord()
    if isinstance(told, MetricRecord):
        return told
    if told is not None:
        log.warning("The app's function for metrics gave a %s, not a MetricRecord: dropped.", type(told).__name__)
    return MetricRecord()


def _numbers(content: RecordDict) -> Mapping[str, float]:
    found: dict[str, Any] = {}
    for record in of_kind(content, MetricRecord):
        for name, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found[name] = value
    return found


def _size(value: Any) -> int:
    """About how many bytes a value has; at least those of a number."""
    if isinstance(value, list):
        return sum(map(_size, value)) if value and isinstance(value[0], (str, bytes)) else 8 * len(value)
    return max(8, len(value)) if isinstance(value, (str, bytes)) else 8
