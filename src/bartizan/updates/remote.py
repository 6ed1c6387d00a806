"""Updates in stores that fsspec reaches: open them, read their objects by ranges, and upload results.

Answers of a store are not trusted: sizes, ranges and versions are checked, and no more bytes are read than were asked
for. The addresses are the caller's: they are opened with the rights of this process.
"""

from __future__ import annotations

import glob
import posixpath
import re
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util.atomic import hidden_name, is_hidden
from bartizan._util.redact import without_secrets
from bartizan._util.text import quoted, short
from bartizan.errors import raise_if_exhausted
from bartizan.updates.files import KNOWN, as_shape, check_array, npy_dtype
from bartizan.updates.folders import INDEX, longest_header, open_folder, open_index
from bartizan.updates.headers import LONGEST_HEADER, read_npy_header, read_safetensors_header
from bartizan.updates.lazy import (
    NOT_IN_ORDER,
    LazyArray,
    RemoteUpdate,
    StoredObject,
    limited,
    reason_of_failure,
    run,
    several,
)
from bartizan.updates.places import StoredPlace

HEAD = 2**14  # bytes that are read of an object at once, for its header
ABANDONED_AFTER = timedelta(days=1)  # stores have no locks, and between an upload and its move are minutes at most
VERSIONS = ("ETag", "etag", "generation", "LastModified", "last_modified", "mtime", "created")
"""What stores call the things that change when an object is replaced."""


def open_remote(
    place: str | StoredPlace,
    *,
    dtype: Any = None,
    shape: Any = None,
    options: Mapping[str, Any] | None = None,
    timeout: float,
) -> Any:
    """The update at an address, in arrays that are read when they are used; ValueError if it is not sound."""
    if isinstance(place, StoredPlace):
        timeout, options = place.timeout or timeout, place.fs.storage_options
    try:
        if (dtype is None) != (shape is None):
            raise ValueError("dtype and shape belong together: pass both, or neither")
        if isinstance(place, StoredPlace) and place.problem:
            raise ValueError(place.problem)
        fs, path = (place.fs, place.path) if isinstance(place, StoredPlace) else filesystem(place, options)
        path, _, query = path.partition("?") if _is_http(fs) else (path, "", "")
        base, _, name = path.rstrip("/").rpartition("/")
        folder = RemoteFolder(fs, base, RemoteUpdate(timeout), query)
        if dtype is not None:
            return folder.array(name, np.dtype(dtype), as_shape(shape))
        if path.endswith("/") or not name.endswith((".npy", ".safetensors", INDEX)):
            if _is_http(fs):
                raise ValueError(f"over HTTP an address must name a file; known are {KNOWN}")
            return open_folder(RemoteFolder(fs, path.rstrip("/"), folder.update))
        if name.endswith(INDEX):
            return open_index(folder, name)
        return folder.npy(name) if name.endswith(".npy") else folder.tensors([name])[0]
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a store's library may raise anything
        raise_if_exhausted(error, f"{shown(str(place))} can't be opened")
        reason = reason_of_failure(error, timeout, str(place), options)
        raise ValueError(f"{shown(str(place))} can't be opened as an update: {reason}.") from None


def shown(address: str) -> str:
    """An address for messages."""
    return short(without_secrets(address), 300)


