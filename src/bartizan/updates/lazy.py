"""Arrays in a store, read by byte ranges when they are used: several requests at a time, each with a time limit.

So are local files, where no more of them can be mapped.

A request that fails ends no pass: its update is marked as lost, with the reason, and its numbers are NaN from there on,
so that its client is quarantined as one that sent NaN.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bartizan._util.redact import mentions_secret, without_addresses_secrets
from bartizan._util.regular_files import open_regular
from bartizan._util.text import short
from bartizan._util.types import Array
from bartizan.errors import raise_if_exhausted
from bartizan.updates.mapping import file_id

T = TypeVar("T")

IN_FLIGHT = 16  # requests of one block of columns at a time
LONGEST_REQUEST = 2**22  # bytes
GAP = 2**12  # bytes between two ranges that are read as one
ATTEMPTS = 3
TIMEOUT = 60.0  # seconds that one request may take, with its repetitions
SLOWEST = 2**16  # bytes a second that an update must come with, after the first `timeout` seconds
BFLOAT16_NAN = 0x7FC0
NOT_IN_ORDER = "its array is in Fortran order, which can't be read by ranges; save it in C order"


class StoredObject(ABC):
    """One object of a store; `shown` is its address without secrets."""

    def __init__(self, fs: Any, path: str, shown: str, size: int = 0, version: tuple[Any, ...] = ()) -> None:
        self.fs, self.path, self.shown, self.size, self.version = fs, path, shown, size, version

    @abstractmethod
    async def read_into(self, start: int, out: memoryview) -> None:
        """Read `len(out)` bytes from `start` on; ValueError if the object has changed since it was opened."""

    @abstractmethod
    async def check(self) -> None:
        """Raise ValueError if the object has changed since it was opened."""


class LocalFile(StoredObject):
    """A file on this machine that is not kept open: each range is read from the file that has its name then."""

    def __init__(self, path: Path, about: os.stat_result) -> None:
        super().__init__(None, os.fspath(path), short(path), about.st_size, _version(about))
        self.file = file_id(about)

    def read_now(self, start: int, out: memoryview) -> None:
        """Read `len(out)` bytes from `start` on; ValueError if the file has changed since it was opened."""
        with open_regular(self.path, buffering=0) as file:
            if _version(os.fstat(file.fileno())) != self.version or os.preadv(file.fileno(), [out], start) != len(out):
                raise ValueError("it was changed while it was being read")

    async def read_into(self, start: int, out: memoryview) -> None:
        self.read_now(start, out)

    async def check(self) -> None:
        """Each range was checked."""


def _version(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


class RemoteUpdate:
    """The objects of one client's update, and why it can't be read any more, if so."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self.objects: list[StoredObject] = []
        self.lost: str | None = None
        self.unchecked = False  # whether it was read since its objects were last checked
        self._seconds, self._bytes = 0.0, 0
        self._created = time.monotonic()

    def time_to_open(self) -> float:
        """Seconds that a request may take while the update is opened: all of them together, five times `timeout`."""
        return max(0.0, min(self.timeout, self._created + 5 * self.timeout - time.monotonic()))

    async def read(self, one: StoredObject, start: int, out: memoryview) -> None:
        """Read a range of one of the objects, or record why that is not possible."""
        if self.lost is None:
            self.unchecked = True
            await self._guarded(one, lambda: one.read_into(start, out), len(out))

    def read_now(self, one: LocalFile, start: int, out: memoryview) -> None:
        """Read a range of a local file, or record why that is not possible."""
        if self.lost is None:
            try:
                one.read_now(start, out)
            except (OSError, ValueError) as unread:
                raise_if_exhausted(unread, f"{one.shown} can't be read")
                self.lose(f"{one.shown}: {short(unread)}")

    async def check(self) -> None:
        for one in self.objects:
            if self.lost is None:
                await self._guarded(one, one.check, 0)
        self.unchecked = False

    async def _guarded(self, one: StoredObject, request: Callable[[], Awaitable[None]], size: int) -> None:
        begun = time.monotonic()
        try:
            await limited(request, self.timeout)
        except Exception as error:  # a store's library may raise anything
            raise_if_exhausted(error, f"{one.shown} can't be read")
            options = getattr(one.fs, "storage_options", None)
            self.lose(f"{one.shown}: {reason_of_failure(error, self.timeout, one.path, options)}")
        self._seconds += time.monotonic() - begun
        self._bytes += size
        if self._seconds > self.timeout + self._bytes / SLOWEST:
            self.lose(f"{one.shown} came too slowly: {self._bytes:,} bytes in {self._seconds:.0f} s of requests")

    def lose(self, reason: str) -> None:
        self.lost = self.lost or reason


async def limited(request: Callable[[], Awaitable[T]], timeout: float) -> T:
    """Await request(), again after an error that may pass, all in this many seconds."""
    import asyncio

    async def tried() -> T:
        for attempt in range(ATTEMPTS - 1):
            try:
                return await request()
            except (ValueError, FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError):
                raise
            except Exception:
                await asyncio.sleep(0.1 * 4**attempt)
        return await request()

    return await asyncio.wait_for(tried(), timeout)


def reason_of_failure(
    error: BaseException, timeout: float, address: str = "", options: Mapping[str, Any] | None = None
) -> str:
    """The message of an error of a store, short and without secrets of the address and its options."""
    if isinstance(error, FileNotFoundError):
        return "there is no such object"
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout:g} s"
    said = without_addresses_secrets(short(error))
    if mentions_secret(str(error), address, options):
        return f"{type(error).__name__}, whose message holds a part of a secret of the address and is not shown"
    return said if isinstance(error, ValueError) else f"{type(error).__name__}{': ' if said else ''}{said}"


