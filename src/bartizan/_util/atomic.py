"""Write files atomically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: Path, size: int = 0) -> Iterator[BinaryIO]:
    """A binary file with room for `size` bytes, that gets its name when the block ends without an error."""
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(hidden, "x+b") as file:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, not a crash at some page
            elif size:
                file.truncate(size)
            yield file
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], None], *, settle: bool = False) -> None:
    """Write a file under another name, then rename it: after an interruption the old file is still there.

    Args:
        path: The file; its folder is made where it is missing.
        content: What to write, or a function that writes it to an open file, for what is too large to hold twice.
        settle: Wait until the disk has it, so that the old or the new file also survives a power cut.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
