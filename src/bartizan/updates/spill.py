"""A folder where a round keeps its updates instead of in memory, for as long as it lasts.

Each round has a folder of its own, and beside it a lock that the system frees when the process ends, however it ends:
what a killed round left is known by its free lock, and removed by the next round that uses the same place.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from bartizan._util.types import Array
from bartizan.updates.files import atomic_file, map_file
from bartizan.updates.layout import Path as Place
from bartizan.updates.layout import as_numpy, is_tensor, leaves_of, on_gpu, rebuild

PREFIX = "bartizan-round-"
ALIGNED = 64
CHUNK = 2**20  # numbers that are written at a time


class Spill:
    """One round's folder inside `place`; `clear` removes it, at the latest when the process ends by itself."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = Path(place)
        self.place.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.place)
        lock, path = _locked(self.place)
        self.folder = path.with_suffix("")
        self.folder.mkdir(mode=0o700)
        self.clear = weakref.finalize(self, _remove, self.folder, path, lock, os.getpid())

    def keep(self, update: Any, client: Any) -> Any:
        """The same update, its numbers in a file of this folder and mapped; OSError if there is no room for them."""
        leaves = leaves_of(update)
        if any(on_gpu(leaf) for leaf in leaves.values()):
            raise ValueError(
                f"client {client!r}'s update is on a GPU; spill is for updates in host memory. Call .cpu()."
            )
        stored = {path: as_numpy(leaf) for path, leaf in leaves.items()}
        places, size = _places(stored)
        path = self.folder / f"{secrets.token_hex(8)}.update"
        try:
            with atomic_file(path, size) as file:
                for key, array in stored.items():
                    file.seek(places[key])
                    for piece in _pieces(array):
                        file.write(piece)
        except OSError as full:
            raise OSError(
                full.errno,
                f"client {client!r}'s update of {size:,} bytes could not be written to {self.place} "
                f"({full.strerror}). The round goes on without it: make room, and add it again",
            ) from full
        memory = map_file(path) if size else None

        def built(key: Place, leaf: Any) -> Any:
            flat = np.ndarray(stored[key].size, stored[key].dtype, memory, places[key])
            if is_tensor(leaf):
                return sys.modules["torch"].from_numpy(flat).view(leaf.dtype).reshape(tuple(leaf.shape))
            return flat.view(leaf.dtype).reshape(leaf.shape)

        return rebuild(update, built)


def remove_leftovers(place: Path) -> list[Path]:
    """Remove what rounds of dead processes left here, never what a living one uses; says what was removed."""
    removed = []
    for lock_path in sorted(place.glob(f"{PREFIX}*.lock")):
        with suppress(OSError), open(lock_path, "r+b") as lock:  # gone by now, not ours to open, or no lock at all
            if _take(lock):
                _remove(lock_path.with_suffix(""), lock_path, lock, os.getpid())
                removed.append(lock_path.with_suffix(""))
    return removed


def _locked(place: Path) -> tuple[IO[bytes], Path]:
    """A new lock file that this process holds."""
    while True:
        path = place / f"{PREFIX}{secrets.token_hex(8)}.lock"
        lock = open(path, "x+b")  # noqa: SIM115 (held for as long as the round lasts)
        if _take(lock) and path.exists():  # else another round took it for a dead one's, in between
            return lock, path
        lock.close()


def _take(lock: IO[bytes]) -> bool:
    try:
        import fcntl
    except ModuleNotFoundError:  # no such locks: every round is taken for a living one
        return lock.mode == "xb+"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(folder: Path, lock_path: Path, lock: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked child that ends: the round is not its own
        return
    shutil.rmtree(folder, ignore_errors=True)
    lock_path.unlink(missing_ok=True)
    lock.close()


def _places(stored: dict[Place, Array]) -> tuple[dict[Place, int], int]:
    """Where each array begins in the file, aligned, and the file's size."""
    places, at = {}, 0
    for key, array in stored.items():
        places[key] = at
        at += array.nbytes + -array.nbytes % ALIGNED
    return places, at


def _pieces(array: Array) -> Iterator[Any]:
    """An array's bytes, a part at a time; parts that do not lie in one piece are copied."""
    flat = array if array.ndim == 1 else array.flat
    for low in range(0, array.size, CHUNK):
        yield np.ascontiguousarray(flat[low : low + CHUNK]).data.cast("B")
