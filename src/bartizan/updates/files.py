"""Open updates in files by mapping them into memory, or in stores, and write them atomically."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Mapping, ValuesView
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from bartizan._util.atomic import atomic_file, remove_abandoned
from bartizan._util.extras import missing_extra
from bartizan._util.redact import without_addresses_secrets, without_secrets
from bartizan._util.regular_files import NotRegularError, open_regular
from bartizan._util.text import quoted, short
from bartizan._util.types import Array
from bartizan.errors import ADVICE, ServerResourceError, raise_if_exhausted, server_error
from bartizan.updates.fetch import open_stored
from bartizan.updates.folders import INDEX, KNOWN, Folder, open_folder, open_index
from bartizan.updates.headers import (
    LONGEST_HEADER,
    MOST_HEADER,
    Tensor,
    read_npy_header,
    read_safetensors_header,
    write_npy_header,
    write_safetensors_header,
)
from bartizan.updates.layout import Unreadable, dtype_name, is_tensor, leaves_of, like_leaf
from bartizan.updates.mapping import MAX_MAPPED, MappedFile, n_mapped
from bartizan.updates.server_inputs import server_leaves
from bartizan.updates.spill import copied
from bartizan.updates.stores import MAX_UPDATE_BYTES, TIMEOUT, FetchLimits, StoredPlace, uploaded

UPDATES_AT_A_TIME = 16  # that are fetched from stores


def open_update(
    path: str | os.PathLike[str] | StoredPlace,
    *,
    dtype: npt.DTypeLike | None = None,
    shape: tuple[int, ...] | int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
    max_bytes: int | None = MAX_UPDATE_BYTES,
) -> Any:
    """The update in a file, a folder or a store, mapped: nothing is read until it is used, and it is never written to.

    A `.npy` file is one array, a `.safetensors` file a dict of arrays. So is a `.safetensors.index.json` file with the
    shards beside it, and a folder with an index, an `adapter_model.safetensors` (peft), a `model.safetensors` or
    shards alone. Any other file is one array of the `dtype` and `shape` given. bfloat16 needs torch or ml_dtypes. A
    file that is not sound is a ValueError that names it.

    A file must not be cut short while the update is in use. What is at an address such as ``s3://bucket/client/`` (any
    of fsspec, the extra `remote`) is fetched once, at most `max_bytes`, into the folder for temporary
    files (TMPDIR), and mapped there. `storage_options` go to fsspec; no bytes may come for `timeout` seconds.
    """
    if (dtype is None) != (shape is None):
        raise ValueError("dtype and shape belong together: pass both, or neither.")
    files = LocalFiles(exposed=True)
    if isinstance(path, StoredPlace) or is_address(path):
        place = path if isinstance(path, StoredPlace) else str(path)
        limits = FetchLimits(timeout, max_bytes)
        return open_stored(place, files, limits, dtype=dtype, shape=shape, options=storage_options)
    return _open_local(Path(path), files, dtype, shape)


def _open_local(
    path: Path, files: LocalFiles, dtype: npt.DTypeLike | None = None, shape: tuple[int, ...] | int | None = None
) -> Any:
    """The update in a file or folder of this machine; ValueError if it is not sound."""
    try:
        if dtype is None and path.is_dir():
            return open_folder(Folder(path, files))
        if dtype is None and path.name.endswith(INDEX):
            return open_index(Folder(path.parent, files), path.name)
        with open_regular(path) as file:
            return files.one(file, path.name, dtype, shape)
    except (ValueError, NotRegularError) as unsound:
        said = unsound.strerror if isinstance(unsound, NotRegularError) else unsound
        raise ValueError(f"{short(path)} can't be opened as an update: {said}.") from None
    except OSError as unread:
        raise_if_exhausted(unread, f"{short(path)} can't be opened")
        raise


@contextlib.contextmanager
def create_update(
    path: str | os.PathLike[str], like: Any, *, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """A new update in a file, mapped to be written, of the names, shapes and dtypes of `like`.

    One array makes a `.npy` file, a dict of arrays a `.safetensors` file. It appears under its name when the block
    ends without an error, complete, in place of what was there. A process that is killed leaves a hidden file at most,
    which the next one that writes the same file removes.
    For an address the file is written to a temporary folder, uploaded under another name and moved.

    >>> import tempfile, bartizan as bz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create_update(f"{folder}/mean.npy", like=np.zeros(3)) as out:
    ...         done = bz.aggregate([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], bz.Mean(), out=out)
    ...     open_update(f"{folder}/mean.npy").tolist()
    [2.0, 2.0, 2.0]
    """
    if is_address(path):
        with uploaded(str(path), storage_options) as local, create_update(local, like) as built:
            yield built
        return
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
        raise ValueError(
            f"{short(path)}: one array makes a .npy file, a dict from names to arrays a .safetensors file."
        )
    size = max([len(head), *(place.stop for place in places)])
    remove_abandoned(path)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(atomic_file(path, size))
            file.write(head)
            file.flush()
            mapped = MappedFile(file.fileno(), size, "shared")
        except OSError as full:
            if full.errno not in ADVICE:
                raise
            raise server_error(full, f"{short(path)} of {size:,} bytes can't be made") from full
        memory = mapped.memory(writable=True)
        built = {place.name: _as_leaf(memory, place, leaves[(place.name,) if place.name else ()]) for place in places}
        yield built if isinstance(like, Mapping) else built[""]
        mapped.flush()


def open_paths(updates: Any, **options: Any) -> Any:
    """The same updates, with each path or address opened, or replaced by an `Unreadable` that holds the error."""
    if isinstance(updates, (Iterator, ValuesView)):
        updates = list(updates)
    if not isinstance(updates, (list, tuple)) or not any(map(is_place, updates)):
        return updates
    if not any(is_place(one) and not isinstance(one, Path) for one in updates):
        return [opened(update) for update in updates]
    stopped = threading.Event()
    with ThreadPoolExecutor(UPDATES_AT_A_TIME) as pool:
        try:
            return list(pool.map(partial(opened, stopped=stopped, **options), updates))
        except BaseException:  # Ctrl-C waits for no store
            pool.shutdown(wait=False, cancel_futures=True)
            stopped.set()
            raise


def opened(
    update: Any,
    *,
    timeout: float = TIMEOUT,
    max_bytes: int | None = MAX_UPDATE_BYTES,
    stopped: threading.Event | None = None,
) -> Any:
    """Return the update at a path or address, `Unreadable` if it can't be opened; anything else unchanged.

    A `ServerResourceError` is the server's own: a path is made a plain one first, so no class of a client raises it.
    """
    try:
        local = isinstance(update, Path)
        place: Any = Path(update) if local else update
        in_store = isinstance(place, StoredPlace) or is_address(place)
    except Exception as error:  # a path may be of any class, which may raise anything
        return Unreadable(_unread(update, error))
    if not (local or in_store):
        return update
    try:
        files = LocalFiles(exposed=False)
        if local:
            return _open_local(place, files)
        return open_stored(place, files, FetchLimits(timeout, max_bytes, stopped))
    except ServerResourceError:
        raise
    except (OSError, ValueError, ImportError) as unread:
        raise_if_exhausted(unread, f"{without_secrets(short(place))} can't be opened")
        return Unreadable(_unread(place, unread))


def _unread(place: Any, error: Exception) -> str:
    if isinstance(error, (ValueError, ImportError)):
        return short(error)
    where = short(place) if isinstance(place, Path) else without_secrets(short(place))
    why = (error.strerror if isinstance(error, OSError) else None) or without_addresses_secrets(short(error))
    return f"{where} can't be opened as an update: {why}."


def open_point(point: Any, timeout: float = TIMEOUT) -> Any:
    """The server's own update, opened if it is a path or address."""
    return open_update(point, timeout=timeout, max_bytes=None) if is_place(point) else point


