"""Copy files, where they are more than a process may map, to temporary files that are mapped in large pieces.

A temporary file has no name (its folder is TMPDIR), and its disk space is free when no array of it is left.
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


def copied(file: IO[bytes], size: int) -> Array:
    """Return the first `size` bytes of a file in a copy that is mapped, which nobody else can write to."""
    global _newest
    with _lock:
        piece = None if _newest is None else _newest()
        if piece is None or piece.end + size > piece.size:
            piece = Piece(max(size, PIECE_BYTES))
            _newest = weakref.ref(piece)
        return piece.append(file, size)


class Piece(MappedFile):
    """A temporary file that is mapped beyond its end; it lasts as long as arrays of it do."""

    def __init__(self, size: int) -> None:
        self.size, self.end = size, 0
        try:
            self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (held as long as the piece)
            weakref.finalize(self, self.file.close)
            super().__init__(self.file.fileno(), size, "read")
        except OSError as full:
            raise server_error(full, f"A temporary file of {size:,} bytes can't be mapped") from full

    def append(self, file: IO[bytes], size: int) -> Array:
        """Copy a file to the end; return its bytes."""
        self.file.seek(self.end)
        for at in range(0, size, CHUNK_BYTES):
            chunk = os.pread(file.fileno(), min(CHUNK_BYTES, size - at), at)
            if len(chunk) < min(CHUNK_BYTES, size - at):
                raise ValueError("it was cut short while it was being read")
            while chunk:
                chunk = chunk[self.file.write(chunk) :]
        begin, self.end = self.end, self.end + size + -size % mmap.PAGESIZE
        return self.memory(writable=True)[begin : begin + size]  # as torch wants to hear; nobody writes


_lock = threading.Lock()
_newest: weakref.ref[Piece] | None = None


def _forget() -> None:
    """In a forked child no thread is left that could release the lock, and the parent goes on to write to the file."""
    global _lock, _newest
    _lock, _newest = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
