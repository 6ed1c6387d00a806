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
    """Something else is in the place of a file, such as a named pipe or a folder; or the file is too large."""


def open_regular(path: str | os.PathLike[str], mode: str = "rb", buffering: int = -1) -> Any:
    """Open a regular file; anything else is a `NotRegularError`, where `open` could wait or read without end."""
    return open(path, mode, buffering, opener=_regular)


def read_regular(path: str | os.PathLike[str], most: int = 2**32) -> bytes:
    """Return the content of a regular file of at most `most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NotRegularError(errno.EINVAL, f"it has {size:,} bytes, and up to {most:,} are read", os.fspath(path))
        content: bytes = file.read()
        return content


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
