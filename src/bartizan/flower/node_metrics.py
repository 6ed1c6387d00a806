"""Aggregate the metrics that nodes report, so that no node can distort them or end the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from bartizan._util.text import short
from bartizan.flower.replies import records_of

MAX_BYTES = 2**20
"""Bytes of one node's metrics that are kept until the round is over."""
log = logging.getLogger("flwr")
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


def medians(contents: list[RecordDict], key: str) -> MetricRecord:
    """Return the median of every number that most nodes report, except the number of examples under `key`.

    No minority of the nodes can move a median beyond the others' values.
    """
    reports = [_numbers(content) for content in contents]
    names = dict.fromkeys(name for report in reports for name in report if name != key)
    values = {name: [report[name] for report in reports if name in report] for name in names}
    return MetricRecord({name: float(median(found)) for name, found in values.items() if 2 * len(found) > len(reports)})


def without_arrays(content: RecordDict, function: MetricsFunction) -> RecordDict:
    """Return the part of a reply that the function needs; nothing if that is larger than `MAX_BYTES`."""
    if function is medians:
        kept = RecordDict({"metrics": MetricRecord(_numbers(content))})
    else:
        kept = RecordDict({name: record for name, record in content.items() if not isinstance(record, ArrayRecord)})
    size = sum(_size(name) + _size(value) for record in kept.values() for name, value in record.items())
    return kept if size <= MAX_BYTES else RecordDict()


def aggregate_metrics(contents: list[RecordDict], key: str, function: MetricsFunction) -> MetricRecord:
    """Call the function; an app's function that raises, or returns no MetricRecord, is logged and gives no metrics."""
    if not contents:
        return MetricRecord()
    try:
        metrics = function(contents, key)
    except Exception as wrong:  # nodes choose its arguments
        reason = short(f"{type(wrong).__name__}: {wrong}")
        log.warning("The app's function for metrics raised %s; this round has none.", reason)
        return MetricRecord()
    if isinstance(metrics, MetricRecord):
        return metrics
    if metrics is not None:
        log.warning("The app's function for metrics gave a %s, not a MetricRecord: dropped.", type(metrics).__name__)
    return MetricRecord()


def _numbers(content: RecordDict) -> dict[str, Any]:
    return {
        name: value
        for record in records_of(content, MetricRecord)
        for name, value in record.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _size(value: Any) -> int:
    """Return about how many bytes a value has; at least those of a number."""
    if isinstance(value, list):
        return sum(map(_size, value)) if value and isinstance(value[0], (str, bytes)) else 8 * len(value)
    return max(8, len(value)) if isinstance(value, (str, bytes)) else 8
