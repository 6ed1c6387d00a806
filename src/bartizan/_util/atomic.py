"""Write files atomically."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from bartizan._util.locks import is_at, try_lock
from bartizan._util.regular_files import open_regular


@contextmanager
def atomic_file(path: Path, size: int = 0) -> Iterator[BinaryIO]:
    """Open a binary file with room for `size` bytes, which gets its name when the block ends without an error.

    Until then it is hidden and locked, for `remove_abandoned`.
    """
    hidden, lock = _locked_file(path)
    try:
        with open(lock, "r+b", closefd=False) as file:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(lock, 0, size)  # a full disk is an error now, not a crash at some page
            elif size:
                file.truncate(size)
            yield file
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)


def hidden_name(name: str) -> str:
    """Return a new name for the file that will be called `name` once it is complete."""
    return f".{name}.{secrets.token_hex(8)}.part"


def is_hidden(hidden: str, name: str) -> bool:
    """Return whether `hidden_name(name)` can have returned this.

    >>> is_hidden(hidden_name("next.npy"), "next.npy"), is_hidden(hidden_name("next.npy"), "other.npy")
    (True, False)
    """
    return hidden.startswith(f".{name}.") and re.fullmatch(r"[0-9a-f]{16}\.part", hidden[len(name) + 2 :]) is not None


def remove_abandoned(path: Path) -> None:
    """Remove the hidden files of killed writers of `path`: nobody holds their locks."""
    with suppress(OSError):
        with os.scandir(path.parent) as entries:
            found = [
                one.name for one in entries if is_hidden(one.name, path.name) and one.is_file(follow_symlinks=False)
            ]
        for hidden in map(path.with_name, found):
            with suppress(OSError), open_regular(hidden) as file:
                if try_lock(file):
                    hidden.unlink()


def _locked_file(path: Path) -> tuple[Path, int]:
    """Make a hidden file for `path`, open and locked, which no other writer removed before it was locked."""
    while True:
        hidden = path.with_name(hidden_name(path.name))
        lock = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks, on which nobody else gets one either
            if not (try_lock(lock) and is_at(lock, hidden)):
                os.close(lock)
                continue
        return hidden, lock


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], None], *, settle: bool = False) -> None:
    """Write a file under another name, then rename it: after an interruption the old file is still there.

    Args:
        path: The file; its folder is made where it is missing.
        content: What to write, or a function that writes it to an open file, for what is too large to hold twice.
        settle: Wait until the disk has it, so that the old or the new file also survives a power cut.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path)
        with atomic_file(path) as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            if settle:
                file.flush()
                os.fsync(file.fileno())
    except OSError as wrong:
        if wrong.errno is None:
            raise
        # The caller knows the file's own name, not that of the temporary one.
        raise OSError(wrong.errno, wrong.strerror, str(path)) from None
