"""Fetch updates from stores: each object once, into an unnamed file of this process, which is then mapped.

The answers of a store are not trusted: an update may take so many bytes, in so much time. The addresses are the
caller's: they are opened with the rights of this process. The disk space is free again when the arrays are gone,
however this process ends.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from bartizan._util.text import quoted
from bartizan.errors import raise_if_exhausted
from bartizan.updates.folders import INDEX, KNOWN, longest_header, naming, open_folder, open_index
from bartizan.updates.places import StoredPlace
from bartizan.updates.stores import (
    TIMEOUT,
    Requests,
    call,
    filesystem,
    is_http,
    limited,
    reason_of_failure,
    repeated,
    shown,
    together,
)
from bartizan.updates.unnamed_files import unnamed_file, write_all

if TYPE_CHECKING:
    from bartizan.updates.files import LocalFiles

OBJECTS_AT_A_TIME = 4  # of one update
PART_BYTES = 2**21  # that one request asks for where a store answers ranges
MAX_UPDATE_BYTES = 2**34
MIN_BYTES_PER_SECOND = 2**16  # that an update must come with, after the first two `timeout`
VERSIONS = ("ETag", "etag", "generation", "LastModified", "last_modified", "mtime", "created")
"""What stores call the things that change when an object is replaced."""


class Limits:
    """The limits on one update: bytes in all, seconds for each answer, and seconds in all."""

    def __init__(self, timeout: float = TIMEOUT, max_bytes: int | None = MAX_UPDATE_BYTES) -> None:
        self.timeout, self.max_bytes = timeout, max_bytes
        self.came = 0
        self._begun = time.monotonic()

    def check(self, size: int) -> None:
        """Raise ValueError if so many bytes more are too many."""
        if self.max_bytes is not None and self.came + size > self.max_bytes:
            raise ValueError(f"it is too large: an update may have {self.max_bytes:,} bytes")

    def add(self, size: int) -> None:
        """Count bytes that have come."""
        self.check(size)
        self.came += size

    def seconds(self) -> float:
        """Return the seconds that the next answer may take; ValueError if there are none left."""
        now = time.monotonic()
        left = self._begun + 2 * self.timeout + self.came / MIN_BYTES_PER_SECOND - now
        if left <= 0:
            raise ValueError(f"it came too slowly: {self.came:,} bytes in {now - self._begun:.0f} s")
        return min(self.timeout, left)


def open_stored(
    place: str | StoredPlace,
    files: LocalFiles,
    limits: Limits,
    requests: Requests,
    *,
    dtype: Any = None,
    shape: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the update at an address, fetched and mapped; ValueError if it is not sound or breaks a limit."""
    if isinstance(place, StoredPlace):
        limits.timeout, options = place.timeout or limits.timeout, place.fs.storage_options
    try:
        if isinstance(place, StoredPlace) and place.problem:
            raise ValueError(place.problem)
        fs, path = (place.fs, place.path) if isinstance(place, StoredPlace) else filesystem(place, options)
        path, _, query = path.partition("?") if is_http(fs) else (path, "", "")
        base, _, name = path.rstrip("/").rpartition("/")
        folder = StoredFolder(fs, base, query, str(place), files, limits, requests)
        if dtype is None and (path.endswith("/") or not name.endswith((".npy", ".safetensors", INDEX))):
            if is_http(fs):
                raise ValueError(f"over HTTP an address must name a file; known are {KNOWN}")
            return open_folder(replace(folder, path=path.rstrip("/")))
        if dtype is None and name.endswith(INDEX):
            return open_index(folder, name)
        with folder.fetched([name]) as (file,):
            return files.one(file, name, dtype, shape)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a store's library may raise anything
        raise_if_exhausted(error, f"{shown(str(place))} can't be opened")
        reason = reason_of_failure(error, limits.timeout, str(place), options)
        raise ValueError(f"{shown(str(place))} can't be opened as an update: {reason}.") from None