def max_bytes_like(reference: Any) -> int:
    """Return the bytes that a client's update in a store may have: the reference's numbers in 64 bits, if any."""
    if reference is None:
        return MAX_UPDATE_BYTES
    numbers = sum(math.prod(leaf.shape) for leaf in server_leaves("reference", reference).values())
    return 8 * numbers + 2 * MOST_HEADER


def is_place(update: Any) -> bool:
    kind = type(update)
    return issubclass(kind, (Path, StoredPlace)) or (kind is str and is_address(update))


def is_address(update: Any) -> bool:
    """Return whether this is an address in a store, such as s3://bucket/key."""
    return type(update) is str and "://" in update


def check_array(dtype: np.dtype, shape: tuple[int, ...], start: int, size: int) -> None:
    """Raise ValueError unless a file of this size holds such an array from byte `start` on, and nothing else."""
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise ValueError(f"its shape must be whole numbers from 0 up; got {quoted(shape)}")
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(f"its numbers are {dtype}; wanted floats, integers or booleans of at most 64 bits")
    wanted = start + dtype.itemsize * math.prod(shape)
    if size != wanted:
        raise ValueError(f"{dtype} of shape {shape} takes {wanted:,} bytes, and the file has {size:,}")


class LocalFiles:
    """Open the arrays in files of this machine: mapped, or copied and mapped together where no more can be mapped.

    If they are `exposed` a user gets them: all are mapped, and writing to a tensor changes this process's memory only.
    """

    def __init__(self, *, exposed: bool) -> None:
        self.exposed = exposed

    def one(self, file: IO[bytes], name: str, dtype: npt.DTypeLike | None, shape: Any) -> Any:
        """The update in one file of this name."""
        if dtype is not None:
            return self.array(file, np.dtype(dtype), tuple(shape) if isinstance(shape, (tuple, list)) else (shape,))
        if name.endswith(".npy"):
            header = read_npy_header(file.read(LONGEST_HEADER + 12))
            try:
                dtype = np.dtype(header.dtype)
            except TypeError:
                raise ValueError(f"its .npy header has the unknown dtype {header.dtype!r}") from None
            return self.array(file, dtype, header.shape, header.start, header.order)
        if name.endswith(".safetensors"):
            return self.tensors(file)
        raise ValueError(f"known are {KNOWN}; pass dtype and shape to read it as one plain array")

    def array(
        self, file: IO[bytes], dtype: np.dtype, shape: tuple[int, ...], start: int = 0, order: Literal["C", "F"] = "C"
    ) -> Any:
        """The one array of a file, whose numbers begin at byte `start`."""
        size = os.fstat(file.fileno()).st_size
        check_array(dtype, shape, start, size)
        return _view(self._mapped(file, size), dtype, shape, start, order) if size else np.empty(shape, dtype)

    def tensors(self, file: IO[bytes], most: int = MOST_HEADER) -> dict[str, Any]:
        """The arrays of a `.safetensors` file."""
        size = os.fstat(file.fileno()).st_size
        tensors = read_safetensors_header(file, size, most)
        brain = any(tensor.dtype == "bfloat16" for tensor in tensors)
        if brain:
            bfloat16_array(np.empty(0, np.uint16))  # a library that is missing is told now
        memory = self._mapped(file, size, tensors=brain)
        return {tensor.name: _entry(memory, tensor) for tensor in tensors}

    def _mapped(self, file: IO[bytes], size: int, *, tensors: bool = False) -> Array:
        """Return the file's bytes; raise ServerResourceError if the server can neither map nor copy them."""
        if self.exposed or n_mapped() < MAX_MAPPED:
            try:
                mapped = MappedFile(file.fileno(), size, "private" if self.exposed and tensors else "read")
                return mapped.memory(writable=tensors)  # torch wants to hear that it may write
            except OSError:
                if self.exposed:
                    raise
        return copied(file, size)