class LazyArray:
    """An array in a store; `np.asarray` and `load` read it.

    `dtype` is how its numbers are stored, bfloat16 as uint16; `dtype_name` says what they are.
    """

    def __init__(
        self, update: RemoteUpdate, stored: StoredObject, dtype: np.dtype, shape: tuple[int, ...], start: int, name: str
    ) -> None:
        self.update, self.stored = update, stored
        self.dtype, self.shape, self.start, self.dtype_name = dtype, shape, start, name
        self.ndim, self.size = len(shape), int(np.prod(shape, dtype=object))
        self.nbytes = self.size * dtype.itemsize

    def numbers(self) -> Array:
        """All numbers, flat, as they are stored; OSError if they can't be read."""
        step = IN_FLIGHT * LONGEST_REQUEST // self.dtype.itemsize
        flat = np.empty(self.size, self.dtype)
        for low in range(0, self.size, step):
            (flat[low : low + step],) = Fetch([(self, low, min(low + step, self.size))]).arrays()
            if self.update.lost is not None:
                raise OSError(self.update.lost)
        return flat

    def load(self) -> Any:
        """The array in memory."""
        return self.like(self.numbers())

    def like(self, flat: Array) -> Any:
        """Numbers in this array's storage as an array of its dtype and shape."""
        array = flat.reshape(self.shape)
        return bfloat16_array(array) if self.dtype_name == "bfloat16" else array.astype(self.dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.load(), dtype)

    def __repr__(self) -> str:
        return f"<{self.dtype_name} of shape {self.shape} in {self.stored.shown}>"


Cut = tuple[LazyArray, int, int]  # an array, and the first number and the end of a part of it


class Fetch:
    """Parts of arrays that are being read; those of lost updates become NaN, or 0 where they are integers."""

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self.cuts = cuts
        self.places: list[tuple[Array, int]] = [(np.empty(0, np.uint8), 0)] * len(cuts)  # buffer, first byte
        requests: list[Callable[[], Awaitable[None]]] = []
        spans = sorted(
            (id(array.stored), array.start + low * array.dtype.itemsize, (high - low) * array.dtype.itemsize, i)
            for i, (array, low, high) in enumerate(cuts)
        )
        at = 0
        while at < len(spans):
            stored, begin, size, i = spans[at]
            end, end_at = begin + size, at + 1
            while end_at < len(spans) and spans[end_at][0] == stored and spans[end_at][1] <= end + GAP:
                end = max(end, spans[end_at][1] + spans[end_at][2])
                end_at += 1
            buffer = np.empty(end - begin, np.uint8)
            for _, start, _, j in spans[at:end_at]:
                self.places[j] = buffer, start - begin
            for low in range(0, len(buffer), LONGEST_REQUEST):
                array, part = cuts[i][0], buffer.data[low : low + LONGEST_REQUEST]
                if isinstance(array.stored, LocalFile):
                    array.update.read_now(array.stored, begin + low, part)
                else:
                    requests.append(partial(array.update.read, array.stored, begin + low, part))
            at = end_at
        self._future = submit(several(requests)) if requests else None

    def arrays(self) -> list[Array]:
        """One flat array for each cut, once all have come."""
        if self._future is not None:
            _result_of(self._future)
        return [self._array(*cut, *place) for cut, place in zip(self.cuts, self.places, strict=True)]

    def _array(self, array: LazyArray, low: int, high: int, buffer: Array, first: int) -> Array:
        if array.update.lost is not None:
            nothing = BFLOAT16_NAN if array.dtype_name == "bfloat16" else np.nan if array.dtype.kind == "f" else 0
            return np.full(high - low, nothing, array.dtype)
        part = buffer[first : first + (high - low) * array.dtype.itemsize].view(array.dtype)
        return part if part.flags.aligned else part.copy()


def check_updates(updates: Iterable[RemoteUpdate]) -> None:
    """Mark updates as lost whose objects have changed since they were opened."""
    read = {id(one): one.check for one in updates if one.unchecked and one.lost is None}
    if read:
        run(several(list(read.values())))


async def several(requests: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Await all requests, `IN_FLIGHT` at a time."""
    import asyncio

    slots = asyncio.Semaphore(IN_FLIGHT)

    async def one(request: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await request()

    return await asyncio.gather(*map(one, requests))


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start work on the thread that fsspec reads with."""
    import asyncio

    from fsspec.asyn import get_loop

    return asyncio.run_coroutine_threadsafe(work, get_loop())


def run(work: Coroutine[Any, Any, T]) -> T:
    return _result_of(submit(work))


def _result_of(future: Future[T]) -> T:
    try:
        return future.result()
    except BaseException:  # Ctrl-C
        future.cancel()
        raise


def bfloat16_array(bits: Array) -> Any:
    """These bits as a bfloat16 array of torch, or of ml_dtypes."""
    with suppress(ModuleNotFoundError):
        import torch

        return torch.from_numpy(bits).view(torch.bfloat16)
    with suppress(ModuleNotFoundError):
        import ml_dtypes  # type: ignore[import-not-found, unused-ignore]

        return bits.view(ml_dtypes.bfloat16)
    raise ModuleNotFoundError("bfloat16 needs torch: pip install 'bartizan[torch]' (or ml_dtypes).")
