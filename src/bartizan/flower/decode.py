"""A node's reply, read as what a stranger sent: nothing is allocated, evaluated or believed before it is checked.

An array travels as a whole .npy file. Its header is compared with that of the model that was sent; what the message
says of shapes and dtypes beside it is not looked at. An accepted array is a view of the bytes that arrived.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, MetricRecord

from bartizan._util.types import Array
from bartizan.updates.layout import FLOATS

MAGIC = b"\x93NUMPY"
MOST_HEADER = 4096  # bytes: NumPy writes 128 for anything of fewer than a dozen dimensions
STYPE = "numpy.ndarray"
# NumPy writes its headers in exactly this form; nothing else is parsed, and nothing is evaluated. A text matches in one
# way at most, so that none takes long to refuse.
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[A-Za-z]+\d*)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,19}(?:, ?|(?=\))))*)\), ?\} *\n"
)


@dataclass(frozen=True)
class Header:
    """What the first bytes of a .npy file say: the numbers begin at byte `start`."""

    descr: str
    shape: tuple[int, ...]
    fortran: bool
    start: int


def header_of(data: bytes) -> Header:
    """The header of a .npy file in memory; ValueError on what is none."""
    if data[:6] != MAGIC or len(data) < 12:
        raise ValueError("it is no .npy file")
    width = {(1, 0): 2, (2, 0): 4}.get((data[6], data[7]))
    if width is None:
        raise ValueError(f"its .npy format has version {data[6]}.{data[7]}; 1.0 and 2.0 are read")
    length = int.from_bytes(data[8 : 8 + width], "little")
    start = 8 + width + length
    if length > MOST_HEADER or start > len(data):
        raise ValueError(f"its .npy header would be {length:,} bytes long")
    found = HEADER.fullmatch(data, 8 + width, start)
    if found is None:
        raise ValueError("its .npy header is not as NumPy writes it")
    descr, fortran, shape = found.groups()
    return Header(descr.decode(), tuple(map(int, re.findall(rb"\d+", shape))), fortran == b"True", start)


@dataclass(frozen=True)
class Model:
    """The global model that was sent: its arrays, and by them what every reply must look like."""

    arrays: dict[str, Array]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Model:
        """From the record that is sent to the nodes; raises on a model that can't be aggregated."""
        arrays = {}
        for name, array in record.items():
            try:
                header = header_of(array.data)
                dtype = np.dtype(header.descr)
                if dtype.name not in FLOATS and dtype.kind not in "iub":
                    wanted = ", ".join(name for name in FLOATS if name != "bfloat16")  # which a .npy file does not know
                    raise ValueError(f"its numbers are {dtype}; wanted {wanted} or integers")
                arrays[name] = view(array, Header(header.descr, header.shape, False, 0))
            except (ValueError, TypeError) as wrong:
                raise ValueError(f"The global model's array {name!r} can't be aggregated: {wrong}.") from None
        if not any(array.dtype.kind == "f" for array in arrays.values()):
            raise ValueError("The global model holds no floating-point numbers to aggregate.")
        return cls(arrays)

    @property
    def dim(self) -> int:
        return sum(array.size for array in self.arrays.values() if array.dtype.kind == "f")

    def same_layout(self, other: Model) -> bool:
        return {n: (a.dtype, a.shape) for n, a in self.arrays.items()} == {
            n: (a.dtype, a.shape) for n, a in other.arrays.items()
        }

    def decode(self, record: Mapping[str, Any]) -> dict[str, Array]:
        """A reply's arrays in the model's order, as views; ValueError that says what is wrong with it."""
        for name in record:
            if name not in self.arrays:
                raise ValueError(f"array {_short(name)} is not part of the model")
        decoded = {}
        for name, wanted in self.arrays.items():
            if name not in record:
                raise ValueError(f"array {name!r} is missing")
            try:
                decoded[name] = view(record[name], Header(wanted.dtype.str, wanted.shape, False, 0))
            except ValueError as wrong:
                raise ValueError(f"array {name!r}: {wrong}") from None
        return decoded


def view(array: Any, wanted: Header) -> Array:
    """The numbers of one of Flower's arrays where they lie, if they are of this dtype and shape."""
    if array.stype != STYPE:
        raise ValueError(f"it was serialised as {_short(array.stype)}, not as {STYPE!r}")
    header = header_of(array.data)
    if header.descr != wanted.descr or header.shape != wanted.shape:
        came = f"{_short(header.descr)} of shape {_short(header.shape)}"
        raise ValueError(f"wanted {wanted.descr!r} of shape {wanted.shape}, got {came}")
    dtype = np.dtype(wanted.descr)
    size = header.start + dtype.itemsize * math.prod(wanted.shape)
    if len(array.data) != size:
        raise ValueError(f"it should have {size:,} bytes, and has {len(array.data):,}")
    order: Literal["C", "F"] = "F" if header.fortran else "C"
    numbers: Array = np.ndarray(wanted.shape, dtype, array.data, header.start, order=order)
    return numbers if numbers.flags.aligned else numbers.copy()


def as_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Arrays as Flower sends them."""
    return ArrayRecord({name: FlowerArray(np.asarray(array)) for name, array in arrays.items()})


def of_kind(content: Any, kind: type) -> list[Any]:
    """A reply's records of one kind.

    Not by Flower's `array_records`: whoever asks for these ties the reply into a circle of references, which keeps its
    bytes until Python happens to look for circles.
    """
    return [record for record in content.values() if isinstance(record, kind)]


def only_arrays(content: Any) -> Mapping[str, Any]:
    """The one record of arrays in a reply, under whatever key."""
    records = of_kind(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(f"it holds {len(records)} records of arrays; wanted 1")
    found: Mapping[str, Any] = records[0]
    return found


def reported(content: Any, key: str) -> float:
    """The number that a reply's metrics give under a key; ValueError where there is none that is positive."""
    values = [record[key] for record in of_kind(content, MetricRecord) if key in record]
    if len(values) != 1 or isinstance(values[0], list) or not 0 < values[0] < math.inf:
        raise ValueError(f"its metrics must give {key!r} once, as a positive number; got {_short(values)}")
    return float(values[0])


def _short(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."
