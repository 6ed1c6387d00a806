"""Tell whoever waits at a terminal that a kernel is being compiled: once on a machine, later it comes from disk."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

LINE = "bartizan: compiling {} (once on this machine, then cached) ..."
_said: list[str] = []


@contextmanager
def told(what: str) -> Iterator[None]:
    """A line on a terminal for as long as it takes; elsewhere an entry in the log."""
    _start(what)
    try:
        yield
    finally:
        _end()


def _start(what: str) -> None:
    _said.append(what)
    if len(_said) > 1:  # on behalf of another
        return
    if _on_terminal():
        print(f"\r\x1b[K{LINE.format(what)}", end="", file=sys.stderr, flush=True)
    else:
        logging.getLogger("bartizan").info(LINE.format(what))


def _end() -> None:
    _said.pop()
    if not _said and _on_terminal():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _on_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (AttributeError, ValueError):  # something that only writes, or is closed
        return False


class _Listener(event.Listener):
    """Of our own kernels; what they call is compiled in between."""

    def on_start(self, event: Any) -> None:
        if _is_ours(event):
            _start(event.data["dispatcher"].py_func.__name__.strip("_").replace("_", " "))

    def on_end(self, event: Any) -> None:
        if _is_ours(event):
            _end()


def _is_ours(event: Any) -> bool:
    return str(event.data["dispatcher"].py_func.__module__).startswith("bartizan.")


def tell() -> None:
    """From now on, of every kernel that numba has to compile."""
    event.register("numba:compile", _Listener())
