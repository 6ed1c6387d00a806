"""Read and write the header of a safetensors file; when read, every number is checked against the file's size.

Eight bytes say how long the header is; it is a JSON object from names to dtype, shape and place; the numbers follow,
without holes and without overlap. Nothing in the file is ever executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from bartizan._util.text import quoted

ITEMSIZES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
}
DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
MOST_HEADER = 8 * 2**20  # bytes: room for 50,000 arrays, and for no flood of empty lists
MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class Tensor:
    """Position of one array in the file: bytes from `start` to `stop`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(file: BinaryIO, size: int) -> list[Tensor]:
    """The arrays of a file of this many bytes, in the order of their names there; ValueError on what is not sound."""
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= size - 8:
        raise ValueError(f"its header would be {length:,} bytes long, and the file has {size:,}")
    if length > MOST_HEADER:
        raise ValueError(f"its header is {length:,} bytes long; at most {MOST_HEADER:,} are read")
    text = file.read(length)
    if len(text) < length or text[:1] != b"{":
        raise ValueError("its header is no JSON object")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("its header is not UTF-8") from None
    except json.JSONDecodeError as wrong:
        raise ValueError(f"its header is no JSON: {wrong}") from None
    _check_metadata(header.pop("__metadata__", {}))
    tensors = [_tensor(name, about, 8 + length) for name, about in header.items()]
    _check_places(tensors, 8 + length, size)
    return tensors


def write_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, list[Tensor]]:
    """The first bytes of a file of these arrays (name, dtype, shape), and the position of each."""
    codes = {dtype: code for code, dtype in DTYPES.items()}
    tensors = list(tensors)
    places, at = {}, 0
    # The widest numbers come first, so that each array is aligned.
    for name, dtype, shape in sorted(tensors, key=lambda tensor: -ITEMSIZES[codes[tensor[1]]]):
        places[name] = (at, at + math.prod(shape) * ITEMSIZES[codes[dtype]])
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


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, Mapping) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ must map names to texts")


def _tensor(name: str, about: Any, begin: int) -> Tensor:
    if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{quoted(name)} must have dtype, shape and data_offsets, and nothing else")
    code, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    if not isinstance(code, str) or code not in ITEMSIZES:
        raise ValueError(f"{quoted(name)} has dtype {quoted(code)}; known are {', '.join(ITEMSIZES)}")
    if not _counts(shape) or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"{quoted(name)} has shape {quoted(shape)}, not a list of sizes")
    if not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{quoted(name)} has data_offsets {quoted(offsets)}, not a begin and an end")
    low, high = offsets
    if high - low != math.prod(shape) * ITEMSIZES[code]:
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
