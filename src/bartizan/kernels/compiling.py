"""Report and time the compilation of kernels, which happens once on a machine; later they come from numba's cache."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bartizan._util import stopwatch
from bartizan._util.console import is_terminal
from bartizan._util.jit import event

LINE = "bartizan: compiling {} (once on this machine, then cached) ..."
LONG = "bartizan: compiling kernels that are not cached yet; `bartizan warmup` compiles the usual ones ahead."
REPORT_AFTER_S = 2.0  # of compiling, in a program without a terminal

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
    """Report every kernel of this package that numba has to compile from now on."""
    event.register("numba:compile", _Listener())


class _Listener(event.Listener):
    """The listener to numba's events for this package; what a kernel calls is compiled between its start and end."""

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
    elif is_terminal(sys.stderr):
        print(f"\r\x1b[K{LINE.format(name)}", end="", file=sys.stderr, flush=True)
    else:
        _log.info(LINE.format(name))


def _end() -> None:
    _report_if_long()
    _, since = _running.pop()
    if _running:
        return
    stopwatch.add_compile_time(time.perf_counter() - since)
    if is_terminal(sys.stderr):
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _report_if_long() -> None:
    """Warn once if there is no terminal, in the log or by Python's default on stderr."""
    global _reported
    spent = stopwatch.compile_seconds() + time.perf_counter() - _running[0][1]
    if spent > REPORT_AFTER_S and not _reported and not is_terminal(sys.stderr):
        _reported = True
        _log.warning(LONG)
