"""Read and write the headers of .npy and .safetensors files; a header that is read comes from an untrusted source."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np

from bartizan._util.text import quoted
from bartizan.updates.layout import itemsize_of

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 4096  # bytes: NumPy writes 128 for fewer than a dozen dimensions
# Only the form that NumPy writes is read, and nothing is evaluated. A text matches in one way at most, so that no
# hostile one takes long to refuse.
SIZE = rb"(?:0|[1-9]\d{0,18})"
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[A-Za-z]+\d*)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:SIZE,(?: ?SIZE(?:, ?SIZE)*,?)? ?)?)\), ?\} *\n".replace(b"SIZE", SIZE)
)
DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
MOST_HEADER = 8 * 2**20  # bytes: room for 50,000 arrays, and for no flood of empty lists
MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class NpyHeader:
    """The header of a .npy file; the numbers begin at byte `start`."""

    dtype: str
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    start: int


def read_npy_header(data: bytes) -> NpyHeader:
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
    return NpyHeader(dtype.decode(), tuple(map(int, re.findall(rb"\d+", shape))), order, start)


def write_npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The first bytes of a .npy file of an array of this dtype and shape."""
    head = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    return head.getvalue()


@dataclass(frozen=True)
class Tensor:
    """Position of one array in a file: bytes from `start` to `stop`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def stored(self) -> np.dtype:
        """The dtype of its numbers in a .safetensors file, bfloat16 as uint16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype).newbyteorder("<")


def read_safetensors_header(file: IO[bytes], size: int, most: int = MOST_HEADER) -> list[Tensor]:
    """The arrays of a file of this many bytes, in the order of their names there; ValueError on what is not sound.

    Eight bytes say how long the header is; it is a JSON object from names to dtype, shape and place; the numbers
    follow, without holes and without overlap.
    """
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= size - 8:
        raise ValueError(f"its header would be {length:,} bytes long, and the file has {size:,}")
    if length > most:
        raise ValueError(f"its header is {length:,} bytes long; at most {most:,} are read")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("its header is cut short")
    header = read_json_object(text, "header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, Mapping) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ must map names to texts")
    tensors = [_tensor(name, about, 8 + length) for name, about in header.items()]
    _check_places(tensors, 8 + length, size)
    return tensors


def write_safetensors_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, list[Tensor]]:
    """The first bytes of a file of these arrays (name, dtype, shape), and the position of each."""
    codes = {dtype: code for code, dtype in DTYPES.items()}
    tensors = list(tensors)
    places, at = {}, 0
    # The widest numbers come first, so that each array is aligned.
    for name, dtype, shape in sorted(tensors, key=lambda tensor: -itemsize_of(tensor[1])):
        places[name] = (at, at + math.prod(shape) * itemsize_of(dtype))
        at = places[name][1]
    header = {
        name: {"dtype": codes[dtype], "shape": list(shape), "data_offsets": list(places[name])}
        for name, dtype, shape in tensors
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    begin = 8 + len(text)
    placed = [
        Tensor(name, dtype, shape, begin + places[name][0], begin + places[name][1]) for name, dtype, shape in tensors
    ]
    return len(text).to_bytes(8, "little") + text, placed


def read_json_object(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object in the header or index of an update; ValueError if it is something else."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(f"its {what} has a name twice")
        return found

    if text[:1] != b"{":
        raise ValueError(f"its {what} is no JSON object")
    try:
        parsed: dict[str, Any] = json.loads(text.decode("utf-8"), object_pairs_hook=without_duplicates)
    except RecursionError:
        raise ValueError(f"its {what} is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError(f"its {what} is not UTF-8") from None
    except json.JSONDecodeError as wrong:
        raise ValueError(f"its {what} is no JSON: {wrong}") from None
    return parsed


def _tensor(name: str, about: Any, begin: int) -> Tensor:
    if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{quoted(name)} must have dtype, shape and data_offsets, and nothing else")
    code, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(f"{quoted(name)} has dtype {quoted(code)}; known are {', '.join(DTYPES)}")
    if not _counts(shape) or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"{quoted(name)} has shape {quoted(shape)}, not a list of sizes")
    if not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{quoted(name)} has data_offsets {quoted(offsets)}, not a begin and an end")
    low, high = offsets
    if high - low != math.prod(shape) * itemsize_of(DTYPES[code]):
        raise ValueError(f"{quoted(name)} has {high - low} bytes where {code} of shape {shape} takes another number")
    return Tensor(name, DTYPES[code], tuple(shape), begin + low, begin + high)


def _check_places(tensors: list[Tensor], begin: int, size: int) -> None:
    at = begin
    for tensor in sorted(tensors, key=lambda t: (t.start, t.stop)):
        if tensor.start != at:
            kind = "overlaps another array" if tensor.start < at else "comes after a hole"
            raise ValueError(f"{quoted(tensor.name)} {kind}, at byte {tensor.start:,}")
        at = tensor.stop
    if at != size:
        raise ValueError(f"its arrays end at byte {at:,}, and the file has {size:,}")


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**63 for n in values)
