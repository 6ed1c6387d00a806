"""Read the header of a .npy file from an untrusted source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 4096  # bytes: NumPy writes 128 for fewer than a dozen dimensions
# Only the form that NumPy writes is read, and nothing is evaluated. A text matches in one way at most, so that no
# hostile one takes long to refuse.
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[A-Za-z]+\d*)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,19}(?:, ?|(?=\))))*)\), ?\} *\n"
)


@dataclass(frozen=True)
class Header:
    """The header of a .npy file; the numbers begin at byte `start`."""

    dtype: str
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    start: int


def read_header(data: bytes) -> Header:
    """Read the header from the first bytes of a .npy file; raise ValueError if it is not one."""
    if data[:6] != MAGIC or len(data) < 12:
        raise ValueError("it is no .npy file")
    width = {(1, 0): 2, (2, 0): 4}.get((data[6], data[7]))
    if width is None:
        raise ValueError(f"its .npy format has version {data[6]}.{data[7]}; 1.0 and 2.0 are read")
    length = int.from_bytes(data[8 : 8 + width], "little")
    start = 8 + width + length
    if length > LONGEST_HEADER or start > len(data):
        raise ValueError(f"its .npy header would be {length:,} bytes long")
    found = HEADER.fullmatch(data, 8 + width, start)
    if found is None:
        raise ValueError("its .npy header is not as NumPy writes it for an array of numbers")
    dtype, fortran, shape = found.groups()
    order: Literal["C", "F"] = "F" if fortran == b"True" else "C"
    return Header(dtype.decode(), tuple(map(int, re.findall(rb"\d+", shape))), order, start)
