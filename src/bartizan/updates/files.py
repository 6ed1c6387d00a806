"""Open updates in files by mapping them into memory, and write them atomically."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
from collections.abc import Iterator, Mapping, ValuesView
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from bartizan._util.atomic import atomic_file
from bartizan._util.regular_files import NotRegularError, open_regular
from bartizan._util.text import quoted
from bartizan._util.types import Array
from bartizan.updates.headers import (
    LONGEST_HEADER,
    Tensor,
    read_npy_header,
    read_safetensors_header,
    write_npy_header,
    write_safetensors_header,
)
from bartizan.updates.layout import dtype_name, is_tensor, leaves_of, like_leaf

NORESERVE = 0x4000 if sys.platform == "linux" else 0  # a map of a file larger than RAM needs no RAM set aside


def open_update(
    path: str | os.PathLike[str], *, dtype: npt.DTypeLike | None = None, shape: tuple[int, ...] | int | None = None
) -> Any:
    """The update in a file, mapped: nothing is read until it is used, and the file is never written to.

    A `.npy` file is one array, a `.safetensors` file a dict of arrays; any other is one array of the `dtype` and
    `shape` given. bfloat16 needs torch or ml_dtypes. What is not sound is a ValueError that names the file. The file
    must not be cut short while the update is in use.
    """
    path = Path(path)
    try:
        if (dtype is None) != (shape is None):
            raise ValueError("dtype and shape belong together: pass both, or neither")
        with open_regular(path) as file:
            if dtype is not None and shape is not None:
                return _array(file, np.dtype(dtype), tuple(shape) if isinstance(shape, (tuple, list)) else (shape,))
            if path.suffix == ".npy":
                return _npy(file)
            if path.suffix == ".safetensors":
                return _safetensors(file)
        raise ValueError("known are .npy and .safetensors; pass dtype and shape to read it as one plain array")
    except NotRegularError as other:
        raise ValueError(f"{path} can't be opened as an update: {other.strerror}.") from None
    except ValueError as unsound:
        raise ValueError(f"{path} can't be opened as an update: {unsound}.") from None


@contextlib.contextmanager
def create_update(path: str | os.PathLike[str], like: Any) -> Iterator[Any]:
    """A new update in a file, mapped to be written, of the names, shapes and dtypes of `like`.

    One array makes a `.npy` file, a dict of arrays a `.safetensors` file. It appears under its name when the block
    ends without an error, complete, in place of what was there; a process that is killed leaves a hidden file at most.

    >>> import tempfile, bartizan as bz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create_update(f"{folder}/mean.npy", like=np.zeros(3)) as out:
    ...         done = bz.aggregate([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], bz.Mean(), out=out)
    ...     open_update(f"{folder}/mean.npy").tolist()
    [2.0, 2.0, 2.0]
    """
    path = Path(path)
    leaves = leaves_of(like)
    if path.suffix == ".npy" and set(leaves) == {()}:
        leaf, name = leaves[()], dtype_name(leaves[()])
        if name == "bfloat16":
            raise ValueError("A .npy file can't hold bfloat16: make it a dict in a .safetensors file.")
        head = write_npy_header(np.dtype(name) if is_tensor(leaf) else leaf.dtype, tuple(leaf.shape))
        places = [Tensor("", name, tuple(leaf.shape), len(head), len(head) + leaf.nbytes)]
    elif path.suffix == ".safetensors" and isinstance(like, Mapping) and all(_is_name(key) for key in leaves):
        head, places = write_safetensors_header(
            [(name, dtype_name(leaf), tuple(leaf.shape)) for (name,), leaf in leaves.items()]
        )
    else:
        raise ValueError(f"{path}: one array makes a .npy file, a dict from names to arrays a .safetensors file.")
    size = max([len(head), *(place.stop for place in places)])
    with atomic_file(path, size) as file:
        file.write(head)
        file.flush()
        memory = mmap.mmap(file.fileno(), size)
        built = {place.name: _as_leaf(memory, place, leaves[(place.name,) if place.name else ()]) for place in places}
        yield built if isinstance(like, Mapping) else built[""]
        memory.flush()


def open_paths(updates: Any) -> Any:
    """The same updates, with each path replaced by its mapped file, or by an `Unreadable` that holds the error."""
    if isinstance(updates, (Iterator, ValuesView)):
        updates = list(updates)
    if not isinstance(updates, (list, tuple)) or not any(isinstance(update, Path) for update in updates):
        return updates
    return [open_path(update) if isinstance(update, Path) else update for update in updates]


def open_path(path: Path) -> Any:
    try:
        return open_update(path)
    except (ValueError, OSError, ModuleNotFoundError) as unsound:
        return Unreadable(str(unsound))


class Unreadable(Mapping[Any, Any]):
    """An update that could not be read: reading it raises the reason, so its client is quarantined."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getitem__(self, key: Any) -> Any:
        raise TypeError(self.reason)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(self.reason)

    def __len__(self) -> int:
        raise TypeError(self.reason)