def filesystem(address: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec filesystem of an address, and the path there."""
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"Addresses such as {short(shown(address), 60)} need fsspec: pip install 'bartizan[remote]'."
        ) from None
    fs, path = url_to_fs(address, **(options or {}))
    return fs, path if not address.endswith("/") or path.endswith("/") else path + "/"


@contextmanager
def explained(address: str, done: str, options: Mapping[str, Any] | None = None, timeout: float = 0) -> Iterator[None]:
    """Raise whatever a store's library raises as an OSError, or a missing package, without the secrets of the address.

    `done` is what the address can't be, such as "written".
    """
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        reason = f"{shown(address)} can't be {done}: {reason_of_failure(error, timeout, address, options)}"
        kind = ModuleNotFoundError if isinstance(error, ImportError) else OSError
        raise kind(f"{reason.rstrip('.')}.") from None


def matching(pattern: str, timeout: float) -> tuple[str, list[StoredPlace]]:
    """The path of a glob in its store, and what it matches, sorted; an error of the store is an OSError."""
    with explained(pattern, "listed", timeout=timeout):
        fs, path = filesystem(pattern)
        found = run(limited(lambda: call(fs, "glob", path), timeout))
        if not found:  # fsspec leaves out folders that can't be listed: ask for the one without wildcards
            with suppress(FileNotFoundError):
                run(limited(lambda: call(fs, "ls", re.split(r"[*?\[]", path)[0].rpartition("/")[0]), timeout))
        return path, [StoredPlace(fs, one, _misread(fs, one, timeout)) for one in sorted(found)]


def _misread(fs: Any, path: str, timeout: float) -> str:
    """Why the store would take this path for another one: some read ``?versionId=...`` at its end."""
    if "?" not in path:
        return ""
    with suppress(FileNotFoundError):
        if run(limited(lambda: call(fs, "info", path), timeout))["name"] == path:
            return ""
    return "its name would be read as that of another object; rename it"


class RemoteFolder:
    """A folder in a store, and the update that its files belong to."""

    def __init__(self, fs: Any, path: str, update: RemoteUpdate, query: str = "") -> None:
        self.fs, self.path, self.update, self.query = fs, path, update, query

    def names(self) -> list[str]:
        found = run(limited(lambda: call(self.fs, "ls", self.path, detail=True), self.update.time_to_open()))
        return sorted(posixpath.basename(str(one["name"])) for one in found if one.get("type") == "file")

    def read(self, name: str, most: int) -> bytes:
        one = run(limited(lambda: self._open(name), self.update.time_to_open()))
        if one.size > most:
            raise ValueError(f"{one.shown} has {one.size:,} bytes; at most {most:,} are read")
        return OpenedFile(one, self.update).read(one.size)

    def tensors(self, names: Collection[str]) -> list[dict[str, Any]]:
        return [self._arrays(one, longest_header(len(names))) for one in self._objects(names)]

    def npy(self, name: str) -> LazyArray:
        (one,) = self._objects([name])
        header = read_npy_header(OpenedFile(one, self.update).read(min(one.size, LONGEST_HEADER + 12)))
        dtype = npy_dtype(header)
        if header.order == "F" and len(header.shape) > 1:
            raise ValueError(NOT_IN_ORDER)
        check_array(dtype, header.shape, header.start, one.size)
        return LazyArray(self.update, one, dtype, header.shape, header.start, dtype.name)

    def array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> LazyArray:
        """A plain file as one array."""
        (one,) = self._objects([name])
        check_array(dtype, shape, 0, one.size)
        return LazyArray(self.update, one, dtype, shape, 0, dtype.name)

    def _objects(self, names: Collection[str]) -> list[StoredObject]:
        """Open these objects, several at a time, as parts of the update."""

        async def opened(name: str) -> StoredObject:
            try:
                return await limited(lambda: self._open(name), self.update.time_to_open())
            except FileNotFoundError:
                raise ValueError(f"there is no such object as {quoted(name)}") from None

        objects = run(several([partial(opened, name) for name in names]))
        self.update.objects += objects
        self.update.unchecked = True
        return objects

    async def _open(self, name: str) -> StoredObject:
        path = f"{self.path}/{name}" if self.path else name
        if _is_http(self.fs):
            return await HttpObject.open(self.fs, path + (f"?{self.query}" if self.query else ""))
        return await FsspecObject.open(self.fs, path)

    def _arrays(self, one: StoredObject, most: int) -> dict[str, LazyArray]:
        try:
            tensors = read_safetensors_header(OpenedFile(one, self.update), one.size, most)
        except ValueError as unsound:
            raise ValueError(f"{posixpath.basename(one.shown)}: {unsound}") from None
        return {t.name: LazyArray(self.update, one, t.stored, t.shape, t.start, t.dtype) for t in tensors}


class OpenedFile:
    """An object, read from its beginning on."""

    def __init__(self, one: StoredObject, update: RemoteUpdate) -> None:
        self.one, self.update, self.at = one, update, 0
        self.head = b""

    def read(self, size: int) -> bytes:
        wanted = min(self.at + size, self.one.size)
        if wanted > len(self.head):
            more = bytearray(min(max(wanted, HEAD), self.one.size) - len(self.head))
            run(limited(lambda: self.one.read_into(len(self.head), memoryview(more)), self.update.time_to_open()))
            self.head += more
        part, self.at = self.head[self.at : wanted], wanted
        return part


class FsspecObject(StoredObject):
    """An object that fsspec reads; its version in the store's listing is compared before and after."""

    @classmethod
    async def open(cls, fs: Any, path: str) -> FsspecObject:
        return cls(fs, path, shown(fs.unstrip_protocol(path)), *await cls._state(fs, path))

    @staticmethod
    async def _state(fs: Any, path: str) -> tuple[int, tuple[Any, ...]]:
        fs.invalidate_cache(path)
        about = await call(fs, "info", path)
        if about.get("type") != "file" or not isinstance(about.get("size"), int) or about["size"] < 0:
            raise ValueError("it is no file, or the store does not say how many bytes it has")
        return about["size"], tuple(str(about[key]) for key in VERSIONS if about.get(key) is not None)

    async def read_into(self, start: int, out: memoryview) -> None:
        data = await call(self.fs, "cat_file", self.path, start=start, end=start + len(out))
        if len(data) != len(out):
            raise ValueError(f"{len(data):,} bytes came where {len(out):,} from byte {start:,} on were asked for")
        out[:] = data

    async def check(self) -> None:
        if await self._state(self.fs, self.path) != (self.size, self.version):
            raise ValueError("it was changed while it was being read")


class HttpObject(StoredObject):
    """An object at a URL, whose server answers ranges; each answer must be of the same version."""

    @classmethod
    async def open(cls, fs: Any, url: str) -> HttpObject:
        one = cls(fs, url, shown(url))
        one.size, one.version = await one._ranged(0, memoryview(bytearray(1)))
        return one

    async def read_into(self, start: int, out: memoryview) -> None:
        if len(out) and await self._ranged(start, out) != (self.size, self.version):
            raise ValueError("it was changed while it was being read")

    async def check(self) -> None:
        """Each answer was checked."""

    async def _ranged(self, start: int, out: memoryview) -> tuple[int, tuple[Any, ...]]:
        """Read into `out`; returns size and version of the object."""
        session, options = await self.fs.set_session(), dict(self.fs.kwargs)
        last = start + len(out) - 1
        headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{last}", "Accept-Encoding": "identity"}
        async with session.get(self.fs.encode_url(self.path), headers=headers, **options) as answer:
            if answer.status in (404, 410):
                raise FileNotFoundError(self.shown)
            if answer.status >= 500 or answer.status == 429:
                raise OSError(f"HTTP status {answer.status}")
            if answer.status != 206:
                raise ValueError(f"HTTP status {answer.status} came where 206, a range of the object, was wanted")
            told = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", answer.headers.get("Content-Range", ""))
            if not told or (int(told[1]), int(told[2])) != (start, last) or int(told[3]) <= last:
                raise ValueError(f"another range came than bytes {start:,} to {last:,}, which were asked for")
            at = 0
            async for chunk in answer.content.iter_any():
                if at + len(chunk) > len(out):
                    raise ValueError(f"more than the {len(out):,} bytes came that were asked for")
                out[at : at + len(chunk)] = chunk
                at += len(chunk)
            if at != len(out):
                raise ValueError(f"{at:,} bytes came where {len(out):,} from byte {start:,} on were asked for")
            return int(told[3]), tuple(answer.headers.get(name) for name in ("ETag", "Last-Modified"))


async def call(fs: Any, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of a filesystem: its coroutine where it has one, else in a thread."""
    if fs.async_impl:
        return await getattr(fs, f"_{method}")(*arguments, **options)
    import asyncio

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: Exception | None) -> None:
        if not answer.done():  # else it came too late
            answer.set_result(result) if error is None else answer.set_exception(error)

    def work() -> None:
        try:
            result, error = getattr(fs, method)(*arguments, **options), None
        except Exception as raised:
            result, error = None, raised
        loop.call_soon_threadsafe(tell, result, error)

    # A thread for each, not of a pool: calls that never return must delay neither others nor the end of the process.
    threading.Thread(target=work, daemon=True).start()
    return await answer


@contextmanager
def uploaded(address: str, options: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """A local path; the file that the block writes there appears at the address whole, or not at all."""
    with explained(address, "written", options):
        fs, path = filesystem(address, options)
    name = posixpath.basename(path)
    hidden = f"{posixpath.dirname(path)}/{hidden_name(name)}"
    with tempfile.TemporaryDirectory(prefix="bartizan-") as folder:
        local = Path(folder) / name
        yield local
        _remove_abandoned(fs, path)
        with explained(address, "written", options):
            try:
                fs.put_file(str(local), hidden)
                if (arrived := fs.info(hidden)["size"]) != local.stat().st_size:
                    raise OSError(f"{arrived:,} bytes of {local.stat().st_size:,} arrived")
                fs.mv(hidden, path)
            except Exception:
                with suppress(Exception):
                    fs.rm_file(hidden)
                raise


def _remove_abandoned(fs: Any, path: str) -> None:
    """Remove what killed uploads have left of an object, as far as the store says when that was written."""
    folder, name = posixpath.split(path)
    with suppress(Exception):  # it hinders nobody
        for one in fs.glob(f"{folder}/.{glob.escape(name)}.*.part"):
            if is_hidden(posixpath.basename(one), name):
                written = fs.modified(one)
                if datetime.now(written.tzinfo) - written > ABANDONED_AFTER:
                    fs.rm_file(one)


def _is_http(fs: Any) -> bool:
    return "http" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))
