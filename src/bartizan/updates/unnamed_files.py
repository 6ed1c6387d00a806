"""Files of this process without names: they take disk space until they are closed and no mapping of them is left.

They are in the folder for temporary files (TMPDIR). Beyond the number of mappings that a process may have, the files of
clients are copied to the end of one of them, which is mapped in large pieces.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from typing import IO

from bartizan._util.types import Array
from bartizan.errors import server_error
from bartizan.updates.mapping import MappedFile

PIECE_BYTES = 2**28  # that are mapped at a time, at least
CHUNK_BYTES = 2**22  # that are copied at a time


def unnamed_file() -> IO[bytes]:
    """Return a new file, to be closed by the caller; ServerResourceError if there can be none."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError as full:
        raise server_error(full, "No temporary file can be made") from full


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write to an unnamed file where it is; ServerResourceError if it can't take that."""
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as full:
        raise server_error(full, f"Updates can't be written to {tempfile.gettempdir()} (TMPDIR)") from full


def copied(file: IO[bytes], size: int) -> Array:
    """Return the first `size` bytes of a file in a copy that is mapped, which nobody else can write to."""
    global _newest
    with _lock:
        piece = _newest() if _newest is not None else None
        if piece is None or piece.end + size > piece.size:
            piece = Piece(max(size, PIECE_BYTES))
            _newest = weakref.ref(piece)
        return piece.append(file, size)


class Piece(MappedFile):
    """An unnamed file that is mapped beyond its end; it lasts as long as arrays of it do."""

    def __init__(self, size: int) -> None:
        self.size, self.end = size, 0
        self.file = unnamed_file()
        weakref.finalize(self, self.file.close)
        try:
            super().__init__(self.file.fileno(), size, "read")
        except OSError as full:
            raise server_error(full, f"A copy of a file, of {size:,} bytes, can't be mapped") from full

    def append(self, file: IO[bytes], size: int) -> Array:
        """Copy a file to the end; return its bytes."""
        self.file.seek(self.end)
        for at in range(0, size, CHUNK_BYTES):
            chunk = os.pread(file.fileno(), min(CHUNK_BYTES, size - at), at)
            if len(chunk) < min(CHUNK_BYTES, size - at):
                raise ValueError("it was cut short while it was being read")
            write_all(self.file, chunk)
        begin, self.end = self.end, self.end + size + -size % mmap.PAGESIZE
        return self.memory(writable=True)[begin : begin + size]  # as torch wants to hear; nobody writes


_lock = threading.Lock()
_newest: weakref.ref[Piece] | None = None


def _forget() -> None:
    """In a forked child no thread is left that could release the lock, and the parent goes on to write to the file."""
    global _lock, _newest
    _lock, _newest = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
