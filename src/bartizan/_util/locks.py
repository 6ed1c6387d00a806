"""Advisory file locks, which the operating system releases when the process ends or is killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ModuleNotFoundError as missing:
    system = "bartizan needs Linux or macOS, whose files it locks and maps; on Windows, install it in WSL 2"
    raise ModuleNotFoundError(system) from missing


def try_lock(file: int | IO[Any]) -> bool:
    """Lock an open file or folder without waiting; return whether this process holds the lock now.

    The lock lasts until the file is closed.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file, open(file.name) as again:
    ...     try_lock(file.file), try_lock(again)
    (True, False)
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is still the one of this name: not deleted, moved or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