def _entry(memory: Array, tensor: Tensor) -> Any:
    if tensor.dtype != "bfloat16":
        return _view(memory, tensor.stored, tensor.shape, tensor.start)
    if tensor.start % 2:
        raise ValueError(f"{tensor.name!r} is not aligned; save it again")
    return bfloat16_array(np.ndarray(tensor.shape, tensor.stored, memory, tensor.start))


def _view(memory: Array, dtype: np.dtype, shape: tuple[int, ...], start: int, order: Literal["C", "F"] = "C") -> Array:
    array: Array = np.ndarray(shape, dtype, memory, start, order=order)
    array.flags.writeable = False
    return array


def _as_leaf(memory: Array, place: Tensor, like: Any) -> Any:
    """Return this part of the mapped file as an array of the same library as `like`."""
    # A .npy file keeps the byte order of `like`; a .safetensors file is little-endian.
    dtype = place.stored if place.name or is_tensor(like) else like.dtype
    array: Array = np.ndarray(place.shape, dtype, memory, place.start)
    return like_leaf(array, like) if is_tensor(like) or place.dtype == "bfloat16" else array


def _is_name(key: tuple[Any, ...]) -> bool:
    return len(key) == 1 and isinstance(key[0], str) and key[0] not in ("", "__metadata__")


def bfloat16_array(bits: Array) -> Any:
    """Return these bits as a bfloat16 array of torch, or of ml_dtypes."""
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        return torch.from_numpy(bits).view(torch.bfloat16)
    with contextlib.suppress(ModuleNotFoundError):
        import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

        return bits.view(ml_dtypes.bfloat16)
    raise missing_extra("bfloat16 needs torch (or ml_dtypes)", "torch")
