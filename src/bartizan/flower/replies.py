"""Decode untrusted replies of nodes: every array is checked against the model before anything is allocated for it.

An array travels as a .npy file. Its header is compared with the model that was sent; the shape and dtype that the
message states beside it are not used. An accepted array is a view of the bytes that arrived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, MetricRecord

from bartizan._util.text import quoted
from bartizan._util.types import Array
from bartizan.updates.headers import read_npy_header
from bartizan.updates.layout import FLOATS

STYPE = "numpy.ndarray"


@dataclass(frozen=True)
class Model:
    """The arrays of the global model that was sent, which every reply must match."""

    arrays: dict[str, Array]

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
        return cls(arrays)

    @property
    def dim(self) -> int:
        return sum(array.size for array in self.arrays.values() if array.dtype.kind == "f")

    @property
    def layout(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        return {name: (array.dtype, array.shape) for name, array in self.arrays.items()}

    def decode(self, record: Mapping[str, Any]) -> dict[str, Array]:
        """Return a reply's arrays in the model's order; raise ValueError if they do not match the model."""
        for name in record:
            if name not in self.arrays:
                raise ValueError(f"array {quoted(name, 60)} is not part of the model")
        arrays = {}
        for name, (dtype, shape) in self.layout.items():
            if name not in record:
                raise ValueError(f"array {name!r} is missing")
            try:
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


def reported_size(content: Any, key: str) -> float:
    """Return the positive number that a reply's metrics hold under `key`; raise ValueError if there is none."""
    values = [record[key] for record in records_of(content, MetricRecord) if key in record]
    if len(values) != 1 or isinstance(values[0], list) or not 0 < values[0] < math.inf:
        raise ValueError(f"its metrics must give {key!r} once, as a positive number; got {quoted(values, 60)}")
    return float(values[0])
