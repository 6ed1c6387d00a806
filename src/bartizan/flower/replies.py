"""Read untrusted replies of nodes: their arrays, sizes and metrics.

Every array is checked against the model before anything is allocated for it.
An array travels as a .npy file. Its header is compared with the model that was sent; the shape and dtype that the
message states beside it are not used. An accepted array is a view of the bytes that arrived.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from bartizan._util.text import quoted, short
from bartizan._util.types import Array
from bartizan.judge.client_reports import finite_numbers, median_metrics
from bartizan.sources.adapters.adapters import shape_of_rank
from bartizan.updates.headers import read_npy_header
from bartizan.updates.layout import FLOATS

STYPE = "numpy.ndarray"
MAX_METRIC_BYTES = 2**20  # of one node, that are kept until the round is over
log = logging.getLogger("flwr")
M = TypeVar("M")
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(frozen=True)
class Model:
    """The arrays of the global model that was sent, which every reply must match."""

    arrays: dict[str, Array]
    record: Any = None  # the arrays as Flower sends them

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Model:
        """Read the record that is sent to the nodes; raise ValueError if it can't be aggregated."""
        arrays = {}
        for name, array in record.items():
            try:
                header = read_npy_header(array.data)
                dtype = np.dtype(header.dtype)
                if dtype.name not in FLOATS and dtype.kind not in "iub":
                    wanted = ", ".join(name for name in FLOATS if name != "bfloat16")  # .npy has no bfloat16
                    raise ValueError(f"its numbers are {dtype}; wanted {wanted} or integers")
                arrays[name] = decoded(array, dtype, header.shape)
            except (ValueError, TypeError) as wrong:
                raise ValueError(f"The global model's array {name!r} can't be aggregated: {wrong}.") from None
        if not any(array.dtype.kind == "f" for array in arrays.values()):
            raise ValueError("The global model holds no floating-point numbers to aggregate.")
        return cls(arrays, record)

    @property
    def dim(self) -> int:
        return sum(array.size for array in self.arrays.values() if array.dtype.kind == "f")

    @cached_property
    def layout(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        return {name: (array.dtype, array.shape) for name, array in self.arrays.items()}

    def decode(self, record: Mapping[str, Any], *, any_rank: bool = False) -> dict[str, Array]:
        """Return a reply's arrays in the model's order; raise ValueError if they do not match the model.

        With `any_rank` they are the factors of an adapter, whose rank may be another than the model's.
        """
        for name in record:
            if name not in self.arrays:
                raise ValueError(f"array {quoted(name, 60)} is not part of the model")
        arrays = {}
        for name, (dtype, shape) in self.layout.items():
            if name not in record:
                raise ValueError(f"array {name!r} is missing")
            try:
                if any_rank:
                    shape = shape_of_rank(name, shape, read_npy_header(record[name].data).shape)
                arrays[name] = decoded(record[name], dtype, shape)
            except ValueError as wrong:
                raise ValueError(f"array {name!r}: {wrong}") from None
        return arrays


def decoded(array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return a view of one of Flower's arrays; raise ValueError if it has another dtype, shape or size."""
    if array.stype != STYPE:
        raise ValueError(f"it was serialised as {quoted(array.stype, 60)}, not as {STYPE!r}")
    header = read_npy_header(array.data)
    if header.dtype != dtype.str or header.shape != shape:
        came = f"{quoted(header.dtype, 60)} of shape {quoted(header.shape, 60)}"
        raise ValueError(f"wanted {dtype.str!r} of shape {shape}, got {came}")
    size = header.start + dtype.itemsize * math.prod(shape)
    if len(array.data) != size:
        raise ValueError(f"it should have {size:,} bytes, and has {len(array.data):,}")
    numbers: Array = np.ndarray(shape, dtype, array.data, header.start, order=header.order)
    return numbers if numbers.flags.aligned else numbers.copy()


def as_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Return arrays as Flower sends them."""
    return ArrayRecord({name: FlowerArray(np.asarray(array)) for name, array in arrays.items()})


def records_of(content: Any, kind: type) -> list[Any]:
    """Return a reply's records of one kind.

    Flower's `array_records` would make a reference cycle, which keeps the reply's bytes until the next collection.
    """
    return [record for record in content.values() if isinstance(record, kind)]


def arrays_of(content: Any) -> Mapping[str, Any]:
    """Return the only record of arrays in a reply, under whatever key."""
    records = records_of(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(f"it holds {len(records)} records of arrays; wanted 1")
    arrays: Mapping[str, Any] = records[0]
    return arrays


def reported_size(content: Any, key: str) -> Any:
    """Return the value under `key` in a reply's metrics; raise ValueError unless exactly one record has it."""
    values = [record[key] for record in records_of(content, MetricRecord) if key in record]
    if len(values) != 1:
        raise ValueError(f"its metrics must give {key!r} once; got {quoted(values, 60)}")
    return values[0]


def medians(contents: list[Any], key: str) -> MetricRecord:
    """Return the median of every number that most nodes report, except the number of examples under `key`.

    No minority of the nodes can move a median beyond the others' values.
    """
    numbers = [_numbers(one) if isinstance(one, RecordDict) else one["metrics"] for one in contents]
    found = median_metrics(numbers)
    return MetricRecord({name: value for name, value in found.items() if name != key})


def without_arrays(content: RecordDict, function: MetricsFunction) -> Any:
    """Return the part of a reply that the function needs; nothing if that is larger than `MAX_METRIC_BYTES`.

    That is a RecordDict, but for `medians`, which takes plain dicts: Flower's would take longer than the arrays.
    """
    if function is medians:
        numbers = _numbers(content)
        return {"metrics": numbers if sum(map(_size, numbers)) + 8 * len(numbers) <= MAX_METRIC_BYTES else {}}
    kept = RecordDict({name: record for name, record in content.items() if not isinstance(record, ArrayRecord)})
    size = sum(_size(name) + _size(value) for record in kept.values() for name, value in record.items())
    return kept if size <= MAX_METRIC_BYTES else RecordDict()


def aggregate_metrics(contents: list[RecordDict], key: str, function: MetricsFunction) -> MetricRecord:
    """Call the function; an app's function that raises, or returns no MetricRecord, is logged and gives no metrics."""
    try:
        metrics = function(contents, key) if contents else None
        if not isinstance(metrics, MetricRecord | None):
            raise TypeError(f"it must return a MetricRecord, got {type(metrics).__name__}")
    except Exception as wrong:  # nodes choose its arguments
        reason = short(f"{type(wrong).__name__}: {wrong}")
        log.warning("The app's function for metrics raised %s; this round has none.", reason)
        return MetricRecord()
    return metrics or MetricRecord()


def evaluation_metrics(
    replies: Iterable[Message], trusted: Container[int] | None, key: str, function: MetricsFunction
) -> MetricRecord | None:
    """Aggregate the metrics of the trusted nodes' replies to an evaluation, or of all nodes if `trusted` is None."""
    found: dict[int, Any] = {}
    failed: dict[int, str] = {}
    untrusted: set[int] = set()
    for reply in replies:
        node = reply.metadata.src_node_id
        if reply.has_error():
            failed.setdefault(node, short(reply.error.reason))
        elif trusted is not None and node not in trusted:
            untrusted.add(node)
        elif node not in found:
            found[node] = without_arrays(reply.content, function)
    if found or untrusted or failed:
        counts = (len(found), len(failed), len(untrusted))
        log.info("aggregate_evaluate: used metrics of %d nodes; %d failed, %d not trusted in training", *counts)
    for node, reason in failed.items():
        log.warning("\t> Node %d failed: %s", node, reason)
    return aggregate_metrics([found[node] for node in sorted(found)], key, function) if found else None


def keep(metrics: dict[int, M], server_round: int, of_round: M | None) -> M | None:
    """Add the metrics of a round to those of the run, if there are any; log and return them."""
    if of_round is not None:
        log.info("\t└──> MetricRecord: %s", of_round)
        metrics[server_round] = of_round
    return of_round


def _numbers(content: RecordDict) -> dict[str, Any]:
    records = records_of(content, MetricRecord)
    return {name: value for record in records for name, value in finite_numbers(record).items()}


def _size(value: Any) -> int:
    """Return about how many bytes a value has; at least those of a number."""
    if isinstance(value, list):
        return sum(map(_size, value)) if value and isinstance(value[0], (str, bytes)) else 8 * len(value)
    return max(8, len(value)) if isinstance(value, (str, bytes)) else 8
