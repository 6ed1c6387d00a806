"""Reach stores by fsspec: addresses, lists, requests with a time limit, and uploads. `fetch` downloads updates."""

from __future__ import annotations

import glob
import posixpath
import re
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from bartizan._util.atomic import hidden_name, is_hidden
from bartizan._util.redact import mentions_secret, without_addresses_secrets, without_secrets
from bartizan._util.text import short
from bartizan.errors import ServerResourceError
from bartizan.updates.places import StoredPlace

T = TypeVar("T")

ATTEMPTS = 3
TIMEOUT = 60.0  # seconds that one request may take, with its repetitions
ABANDONED_AFTER = timedelta(days=1)  # stores have no locks, and between an upload and its move are minutes at most
PERMANENT = (
    ValueError,
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotImplementedError,
    TimeoutError,
    ServerResourceError,
)
"""Errors after which a request is not repeated."""


def shown(address: str) -> str:
    """Return an address as messages show it."""
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
        found = Requests().run(limited(lambda: call(fs, "glob", path), timeout))
        if not found:  # fsspec leaves out folders that can't be listed: ask for the one without wildcards
            folder = re.split(r"[*?\[]", path)[0].rpartition("/")[0]
            with suppress(FileNotFoundError):
                Requests().run(limited(lambda: call(fs, "ls", folder), timeout))
        return path, [StoredPlace(fs, one, _misread(fs, one, timeout)) for one in sorted(found)]


def _misread(fs: Any, path: str, timeout: float) -> str:
    """Why the store would take this path for another one: some read ``?versionId=...`` at its end."""
    if "?" not in path:
        return ""
    with suppress(FileNotFoundError):
        if Requests().run(limited(lambda: call(fs, "info", path), timeout))["name"] == path:
            return ""
    return "its name would be read as that of another object; rename it"


class Requests:
    """The requests of one call to stores, on fsspec's thread, until they are answered or `stop` is called."""

    def __init__(self) -> None:
        self._running: set[Future[Any]] = set()
        self._stopped = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns; Ctrl-C cancels it."""
        import asyncio

        from fsspec.asyn import get_loop

        future = asyncio.run_coroutine_threadsafe(work, get_loop())
        self._running.add(future)
        try:
            if self._stopped:
                raise CancelledError
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._running.discard(future)

    def stop(self) -> None:
        """Cancel all requests, from another thread, and those that would be made."""
        self._stopped = True
        for future in list(self._running):
            future.cancel()


async def limited(request: Callable[[], Awaitable[T]], timeout: float) -> T:
    """Await request(), again after an error that may pass, all in this many seconds."""
    import asyncio

    async with asyncio.timeout(timeout):
        return await repeated(request)


async def repeated(request: Callable[[], Awaitable[T]]) -> T:
    """Await request(), again after an error that may pass."""
    import asyncio

    for attempt in range(ATTEMPTS - 1):
        try:
            return await request()
        except PERMANENT:
            raise
        except Exception:
            await asyncio.sleep(0.1 * 4**attempt)
    return await request()


async def together(requests: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Await all requests; the first error cancels the others."""
    import asyncio

    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(request)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def reason_of_failure(
    error: BaseException, timeout: float, address: str = "", options: Mapping[str, Any] | None = None
) -> str:
    """Return the message of an error of a store, short and without secrets of the address and its options."""
    if isinstance(error, FileNotFoundError):
        return "there is no such object"
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout:g} s"
    said = without_addresses_secrets(short(error))
    if mentions_secret(str(error), address, options):
        return f"{type(error).__name__}, whose message holds a part of a secret of the address and is not shown"
    return said if isinstance(error, ValueError) else f"{type(error).__name__}{': ' if said else ''}{said}"


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


def is_http(fs: Any) -> bool:
    return "http" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))
