"""Open files that others may have put in place: only regular ones."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NotRegularError(OSError):
    """Something else is in the place of a file: a named pipe, a device, a socket or a folder."""


def open_regular(path: str | os.PathLike[str], mode: str = "rb", buffering: int = -1) -> Any:
    """Open a regular file; anything else is a `NotRegularError`, where `open` could wait or read without end."""
    return open(path, mode, buffering, opener=_regular)


def _regular(path: str, flags: int) -> int:
    if os.path.exists(path):  # to open some devices changes them
        _require_regular(os.stat(path).st_mode, path)
    handle = os.open(path, flags | os.O_NONBLOCK, 0o666)  # a named pipe that has come since would wait for its writer
    try:
        _require_regular(os.fstat(handle).st_mode, path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _require_regular(mode: int, path: str) -> None:
    if not stat.S_ISREG(mode):
        found = KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotRegularError(errno.EINVAL, f"it is {found}, not a regular file", path)
