"""Copies of updates in temporary files: of a round that spills, and of files that are more than a process may map.

The files have no name. The operating system frees their disk space when no array of them is left, or when the process
ends, however it ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from bartizan._util.text import quoted, short
from bartizan._util.types import Array
from bartizan.errors import ADVICE, server_error
from bartizan.updates.column_pass import UNLIMITED
from bartizan.updates.layout import Path as Place
from bartizan.updates.layout import is_tensor, like_leaf, rebuild
from bartizan.updates.mapping import MappedFile
from bartizan.updates.parse import ParsedUpdate

ALIGNED = 64  # bytes, of each array
CHUNK_BYTES = 2**22  # that are copied at a time
FIRST_PIECE, LAST_PIECE = 2**22, 2**28  # bytes of the first piece, and of the last of those that double


class Spill:
    """Keep the updates of a round in files of the folder `place` instead of in memory."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = Path(place)
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.place).close()  # what hinders every update is an error now
        except OSError as full:
            if full.errno not in ADVICE:
                raise
            raise server_error(full, f"Updates can't be spilled to {short(self.place)}") from full
        self._files = TemporaryFiles(self.place)

    def keep(self, parsed: ParsedUpdate, client: Any) -> Any:
        """Return the same update, its numbers in a file; ServerResourceError if there is no room for them."""
        floats, integers = iter(parsed.row.floats), iter(parsed.row.integers)
        stored = {entry.path: next(floats if entry.is_float else integers) for entry in parsed.layout.entries}
        if any(map(is_tensor, stored.values())):
            raise ValueError(
                f"client {quoted(client, 60)}'s update is on a GPU; spill is for updates in host memory. Call .cpu()."
            )
        size, places = 0, {}
        for key, array in stored.items():
            places[key], size = size, size + array.nbytes + -array.nbytes % ALIGNED
        try:
            memory = self._files.append(_chunks(stored.values()), size)
        except OSError as full:
            what = f"client {quoted(client, 60)}'s update of {size:,} bytes could not be written to {short(self.place)}"
            raise server_error(full, f"{what}; the round goes on without it, and you may add it again") from full

        def mapped(key: Place, leaf: Any) -> Any:
            return like_leaf(np.ndarray(stored[key].size, stored[key].dtype, memory, places[key]), leaf)

        return rebuild(parsed.plain, mapped)


def copied(file: IO[bytes], size: int) -> Array:
    """Return the first `size` bytes of a file in a copy that is mapped, which nobody else can write to."""
    return _copies.append(_read(file, size), size)


class TemporaryFiles:
    """Temporary files in one folder, each mapped once: as many are open as threads append at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._next_size = FIRST_PIECE
        self._idle: list[weakref.ref[Piece]] = []  # each is used by one thread at a time

    def append(self, chunks: Iterable[memoryview], size: int) -> Array:
        """Write these bytes to a file, and return them mapped."""
        try:
            piece = self._idle.pop()()
        except IndexError:
            piece = None
        if piece is not None and piece.end + size > piece.size:
            piece.file.close()
            piece = None
        piece = piece or self._piece(size)
        begin = piece.end
        try:
            memory = piece.append(chunks, size)
        except OSError as full:
            if full.errno != errno.EFBIG or not begin:
                raise
            piece = self._piece(size)
            memory = piece.append(chunks, size)
        finally:
            self._idle.append(weakref.ref(piece))
        return memory

    def _piece(self, size: int) -> Piece:
        piece = Piece(self.folder, max(self._next_size, size))
        self._next_size = min(2 * self._next_size, LAST_PIECE)
        return piece


class Piece(MappedFile):
    """A temporary file that is mapped beyond its end; it lasts as long as arrays of it do."""

    def __init__(self, folder: Path | None, size: int) -> None:
        self.size, self.end = size, 0
        try:
            self.file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 (held as long as the piece)
            weakref.finalize(self, self.file.close)
            super().__init__(self.file.fileno(), size, "read")
        except OSError as full:
            raise server_error(full, f"A temporary file of {size:,} bytes can't be mapped") from full

    def append(self, chunks: Iterable[memoryview], size: int) -> Array:
        """Write these bytes to the end and return them; after an error the file is as it was."""
        descriptor, begin, at = self.file.fileno(), self.end, self.end
        try:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, begin, size)  # a full disk is an error now, not a crash at some page
            for chunk in chunks:
                while chunk:
                    written = os.pwrite(descriptor, chunk, at)
                    chunk, at = chunk[written:], at + written
        except BaseException:
            os.ftruncate(descriptor, begin)
            raise
        self.end += size + -size % mmap.PAGESIZE  # the page of the last bytes may be in memory already
        return self.memory(writable=True)[begin : begin + size]  # as torch wants to hear; nobody writes


def _chunks(arrays: Iterable[Array]) -> Iterator[memoryview]:
    for array in arrays:
        for _, piece in UNLIMITED.pieces(array):
            yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
        yield memoryview(bytes(-array.nbytes % ALIGNED))


def _read(file: IO[bytes], size: int) -> Iterator[memoryview]:
    for at in range(0, size, CHUNK_BYTES):
        chunk = os.pread(file.fileno(), min(CHUNK_BYTES, size - at), at)
        if len(chunk) < min(CHUNK_BYTES, size - at):
            raise ValueError("it was cut short while it was being read")
        yield memoryview(chunk)


def _forget() -> None:
    """Begin new files in a forked child: the others stay its parent's."""
    global _copies
    _copies = TemporaryFiles()


_copies = TemporaryFiles()
os.register_at_fork(after_in_child=_forget)
