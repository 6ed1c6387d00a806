"""Report and time the compilation of kernels, which happens once on a machine; later they come from numba's cache."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bartizan._util import stopwatch
from bartizan._util.jit import event

LINE = "bartizan: compiling {} (once on this machine, then cached) ..."
LONG = "bartizan: compiling kernels that are not cached yet; `bartizan warmup` compiles the usual ones ahead."
PATIENCE = 2.0  # seconds of compiling after which a program without a terminal reports it

_log = logging.getLogger("bartizan")
_running: list[tuple[str, float]] = []  # what is compiled now, the outermost kernel first, and since when
_reported = False


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Report that a kernel is being compiled, for as long as it takes, and add the time to the stopwatches."""
    _start(name)
    try:
        yield
    finally:
        _end()


def register() -> None:
    """From now on, report every kernel of this package that numba has to compile."""
    event.register("numba:compile", _Listener())


class _Listener(event.Listener):
    """Numba's events for kernels of this package; what a kernel calls is compiled between its start and end."""

    def on_start(self, event: Any) -> None:
        if _is_ours(event):
            _start(event.data["dispatcher"].py_func.__name__.strip("_").replace("_", " "))

    def on_end(self, event: Any) -> None:
        if _is_ours(event):
            _end()


def _is_ours(event: Any) -> bool:
    return str(event.data["dispatcher"].py_func.__module__).startswith("bartizan.")


def _start(name: str) -> None:
    _running.append((name, time.perf_counter()))
    if len(_running) > 1:
        _report_if_long()
    elif _on_terminal():
        print(f"\r\x1b[K{LINE.format(name)}", end="", file=sys.stderr, flush=True)
    else:
        _log.info(LINE.format(name))


def _end() -> None:
    _report_if_long()
    _, since = _running.pop()
    if _running:
        return
    stopwatch.add_compile_time(time.perf_counter() - since)
    if _on_terminal():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report_if_long() -> None:
    """Without a terminal: one warning, in the log or by Python's default on stderr."""
    global _reported
    spent = stopwatch.compile_seconds() + time.perf_counter() - _running[0][1]
    if spent > PATIENCE and not _reported and not _on_terminal():
        _reported = True
        _log.warning(LONG)


def _on_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (AttributeError, ValueError):  # something that only writes, or is closed
        return False
