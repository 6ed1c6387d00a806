"""Updates that are fetched in ranges: each leaf is checked as it comes, and what is there is not asked for again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from bartizan._util.types import Array
from bartizan.errors import server_error
from bartizan.sources.committed.round_messages import Fetch, Leaves, Sketched
from bartizan.sources.committed.transcript import require
from bartizan.sources.committed.update_bytes import LEAF, leaf_hash
from bartizan.updates.mapping import MappedFile

WINDOW = 4  # leaves that are asked for at a time
MAX_STRIKES = 3  # answers in a row without a leaf of the update


class FetchedUpdate:
    """The bytes of one client's update, as far as they have come, in memory or in a temporary file of a folder."""

    def __init__(self, sent: Sketched, n_bytes: int, folder: Path | None) -> None:
        self.sent, self.strikes, self.n_there, self.checked = sent, 0, 0, False
        self.data: Array = np.empty(n_bytes, np.uint8) if folder is None else _room(n_bytes, folder)

    @property
    def complete(self) -> bool:
        return self.n_there == len(self.sent.leaves)

    def request(self) -> Fetch:
        return Fetch(self.sent.root, self.n_there, min(WINDOW, len(self.sent.leaves) - self.n_there))

    @property
    def n_asked(self) -> int:
        """The bytes that are asked for next."""
        return min(WINDOW * LEAF, len(self.data) - self.n_there * LEAF)

    def add(self, reply: Leaves | None) -> None:
        """Take the leaves that were asked for; ProtocolError on false bytes, or if none came several times."""
        asked, data = self.request(), b"" if reply is None else reply.data
        leaves = [data[at : at + LEAF] for at in range(0, len(data), LEAF)]
        same = reply is None or (reply.root, reply.first) == (asked.root, asked.first)
        require(same and len(leaves) <= asked.count, "it sent another range than was asked for")
        for number, leaf in enumerate(leaves, asked.first):
            true = leaf_hash(leaf, self.sent.salt) == self.sent.leaves[number]
            require(true, f"its bytes from {number * LEAF:,} on are not those that it committed to")
            self.data[number * LEAF : number * LEAF + len(leaf)] = np.frombuffer(leaf, np.uint8)
        self.n_there += len(leaves)
        self.strikes = 0 if leaves else self.strikes + 1
        of = f"{self.n_there} of {len(self.sent.leaves)} MiB are there"
        require(self.strikes < MAX_STRIKES, f"it withheld its update, {MAX_STRIKES} times in a row: {of}")


def _room(size: int, folder: Path) -> Array:
    """Return writable memory in a temporary file without a name; ServerResourceError if there is no room."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            os.ftruncate(file.fileno(), size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, not a crash at some page
            return MappedFile(file.fileno(), size, "shared").memory(writable=True)
    except OSError as full:
        raise server_error(full, f"An update of {size:,} bytes can't be kept in {folder}") from full
