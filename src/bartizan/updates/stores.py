"""Reach stores by fsspec: addresses, lists, requests with a time limit, and uploads. `fetch` downloads updates."""

from __future__ import annotations

import posixpath
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bartizan._util.atomic import hidden_name
from bartizan._util.extras import missing_extra
from bartizan._util.redact import mentions_secret, without_addresses_secrets, without_secrets
from bartizan._util.text import short
from bartizan.errors import ServerResourceError

T = TypeVar("T")

ATTEMPTS = 3
TIMEOUT = 60.0  # seconds without any bytes
MIN_BYTES_PER_SECOND = 2**16  # that an update must come with, after the first two `timeout`
MAX_UPDATE_BYTES = 2**34
POLL_SECONDS = 0.1
PERMANENT = (
    ValueError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotImplementedError,
    TimeoutError,
    CancelledError,
    ServerResourceError,
)
"""Errors after which a request is not repeated."""


@dataclass(frozen=True)
class StoredPlace:
    """A filesystem of fsspec and a path there, which was found by listing it, not by its address.

    Whoever chose the object's name chose the path: it is never parsed as an address, in which ``::`` and ``?`` mean
    something.
    """

    fs: Any
    path: str
    problem: str = ""
    """The reason why the store itself would take the path for another one; empty if it would not."""
    timeout: float | None = None
    """Seconds that a request may take, if others than those given with `open_update`."""

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(self.path))


def shown(address: str) -> str:
    """Return an address as messages show it."""
    return short(without_secrets(address), 300)


def filesystem(address: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec filesystem of an address, and the path there."""
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        raise missing_extra(f"Addresses such as {short(shown(address), 60)} need fsspec", "remote") from None
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
        (found,) = FetchLimits(timeout).run(lambda: repeated(partial(fs.glob, path)))
        if not found:  # fsspec leaves out folders that can't be listed: ask for the one without wildcards
            folder = re.split(r"[*?\[]", path)[0].rpartition("/")[0]
            with suppress(FileNotFoundError):
                FetchLimits(timeout).run(partial(fs.ls, folder))
        return path, [StoredPlace(fs, one, _misread(fs, one, timeout)) for one in sorted(found)]


def _misread(fs: Any, path: str, timeout: float) -> str:
    """Return why the store would take this path for another one: some read ``?versionId=...`` at its end."""
    if "?" not in path:
        return ""
    with suppress(FileNotFoundError):
        (about,) = FetchLimits(timeout).run(lambda: repeated(partial(fs.info, path)))
        if about["name"] == path:
            return ""
    return "its name would be read as that of another object; rename it"


class FetchLimits:
    """Limits on fetching one update from a store: bytes in all, seconds without any bytes, and seconds in all.

    Calls run in threads, which are left behind where a limit is reached: after `close` they end when the next bytes
    come. `stopped` ends the calls of several updates at once.
    """

    def __init__(
        self, timeout: float = TIMEOUT, max_bytes: int | None = None, stopped: threading.Event | None = None
    ) -> None:
        self.timeout, self.max_bytes = timeout, max_bytes
        self._stopped = stopped or threading.Event()
        self._ended = False
        self._came: dict[str, int] = {}
        self._begun = self._last = time.monotonic()

    def close(self) -> None:
        """Stop the calls that were left behind."""
        self._ended = True

    def run(self, *calls: Callable[[], T]) -> list[T]:
        """Run these calls concurrently and return their results; the first error is raised at once."""
        self._last = time.monotonic()
        futures = [_in_thread(call) for call in calls]
        while True:
            done, running = wait(futures, POLL_SECONDS, FIRST_EXCEPTION)
            for one in done:
                one.result()
            if not running:
                return [one.result() for one in futures]
            self.check()

    def see(self, name: str, size: int | None, came: int, **_: Any) -> None:
        """Record how many bytes of an object have come, of `size` if the store states it; ValueError if too many."""
        if self._ended or self._stopped.is_set():
            raise CancelledError
        if came > self._came.get(name, 0):
            self._last = time.monotonic()
        self._came[name] = came
        if self.max_bytes is not None and sum(self._came.values()) + max(0, (size or 0) - came) > self.max_bytes:
            raise ValueError(f"it is too large: an update may have {self.max_bytes:,} bytes")

    def check(self) -> None:
        """Raise an error if no bytes have come for too long, or too few in all, or all calls were stopped."""
        now, came = time.monotonic(), sum(self._came.values())
        if self._stopped.is_set():
            raise CancelledError
        if now - self._last > self.timeout:
            raise TimeoutError
        if now - self._begun > 2 * self.timeout + came / MIN_BYTES_PER_SECOND:
            raise ValueError(f"it came too slowly: {came:,} bytes in {now - self._begun:.0f} s")


def _in_thread(call: Callable[[], T]) -> Future[T]:
    """Begin a call in a thread of its own, not of a pool: one that never returns delays nothing, nor the exit."""
    future = Future[T]()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def repeated(request: Callable[[], T]) -> T:
    """Return request(), made again after an error that may pass."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return request()
        except PERMANENT:
            raise
        except Exception:
            time.sleep(0.1 * 4**attempt)
    return request()


def reason_of_failure(
    error: BaseException, timeout: float, address: str = "", options: Mapping[str, Any] | None = None
) -> str:
    """Return the message of an error of a store, short and without secrets of the address and its options."""
    if isinstance(error, FileNotFoundError):
        return "there is no such object"
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout:g} s"
    if isinstance(status := getattr(error, "status", None), int):  # of aiohttp, which shows the whole URL
        return f"HTTP status {status}"
    said = without_addresses_secrets(short(error))
    if mentions_secret(str(error), address, options):
        return f"{type(error).__name__}, whose message holds a part of a secret of the address and is not shown"
    return said if isinstance(error, ValueError) else f"{type(error).__name__}{': ' if said else ''}{said}"


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


def is_http(fs: Any) -> bool:
    return "http" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))