def map_file(file: BinaryIO) -> mmap.mmap:
    """Map an open file into memory, privately: it is never written to."""
    flags, access = mmap.MAP_PRIVATE | NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    return mmap.mmap(file.fileno(), 0, flags=flags, prot=access)


def _array(
    file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...], start: int = 0, order: Literal["C", "F"] = "C"
) -> Array:
    """The one array of a file, whose numbers begin at byte `start`."""
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise ValueError(f"its shape must be whole numbers from 0 up; got {quoted(shape)}")
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(f"its numbers are {dtype}; wanted floats, integers or booleans of at most 64 bits")
    size, wanted = os.fstat(file.fileno()).st_size, start + dtype.itemsize * math.prod(shape)
    if size != wanted:
        raise ValueError(f"{dtype} of shape {shape} takes {wanted:,} bytes, and the file has {size:,}")
    return _view(map_file(file), dtype, shape, start, order) if size else np.empty(shape, dtype)


def _npy(file: BinaryIO) -> Array:
    header = read_npy_header(file.read(LONGEST_HEADER + 12))
    try:
        dtype = np.dtype(header.dtype)
    except TypeError:
        raise ValueError(f"its .npy header has the unknown dtype {header.dtype!r}") from None
    return _array(file, dtype, header.shape, header.start, header.order)


def _safetensors(file: BinaryIO) -> dict[str, Any]:
    tensors = read_safetensors_header(file, os.fstat(file.fileno()).st_size)
    memory = map_file(file)
    return {tensor.name: _entry(memory, tensor) for tensor in tensors}


def _entry(memory: mmap.mmap, tensor: Tensor) -> Any:
    if tensor.dtype != "bfloat16":
        return _view(memory, np.dtype(tensor.dtype).newbyteorder("<"), tensor.shape, tensor.start)
    bits = np.ndarray(tensor.shape, np.dtype("<u2"), memory, tensor.start)
    if tensor.start % 2:
        raise ValueError(f"{tensor.name!r} is not aligned; save it again")
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        return torch.from_numpy(bits).view(torch.bfloat16)
    with contextlib.suppress(ModuleNotFoundError):
        import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

        return bits.view(ml_dtypes.bfloat16)
    raise ModuleNotFoundError("bfloat16 needs torch: pip install 'bartizan[torch]' (or ml_dtypes).")


def _view(
    memory: mmap.mmap, dtype: np.dtype, shape: tuple[int, ...], start: int, order: Literal["C", "F"] = "C"
) -> Array:
    array: Array = np.ndarray(shape, dtype, memory, start, order=order)
    array.flags.writeable = False
    return array


def _as_leaf(memory: mmap.mmap, place: Tensor, like: Any) -> Any:
    """This place of the map as an array of the library that `like` is of."""
    stored = "uint16" if place.dtype == "bfloat16" else place.dtype
    # A .npy file keeps the byte order of `like`; a .safetensors file is little-endian.
    dtype = np.dtype(stored).newbyteorder("<") if place.name or is_tensor(like) else like.dtype
    array: Array = np.ndarray(place.shape, dtype, memory, place.start)
    return like_leaf(array, like) if is_tensor(like) or place.dtype == "bfloat16" else array


def _is_name(key: tuple[Any, ...]) -> bool:
    return len(key) == 1 and isinstance(key[0], str) and key[0] not in ("", "__metadata__")
