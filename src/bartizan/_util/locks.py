"""Advisory file locks, which the operating system releases when the process ends, however it ends."""

from __future__ import annotations

from typing import Protocol

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUPPORTED = fcntl is not None


class HasDescriptor(Protocol):
    """An open file."""

    def fileno(self) -> int: ...


def try_lock(file: int | HasDescriptor) -> bool:
    """Lock an open file or folder without waiting; return whether this process holds the lock now.

    The lock lasts until the file is closed. Where the system has no such locks (`SUPPORTED` is False), return True.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file, open(file.name) as again:
    ...     try_lock(file), try_lock(again)
    (True, False)
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
