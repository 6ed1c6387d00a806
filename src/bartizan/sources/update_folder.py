"""Updates in a folder of the server's own, mapped from there, which a server that was killed finds again."""

from __future__ import annotations

import re
import secrets
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bartizan._util import jsonl
from bartizan._util.regular_files import open_regular
from bartizan._util.text import quoted, short
from bartizan._util.types import Array
from bartizan.errors import ADVICE, server_error
from bartizan.records import CorruptFileError, locked
from bartizan.sources.arriving import StoredUpdate
from bartizan.updates.files import LocalFiles, create_update
from bartizan.updates.layout import Unreadable, is_tensor, rebuild

JOURNAL = "updates.jsonl"
OWN_FILE = re.compile(r"[0-9a-f]{16}\.safetensors|\.[0-9a-f]{16}\.safetensors\.[0-9a-f]{16}\.part")
GROWTH = 2**20  # bytes of lines about updates that may have been replaced
MAX_ID = 2**128
Row = Mapping[str, Any]


class KeptUpdate(NamedTuple):
    """An update in a folder."""

    file: str
    shape: str
    """Its containers as a literal of Python, with texts in place of arrays."""


class UpdateFolder:
    """The updates of a buffer or a round in one folder: files of their numbers, and a journal with a line for each.

    A file of numbers counts once its line is written, and `rewrite` replaces all lines at once. So a process that is
    killed leaves every update that was added, and no half of one. `rows` has the lines that were found.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / JOURNAL
        with ExitStack() as opening:
            opening.enter_context(locked(folder))  # until it is closed, or the process ends
            advice = "Put back a copy, or delete its folder to begin anew."
            self.is_new = not self._path.exists()
            found = jsonl.Lines([], 0, "") if self.is_new else jsonl.read(self._path, dict, advice=advice)
            self.rows: list[Row] = list(found.rows)
            self.size = self._rewritten_size = found.size
            self._files = {row["file"] for row in self.rows if row.get("file")}
            self._locked: ExitStack | None = opening.pop_all()

    @property
    def has_grown(self) -> bool:
        """Whether most lines may be about updates that were replaced."""
        return self.size > 2 * self._rewritten_size + GROWTH

    def close(self, *, clear: bool = False) -> None:
        """Unlock the folder; `clear` removes its updates."""
        if self._locked is None:
            return
        if clear:
            self._path.unlink(missing_ok=True)
            self._files = set()
            self.sweep()
        self._locked.close()
        self._locked = None

    def sweep(self) -> None:
        """Remove files that no line is about, which a process that was killed has left; files of others stay."""
        for path in self.folder.iterdir():
            if OWN_FILE.fullmatch(path.name) and path.name not in self._files:
                path.unlink()

    def check_id(self, client: Any) -> None:
        """Raise TypeError unless a file can name this client; RuntimeError if the folder is closed."""
        self._check_open()
        a_text = type(client) is str and client == client.encode(errors="replace").decode()
        if not a_text and not (type(client) is int and abs(client) < MAX_ID):
            raise TypeError(f"A client's id must be a text or a whole number with folder=; got {quoted(client, 60)}.")

    def keep(self, stored: StoredUpdate, client: Any) -> tuple[StoredUpdate, KeptUpdate | None]:
        """Write an update's numbers and return it as it is in the folder; it counts from `add` on.

        None for one whose containers can't be written.
        """
        try:
            shape = _literal(_outline(stored.update.plain, count()))
        except TypeError as unfit:
            return StoredUpdate(Unreadable(str(unfit)), stored.size, reason=str(unfit)), None
        name = f"{secrets.token_hex(8)}.safetensors"
        leaves = {str(at): leaf for at, leaf in enumerate(stored.update.leaves.values())}
        with self._naming(client):
            with create_update(self.folder / name, leaves) as built:
                for at, leaf in leaves.items():
                    built[at][...] = leaf
            return replace(stored, update=self._opened(name, shape)), KeptUpdate(name, shape)

    def add(self, kept: KeptUpdate | None, **about: Any) -> Row:
        """Write the line about an update, which counts from now on, and return it. Not thread-safe."""
        row = {**({} if kept is None else kept._asdict()), **about}
        if kept is not None:
            self._files.add(kept.file)
        try:
            with self._naming(about["client"]), jsonl.Appender(self._path, self.size) as journal:
                journal.append(row)
        except BaseException:
            self.remove(row)
            raise
        self.size = self._path.stat().st_size
        return row

    def rewrite(self, rows: Iterable[Row]) -> None:
        """Replace all lines, all or nothing, then remove other files; their arrays may still be read."""
        self._check_open()
        rows = list(rows)
        self.size = self._rewritten_size = jsonl.rewrite(self._path, rows)
        self._keep_only({row["file"] for row in rows if "file" in row})

    def remove(self, row: Row) -> None:
        """Remove the numbers of an update that another replaced, whose arrays may still be read."""
        self._keep_only(self._files - {row.get("file")})

    def opened(self, row: Row) -> tuple[Any, float]:
        """Return the update of a line and its data size."""
        with self.reading():
            return self._opened(row["file"], row["shape"]), float(row["size"])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Name the folder in errors about what it holds."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, OSError) as error:
            raise CorruptFileError(
                f"{self.folder} can't be read: {short(error)}. Put back a copy, or delete it to begin anew."
            ) from None

    def _check_open(self) -> None:
        if self._locked is None:
            raise RuntimeError(f"{self.folder} was closed, and may be another process's by now.")

    def _keep_only(self, files: set[str]) -> None:
        for name in self._files - files:
            with suppress(OSError):
                (self.folder / name).unlink()
        self._files = files

    def _opened(self, name: str, shape: str) -> Any:
        if not OWN_FILE.fullmatch(name):
            raise ValueError(f"{quoted(name, 60)} is not a file of this folder")
        with open_regular(self.folder / name) as file:
            leaves = LocalFiles(exposed=False).tensors(file)

        def leaf_of(path: Any, leaf: str) -> Any:
            kind, at = leaf.split()
            return _in_memory(leaves[at], kind == "tensor")

        return rebuild(literal_eval(shape), leaf_of)

    @contextmanager
    def _naming(self, client: Any) -> Iterator[None]:
        """Raise ServerResourceError, with the client and the folder, where there is no room."""
        try:
            yield
        except OSError as full:
            if full.errno not in ADVICE:
                raise
            raise server_error(full, f"client {quoted(client, 60)}'s update can't be kept in {self.folder}") from full


def _outline(node: Any, numbers: Iterator[int]) -> Any:
    """Return the containers of an update, with a text in place of each array."""
    if isinstance(node, Mapping):
        return {key: _outline(child, numbers) for key, child in node.items()}
    if isinstance(node, (list, tuple)):
        return (list if isinstance(node, list) else tuple)(_outline(child, numbers) for child in node)
    return f"{'tensor' if is_tensor(node) else 'array'} {next(numbers)}"


def _literal(outline: Any) -> str:
    """Return these containers as a literal of Python; TypeError where their keys have none, or they are too deep."""
    try:
        written = repr(outline)
        if literal_eval(written) == outline:
            return written
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    raise TypeError("it can't be kept in a folder: wanted texts or numbers for keys, and fewer than 100 levels")


def _in_memory(leaf: Any, tensor: bool) -> Any:
    if not tensor or is_tensor(leaf):
        return leaf
    import torch

    return torch.from_numpy(np.asarray(_Writable(leaf)))


class _Writable:
    """An array that is flagged as writable, since torch warns otherwise; nothing writes to it."""

    def __init__(self, array: Array) -> None:
        self.array, described = array, array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}
