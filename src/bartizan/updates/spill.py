"""Keep the updates of a round in files instead of in memory, until the round ends.

Each round has a folder of its own, and beside it a lock file that the operating system releases when the process ends,
however it ends. The next round in the same place removes folders whose lock is free.
"""

from __future__ import annotations

import os
import secrets
import shutil
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from bartizan._util.atomic import atomic_file
from bartizan._util.locks import try_lock
from bartizan._util.regular_files import open_regular
from bartizan._util.text import quoted
from bartizan.updates.column_pass import UNLIMITED
from bartizan.updates.files import map_file
from bartizan.updates.layout import Path as Place
from bartizan.updates.layout import as_numpy, leaves_of, like_leaf, on_gpu, rebuild

PREFIX = "bartizan-round-"
ALIGNED = 64


class Spill:
    """One round's folder inside `place`; `clear` removes it, at the latest when the process exits."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = Path(place)
        self.place.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.place)
        lock, path = _locked(self.place)
        self.folder = path.with_suffix("")
        self.folder.mkdir(mode=0o700)
        self.clear = weakref.finalize(self, _remove, self.folder, path, lock, os.getpid())

    def keep(self, update: Any, client: Any) -> Any:
        """The same update, its numbers in a mapped file of this folder; OSError if there is no room for them."""
        leaves = leaves_of(update)
        if any(on_gpu(leaf) for leaf in leaves.values()):
            raise ValueError(
                f"client {quoted(client, 60)}'s update is on a GPU; spill is for updates in host memory. Call .cpu()."
            )
        stored = {path: as_numpy(leaf) for path, leaf in leaves.items()}
        places, size = {}, 0
        for key, array in stored.items():
            places[key] = size
            size += array.nbytes + -array.nbytes % ALIGNED
        path = self.folder / f"{secrets.token_hex(8)}.update"
        try:
            with atomic_file(path, size) as file:
                for key, array in stored.items():
                    file.seek(places[key])
                    for _, piece in UNLIMITED.pieces(array):
                        file.write(np.ascontiguousarray(piece).data.cast("B"))
        except OSError as full:
            raise OSError(
                full.errno,
                f"client {quoted(client, 60)}'s update of {size:,} bytes could not be written to {self.place} "
                f"({full.strerror}). The round goes on without it: make room, and add it again",
            ) from full
        with open_regular(path) as file:
            memory = map_file(file) if size else None

        def mapped(key: Place, leaf: Any) -> Any:
            return like_leaf(np.ndarray(stored[key].size, stored[key].dtype, memory, places[key]), leaf)

        return rebuild(update, mapped)


def remove_leftovers(place: Path) -> list[Path]:
    """Remove and return the folders of processes that have ended."""
    removed = []
    for lock_path in sorted(place.glob(f"{PREFIX}*.lock")):
        # It may be gone by now, or belong to another user.
        with suppress(OSError), open_regular(lock_path, "r+b") as lock:
            if try_lock(lock):
                _remove(lock_path.with_suffix(""), lock_path, lock, os.getpid())
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


def _remove(folder: Path, lock_path: Path, lock: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked child that exits: the round is its parent's
        return
    shutil.rmtree(folder, ignore_errors=True)
    lock_path.unlink(missing_ok=True)
    lock.close()
