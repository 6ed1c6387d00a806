"""An update as the bytes that a client commits to and sends, and how they are fetched.

Entries come in the order of the opening, little-endian. Each leaf is checked as it comes, and is not asked for again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as Folder
from typing import Any

import numpy as np

from bartizan._util.types import Array, Floats
from bartizan.errors import server_error
from bartizan.measure.sketches import StreamingSketch
from bartizan.sources.committed.round_messages import MAX_LEAVES, Fetch, Leaves, Sketched
from bartizan.sources.committed.wire import hash_of, require
from bartizan.updates import Updates, parse_updates
from bartizan.updates.files import bfloat16_array
from bartizan.updates.headers import DTYPES
from bartizan.updates.layout import Entry, Layout, Path, as_numpy, itemsize_of, leaves_of, like_leaf, moved, rebuild
from bartizan.updates.mapping import MappedFile

LEAF = 2**20  # bytes
WINDOW = 4  # leaves that are asked for at a time
MAX_STRIKES = 3  # answers in a row without a leaf of the update
# Of an update's norm: far more than the sketches of one update on two machines differ by, and nothing to an attacker.
SLACK = 2.0**-16


@dataclass(frozen=True)
class UpdateForm:
    """The entries of an update, in the order of its bytes."""

    layout: Layout

    @classmethod
    def of(cls, like: Any) -> UpdateForm:
        """Return the form of updates like this one; ValueError if it can't be declared in an opening."""
        layout = Layout.of({path: moved(leaf, "cpu") for path, leaf in leaves_of(like).items()})
        return cls.from_entries([(_json(e.path), e.dtype, e.shape) for e in layout.entries])

    @classmethod
    def from_entries(cls, entries: Sequence[tuple[str, str, tuple[int, ...]]]) -> UpdateForm:
        """Return the form that an opening declares; raise ValueError if it is invalid."""
        try:
            paths = [tuple(json.loads(path)) for path, _, _ in entries]
        except (ValueError, TypeError, RecursionError):
            paths = [(None,)]
        if not all(type(key) in (str, int) for path in paths for key in path):
            raise ValueError("the layout must have texts and integers for keys")
        found = [Entry(path, shape, dtype) for path, (_, dtype, shape) in zip(paths, entries, strict=True)]
        if not {entry.dtype for entry in found} <= {*DTYPES.values()} or len({*paths}) < len(found):
            raise ValueError("the layout must have dtypes of numbers, and each entry once")
        form = cls(Layout(tuple(found)))
        if not form.layout.dim or form.n_leaves > MAX_LEAVES:
            raise ValueError(f"the layout must have floats, and at most {MAX_LEAVES * LEAF:,} bytes")
        return form

    @property
    def entries(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """The entries as an opening declares them."""
        return tuple((_json(e.path), e.dtype, e.shape) for e in self.layout.entries)

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each entry."""
        return [entry.size * itemsize_of(entry.dtype) for entry in self.layout.entries]

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes)

    @property
    def n_leaves(self) -> int:
        return -(-self.n_bytes // LEAF)

    def pieces(self, update: Any) -> list[Array]:
        """Return the bytes of each entry, in place where they are as they will be sent; ValueError on a misfit."""
        leaves = {path: moved(leaf, "cpu") for path, leaf in leaves_of(update).items()}
        if misfit := self.layout.misfit(Layout.of(leaves)):
            raise ValueError(f"The update is not of the round's layout: {misfit}.")
        flat = [np.ascontiguousarray(as_numpy(leaves[entry.path])).reshape(-1) for entry in self.layout.entries]
        return [one.astype(one.dtype.newbyteorder("<"), copy=False).view(np.uint8) for one in flat]

    def split(self, data: Array) -> list[Array]:
        """Split the bytes of an update by entry; raise ValueError for a truth value other than 0 and 1."""
        pieces = np.split(data, np.cumsum(self.sizes)[:-1])
        for entry, piece in zip(self.layout.entries, pieces, strict=True):
            if entry.dtype == "bool" and piece.max(initial=0) > 1:
                raise ValueError(f"{entry} holds bytes that are neither true nor false")
        return pieces

    def arrays(self, pieces: Sequence[Array]) -> list[Any]:
        """Return these bytes as flat arrays of numbers."""
        found = []
        for piece, entry in zip(pieces, self.layout.entries, strict=True):
            bfloat16 = entry.dtype == "bfloat16"
            numbers = piece.view(np.dtype("uint16" if bfloat16 else entry.dtype).newbyteorder("<"))
            found.append(bfloat16_array(numbers.copy()) if bfloat16 else numbers)
        return found

    def container(self, pieces: Sequence[Array], like: Any) -> Any:
        """Return these bytes as an update in the containers and the array type of another one."""
        flat = {e.path: as_numpy(one) for e, one in zip(self.layout.entries, self.arrays(pieces), strict=True)}
        return rebuild(like, lambda path, leaf: like_leaf(flat[path], leaf))

    def updates(self, pieces: Sequence[Array], reference: Sequence[Array] | None) -> Updates:
        """Return one client's update, to be measured from the reference."""
        return parse_updates([self.arrays(pieces)], reference=None if reference is None else self.arrays(reference))

    def measured(
        self, pieces: Sequence[Array], reference: Sequence[Array] | None, sketch: StreamingSketch, seed: int
    ) -> tuple[Floats, float]:
        """Return the sketch and the exact squared norm of an update minus the reference."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = sketch.measure(self.updates(pieces, reference), seed)
        return np.asarray(found.sketches[0]), float(found.squared_norms[0])

    def root(self, update: Any) -> bytes:
        """Return the root of a result or a reference, which needs no salt; zeros for none."""
        return bytes(32) if update is None else root_of(leaf_hashes(self.pieces(update), b""), self.n_bytes)


def _json(path: Path) -> str:
    return json.dumps(path, separators=(",", ":"), default=lambda key: None)


def part(pieces: Sequence[Array], first: int, count: int) -> bytes:
    """Return the bytes of consecutive leaves."""
    start, stop, at, found = first * LEAF, (first + count) * LEAF, 0, []
    for piece in pieces:
        found.append(piece[max(start - at, 0) : max(stop - at, 0)].tobytes())
        at += piece.size
    return b"".join(found)


def leaf_hash(data: bytes, salt: bytes) -> bytes:
    return hash_of(b"bcr leaf", data, key=salt)


def leaf_hashes(pieces: Sequence[Array], salt: bytes) -> tuple[bytes, ...]:
    """Return the hash of each leaf of an update."""
    n_leaves = -(-sum(piece.size for piece in pieces) // LEAF)
    return tuple(leaf_hash(part(pieces, number, 1), salt) for number in range(n_leaves))


def root_of(leaves: Sequence[bytes], n_bytes: int) -> bytes:
    """Return the Merkle root of leaf hashes and the byte count; leaves, nodes and root have different prefixes.

    >>> a, b, c = (hash_of(b"bcr leaf", bytes([n])) for n in range(3))
    >>> top = hash_of(b"bcr node", hash_of(b"bcr node", a, b), c)
    >>> root_of([a, b, c], 9) == hash_of(b"bcr root", (9).to_bytes(8, "little"), top)
    True
    """
    level = list(leaves)
    while len(level) > 1:
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [hash_of(b"bcr node", *pair) if len(pair) > 1 else pair[0] for pair in pairs]
    return hash_of(b"bcr root", n_bytes.to_bytes(8, "little"), *level)


class FetchedUpdate:
    """The bytes of one client's update, as far as they have come, in memory or in a temporary file of a folder."""

    def __init__(self, sent: Sketched, n_bytes: int, folder: Folder | None) -> None:
        self.sent, self.strikes, self.n_there, self.checked = sent, 0, 0, False
        self.patience = 2 * -(-len(sent.leaves) // WINDOW) + MAX_STRIKES
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

    def add(self, reply: Leaves | None) -> int:
        """Take leaves that were asked for, return their bytes; ProtocolError if they are false, or too slow to come."""
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
        self.patience -= 1
        require(self.complete or self.patience > 0, f"it sends its update too slowly: {of}")
        return len(data)


def _room(size: int, folder: Folder) -> Array:
    """Return writable memory in a temporary file without a name; ServerResourceError if there is no room."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            os.ftruncate(file.fileno(), size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error now, not a crash at some page
            return MappedFile(file.fileno(), size, "shared").memory(writable=True)
    except OSError as full:
        raise server_error(full, f"An update of {size:,} bytes can't be kept in {folder}") from full
