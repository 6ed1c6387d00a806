"""Keep the updates of a round in a file instead of in memory, until the round ends.

There are as many files as updates are kept at a time, each mapped in large pieces, so a round needs few descriptors.
Each round has a folder of its own, and beside it a lock file that the operating system releases when the process ends,
however it ends. The next round in the same place removes folders whose lock is free.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import shutil
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from bartizan._util.locks import try_lock
from bartizan._util.regular_files import open_regular
from bartizan._util.text import quoted, short
from bartizan._util.types import Array
from bartizan.errors import ADVICE, server_error
from bartizan.updates.column_pass import UNLIMITED
from bartizan.updates.layout import Path as Place
from bartizan.updates.layout import is_tensor, like_leaf, rebuild
from bartizan.updates.mapping import MappedFile
from bartizan.updates.parse import ParsedUpdate

PREFIX = "bartizan-round-"
ALIGNED = 64
FIRST_MAPPED, MAX_MAPPED = 2**22, 2**28  # bytes of a file that are mapped at a time, at least: twice as many each time


class Spill:
    """One round's folder inside `place`; `clear` removes it, at the latest when the process exits."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = Path(place)
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.place)
            lock, path = _locked(self.place)
            self.folder = path.with_suffix("")
            self.folder.mkdir(mode=0o700)
        except OSError as full:
            if full.errno not in ADVICE:
                raise
            raise server_error(full, f"Updates can't be spilled to {short(self.place)}") from full
        self._idle: list[SpillFile] = []  # each is used by one thread at a time
        self.clear = weakref.finalize(self, _remove, self.folder, path, lock, os.getpid(), self._idle)

    def keep(self, parsed: ParsedUpdate, client: Any) -> Any:
        """The same update, its numbers in a file of this folder; ServerResourceError if there is no room for them."""
        floats, integers = iter(parsed.row.floats), iter(parsed.row.integers)
        stored = {entry.path: next(floats if entry.is_float else integers) for entry in parsed.layout.entries}
        if any(map(is_tensor, stored.values())):
            raise ValueError(
                f"client {quoted(client, 60)}'s update is on a GPU; spill is for updates in host memory. Call .cpu()."
            )
        size = sum(map(_padded, stored.values()))
        try:
            memory = self._written(list(stored.values()), size)
        except OSError as full:
            what = f"client {quoted(client, 60)}'s update of {size:,} bytes could not be written to {short(self.place)}"
            raise server_error(full, f"{what}; the round goes on without it, and you may add it again") from full
        at, places = 0, {}
        for key, array in stored.items():
            places[key], at = at, at + _padded(array)

        def mapped(key: Place, leaf: Any) -> Any:
            return like_leaf(np.ndarray(stored[key].size, stored[key].dtype, memory, places[key]), leaf)

        return rebuild(parsed.plain, mapped)

    def _written(self, arrays: list[Array], size: int) -> Array:
        """The arrays one after another in a file, mapped."""
        try:
            file = self._idle.pop()
        except IndexError:
            file = SpillFile(self.folder)
        try:
            return file.append(arrays, size)
        except OSError as full:
            if full.errno != errno.EFBIG or not file.end:
                raise
            # The full one may have room for a smaller update. `finally` hands back one of the two, also if the next
            # file can't be opened: a file that is idle twice would be written to by two threads.
            full_file, file = file, SpillFile(self.folder)
            self._idle.append(full_file)
            return file.append(arrays, size)
        finally:
            if not file.file.closed:
                self._idle.append(file)


class SpillFile:
    """A file to which updates are appended; no other thread may use it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{secrets.token_hex(8)}.update"
        self.file = open(self.path, "x+b", buffering=0)  # noqa: SIM115 (held for as long as the round lasts)
        self.end = 0
        self._mapped: Array = np.empty(0, np.uint8)
        self._first = 0  # byte of the file that `_mapped` begins with
        self._least = FIRST_MAPPED

    def append(self, arrays: list[Array], size: int) -> Array:
        """Write arrays, each from a multiple of `ALIGNED` bytes on, and return their bytes.

        After an error the file is as it was; one that was empty is removed.
        """
        begin, at, descriptor = self.end, self.end, self.file.fileno()
        try:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, begin, size)  # a full disk is an error now, not a crash at some page
            for array in arrays:
                for low, piece in UNLIMITED.pieces(array):
                    _write(descriptor, np.ascontiguousarray(piece), at + low * array.itemsize)
                at += _padded(array)
            memory = self._map(begin, size)
        except BaseException:
            if begin:
                self.file.truncate(begin)
            else:
                self.file.close()
                self.path.unlink()
            raise
        self.end += size + -size % mmap.PAGESIZE  # the page of the last bytes may be in memory already
        return memory

    def _map(self, begin: int, size: int) -> Array:
        """These bytes, in a mapping that reaches beyond the end of the file: what is appended later is there too."""
        if begin + size > self._first + len(self._mapped):
            first = begin - begin % mmap.ALLOCATIONGRANULARITY
            mapped = MappedFile(self.file.fileno(), max(self._least, begin + size - first), "read", first)
            self._least = min(2 * self._least, MAX_MAPPED)
            self._mapped, self._first = mapped.memory(writable=True), first  # as torch wants to hear; nobody writes
        return self._mapped[begin - self._first :][:size]


def _padded(array: Array) -> int:
    return array.nbytes + -array.nbytes % ALIGNED


def _write(descriptor: int, piece: Array, at: int) -> None:
    data = piece.reshape(-1).view(np.uint8).data
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written


def remove_leftovers(place: Path) -> list[Path]:
    """Remove and return the folders of processes that have ended."""
    removed = []
    for lock_path in sorted(place.glob(f"{PREFIX}*.lock")):
        # It may be gone by now, or belong to another user.
        with suppress(OSError), open_regular(lock_path, "r+b") as lock:
            if try_lock(lock):
                _remove(lock_path.with_suffix(""), lock_path, lock, os.getpid(), [])
                removed.append(lock_path.with_suffix(""))
    return removed


def _locked(place: Path) -> tuple[IO[bytes], Path]:
    """A new lock file that this process holds."""
    while True:
        path = place / f"{PREFIX}{secrets.token_hex(8)}.lock"
        lock = open(path, "x+b")  # noqa: SIM115 (held for as long as the round lasts)
        if try_lock(lock) and path.exists():  # else another round has just removed it as a leftover
            return lock, path
        lock.close()


def _remove(folder: Path, lock_path: Path, lock: IO[bytes], owner: int, files: list[SpillFile]) -> None:
    if os.getpid() != owner:  # a forked child that exits: the round is its parent's
        return
    for file in files:
        file.file.close()
    files.clear()  # with the mappings, which keep the disk's blocks
    shutil.rmtree(folder, ignore_errors=True)
    lock_path.unlink(missing_ok=True)
    lock.close()
