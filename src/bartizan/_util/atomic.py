"""Write files atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: str | bytes | Callable[[BinaryIO], None], *, settle: bool = False) -> None:
    """Write a file under another name, then rename it: after an interruption the old file is still there.

    Args:
        path: The file; its folder is made where it is missing.
        content: What to write, or a function that writes it to an open file, for what is too large to hold twice.
        settle: Wait until the disk has it, so that the old or the new file also survives a power cut.
    """
    beside = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            if settle:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException as wrong:
        if beside:
            with suppress(FileNotFoundError):
                os.unlink(beside)
        if isinstance(wrong, OSError) and wrong.errno is not None:
            # The caller knows the file's own name, not that of the temporary one.
            raise OSError(wrong.errno, wrong.strerror, str(path)) from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
