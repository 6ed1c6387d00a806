"""Fetch updates from stores: each object once, into a temporary folder of this process, where it is mapped.

The answers of a store are not trusted: an update may take so many bytes, in so much time. The addresses are the
caller's: they are opened with the rights of this process. The folder is removed as soon as its files are mapped; their
disk space is free when the arrays are gone.
"""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bartizan._util.regular_files import open_regular
from bartizan._util.text import quoted
from bartizan.errors import raise_if_exhausted, server_error
from bartizan.updates.folders import INDEX, KNOWN, Folder, open_folder, open_index
from bartizan.updates.stores import FetchLimits, StoredPlace, filesystem, is_http, reason_of_failure, repeated, shown

if TYPE_CHECKING:
    from bartizan.updates.files import LocalFiles

OBJECTS_AT_A_TIME = 4  # of one update
PART_BYTES = 2**21  # of an object, in memory at a time
VERSIONS = ("size", "ETag", "etag", "generation", "LastModified", "last_modified", "mtime", "created")
"""Fields of `info` that change when an object is replaced, as stores call them."""


def open_stored(
    place: str | StoredPlace,
    files: LocalFiles,
    limits: FetchLimits,
    *,
    dtype: Any = None,
    shape: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the update at an address, fetched and mapped; ValueError if it is not sound or breaks a limit."""
    if isinstance(place, StoredPlace):
        limits.timeout, options = place.timeout or limits.timeout, place.fs.storage_options
    try:
        folder = tempfile.TemporaryDirectory(prefix="bartizan-", ignore_cleanup_errors=True)
    except OSError as full:
        raise server_error(full, f"No temporary folder can be made for {shown(str(place))}") from full
    with folder as local, closing(limits):
        try:
            if isinstance(place, StoredPlace) and place.problem:
                raise ValueError(place.problem)
            fs, path = (place.fs, place.path) if isinstance(place, StoredPlace) else filesystem(place, options)
            path, _, query = path.partition("?") if is_http(fs) else (path, "", "")
            base, _, name = path.rstrip("/").rpartition("/")
            stored = StoredFolder(Path(local), files, fs, base, query, str(place), limits)
            if dtype is None and (path.endswith("/") or not name.endswith((".npy", ".safetensors", INDEX))):
                if is_http(fs):
                    raise ValueError(f"over HTTP an address must name a file; known are {KNOWN}")
                return open_folder(replace(stored, stored=path.rstrip("/")))
            if dtype is None and name.endswith(INDEX):
                return open_index(stored, name)
            with open_regular(stored.local([name])[0]) as file:
                return files.one(file, name, dtype, shape)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # a store's library may raise anything
            raise_if_exhausted(error, f"{shown(str(place))} can't be fetched into {tempfile.gettempdir()} (TMPDIR)")
            reason = reason_of_failure(error, limits.timeout, str(place), options)
            raise ValueError(f"{shown(str(place))} can't be opened as an update: {reason}.") from None
        finally:
            with suppress(OSError):
                Path(local).rmdir()  # if it is empty: without the descriptors that its removal needs


@dataclass(frozen=True)
class StoredFolder(Folder):
    """A folder in a store, whose objects are parts of one update, and are fetched into the folder at `path`."""

    fs: Any
    stored: str
    """The path in the store."""
    query: str
    """The query of an address over HTTP, sent with each request."""
    address: str
    """The address that the caller wrote, secrets included."""
    limits: FetchLimits

    def names(self) -> list[str]:
        self.fs.invalidate_cache(self.stored)
        (found,) = self.limits.run(partial(self.fs.ls, self.stored, detail=True))
        return sorted(posixpath.basename(str(one["name"])) for one in found if one.get("type") == "file")

    def local(self, names: Sequence[str]) -> list[Path]:
        """Fetch objects, several at a time; return where they are."""
        paths = [self.path / str(number) for number in range(len(names))]
        calls = [partial(self._fetch, name, path) for name, path in zip(names, paths, strict=True)]
        for first in range(0, len(calls), OBJECTS_AT_A_TIME):
            self.limits.run(*calls[first : first + OBJECTS_AT_A_TIME])
        return paths

    def _fetch(self, name: str, local: Path) -> None:
        try:
            repeated(partial(self._get, name, local))
        except FileNotFoundError:
            raise ValueError(f"there is no such object as {quoted(name)}") from None
        except Exception as error:  # a store's library may raise anything
            raise_if_exhausted(error, f"{quoted(name)} can't be fetched into {tempfile.gettempdir()} (TMPDIR)")
            options = getattr(self.fs, "storage_options", None)
            reason = reason_of_failure(error, self.limits.timeout, self.address, options)
            raise ValueError(f"{quoted(name)}: {reason}") from None

    def _get(self, name: str, local: Path) -> None:
        """Download one object; raise ValueError if it is too large, or was replaced meanwhile."""
        from fsspec.callbacks import Callback

        path = f"{self.stored}/{name}" if self.stored else name
        watch = Callback(hooks={"": partial(self.limits.see, name)})
        if is_http(self.fs):
            from aiohttp import ClientTimeout
            from fsspec.asyn import sync

            url = f"{path}?{self.query}" if self.query else path
            get = partial(self.fs._get_file, timeout=ClientTimeout(sock_read=self.limits.timeout))  # no limit in all
            sync(self.fs.loop, get, url, str(local), callback=watch)
            return
        before = self._state(path)
        watch.set_size(before[0])
        with open(local, "wb") as file:
            for start in range(0, before[0], PART_BYTES):
                stop = min(start + PART_BYTES, before[0])
                part = self.fs.cat_file(path, start=start, end=stop)
                if len(part) != stop - start:
                    raise ValueError(f"{len(part):,} bytes came where {stop - start:,} were asked for")
                file.write(part)
                watch.relative_update(len(part))
        if self._state(path) != before:
            raise ValueError("it was changed while it was being fetched")

    def _state(self, path: str) -> tuple[Any, ...]:
        self.fs.invalidate_cache(path)
        about = self.fs.info(path)
        if about.get("type") != "file" or not isinstance(about.get("size"), int) or about["size"] < 0:
            raise ValueError("it is no file, or the store does not say how many bytes it has")
        return tuple(about.get(key) for key in VERSIONS)