@dataclass(frozen=True)
class StoredFolder:
    """A folder in a store, whose objects are parts of one update."""

    fs: Any
    path: str
    query: str
    """Of an address over HTTP, sent with each request."""
    address: str
    """As the caller wrote it, secrets included."""
    files: LocalFiles
    limits: Limits
    requests: Requests

    def names(self) -> list[str]:
        found = self.requests.run(limited(lambda: call(self.fs, "ls", self.path, detail=True), self.limits.seconds()))
        return sorted(posixpath.basename(str(one["name"])) for one in found if one.get("type") == "file")

    def read(self, name: str, most: int) -> bytes:
        with self.fetched([name], most) as (file,):
            return file.read()

    def tensors(self, names: Collection[str]) -> list[dict[str, Any]]:
        found, names = [], list(names)
        for first in range(0, len(names), OBJECTS_AT_A_TIME):
            some = names[first : first + OBJECTS_AT_A_TIME]
            with self.fetched(some) as fetched:
                for name, file in zip(some, fetched, strict=True):
                    with naming(name):
                        found.append(self.files.tensors(file, longest_header(len(names))))
        return found

    @contextmanager
    def fetched(self, names: Collection[str], most: int | None = None) -> Iterator[list[IO[bytes]]]:
        """Fetch objects into files without names, which are closed at the end of the block; map them before."""
        with ExitStack() as stack:
            files = [stack.enter_context(unnamed_file()) for _ in names]
            self.requests.run(together([self._fetch(*one, most) for one in zip(names, files, strict=True)]))
            for file in files:
                file.seek(0)
            yield files

    async def _fetch(self, name: str, file: IO[bytes], most: int | None) -> None:
        try:
            await repeated(lambda: self._attempt(name, file, most))
        except FileNotFoundError:
            raise ValueError(f"there is no such object as {quoted(name)}") from None
        except Exception as error:  # a store's library may raise anything
            raise_if_exhausted(error, f"{quoted(name)} can't be fetched")
            options = getattr(self.fs, "storage_options", None)
            reason = reason_of_failure(error, self.limits.timeout, self.address, options)
            raise ValueError(f"{quoted(name)}: {reason}") from None

    async def _attempt(self, name: str, file: IO[bytes], most: int | None) -> None:
        import asyncio

        path = f"{self.path}/{name}" if self.path else name
        parts = self._http_parts(path, most) if is_http(self.fs) else self._parts(path, most)
        file.seek(0)
        file.truncate()
        try:
            while True:
                async with asyncio.timeout(self.limits.seconds()):
                    part = await anext(parts, None)
                if part is None:
                    return
                self.limits.add(len(part))
                _refuse_longer(file.tell() + len(part), most)
                write_all(file, part)
        except TimeoutError:
            self.limits.seconds()  # says which limit it was
            raise
        finally:
            await parts.aclose()

    async def _parts(self, path: str, most: int | None) -> AsyncGenerator[bytes]:
        """The bytes of an object of fsspec, whose version in the store's listing must be the same before and after."""
        before = await self._state(path)
        size = self._checked(before[0], most)
        for start in range(0, size, PART_BYTES):
            stop = min(start + PART_BYTES, size)
            part = await call(self.fs, "cat_file", path, start=start, end=stop)
            if len(part) != stop - start:
                raise ValueError(f"{len(part):,} bytes came where {stop - start:,} were asked for")
            yield part
        if await self._state(path) != before:
            raise ValueError("it was changed while it was being fetched")

    async def _state(self, path: str) -> tuple[int, tuple[str, ...]]:
        self.fs.invalidate_cache(path)
        about = await call(self.fs, "info", path)
        if about.get("type") != "file" or not isinstance(about.get("size"), int) or about["size"] < 0:
            raise ValueError("it is no file, or the store does not say how many bytes it has")
        return about["size"], tuple(str(about[key]) for key in VERSIONS if about.get(key) is not None)

    async def _http_parts(self, url: str, most: int | None) -> AsyncGenerator[bytes]:
        """The bytes at a URL, in one answer."""
        import aiohttp

        session, options = await self.fs.set_session(), dict(self.fs.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        options = {"timeout": aiohttp.ClientTimeout(total=None), **options}
        url = self.fs.encode_url(f"{url}?{self.query}" if self.query else url)
        async with session.get(url, headers=headers, **options) as answer:
            if answer.status in (404, 410):
                raise FileNotFoundError(url)
            if answer.status >= 500 or answer.status == 429:
                raise OSError(f"HTTP status {answer.status}")
            if answer.status != 200:
                raise ValueError(f"HTTP status {answer.status} came where 200 was wanted")
            self._checked(answer.content_length or 0, most)
            async for part in answer.content.iter_any():
                yield part

    def _checked(self, size: int, most: int | None) -> int:
        """Return the size of an object as the store states it; ValueError if it is too large."""
        _refuse_longer(size, most)
        self.limits.check(size)
        return size


def _refuse_longer(size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise ValueError(f"it has {size:,} bytes; at most {most:,} are read")
