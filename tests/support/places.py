"""Things other than regular files that may stand in the place of one."""

import contextlib
import os
import socket
from pathlib import Path


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket has a hundred letters at most
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


KINDS = {
    "a named pipe": os.mkfifo,
    "a socket": _socket,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
}


def put(kind: str, path: Path) -> None:
    """Put a thing of this kind into the place of a file."""
    if path.is_symlink() or path.exists():
        path.unlink()
    KINDS[kind](path)


def spilled_bytes(place: Path, process: int | str = "self") -> int:
    """The bytes that a process (of Linux) has spilled to a folder: the files have no name, but descriptors."""
    total = 0
    for held in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            if os.readlink(held).startswith(f"{place}/"):
                total += held.stat().st_size
    return total
