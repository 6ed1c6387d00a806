"""Updates in a folder of the server's own, mapped from there, which a server that was killed finds again."""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bartizan._util.atomic import write_whole
from bartizan._util.regular_files import open_regular
from bartizan._util.text import quoted, short
from bartizan._util.types import Array
from bartizan.errors import ADVICE, server_error
from bartizan.records import CorruptFileError, locked
from bartizan.sources.arriving import StoredUpdate
from bartizan.updates.files import LocalFiles, create_update
from bartizan.updates.layout import Unreadable, is_tensor

STATE = "state.json"
CONTAINERS = {"dict": dict, "ordered": OrderedDict, "list": list, "tuple": tuple}


class KeptUpdate(NamedTuple):
    """An update in a folder."""

    file: str
    shape: Any
    """Its containers, as JSON, with numbers in place of arrays."""


class UpdateFolder:
    """The updates of a buffer or a round in one folder: their numbers, and of each a line about it.

    A file of numbers counts once the line about it is written, in the order of these lines; `state` is written after
    them. So a process that is killed leaves every update that was added, and no half of one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._locked = ExitStack()
        self._locked.enter_context(locked(folder))  # until it is closed, or the process ends
        self._next = 1 + max((int(path.stem) for path in self._lines()), default=0)

    def close(self, *, clear: bool = False) -> None:
        """Unlock the folder; `clear` removes its updates."""
        if clear:
            for path in self._lines():
                self.remove(path.stem)
        self._locked.close()

    @staticmethod
    def check_id(client: Any) -> None:
        """Raise TypeError unless a file can name this client."""
        if type(client) not in (str, int):
            raise TypeError(f"A client's id must be a text or a whole number with folder=; got {quoted(client, 60)}.")

    def keep(self, stored: StoredUpdate, client: Any) -> tuple[StoredUpdate, KeptUpdate | None]:
        """Write an update's numbers and return it as it is in the folder; it counts from `add` on.

        None for one that can't be read, or whose containers can't be written.
        """
        if stored.layout is None:
            return stored, None
        leaves = list(stored.update.leaves.values())
        try:
            shape = _described(stored.update.plain, iter(range(len(leaves))), leaves)
        except TypeError as unfit:
            return StoredUpdate(Unreadable(str(unfit)), stored.size, reason=str(unfit)), None
        name = f"{secrets.token_hex(8)}.safetensors"
        try:
            with create_update(self.folder / name, {str(at): leaf for at, leaf in enumerate(leaves)}) as built:
                for at, leaf in enumerate(leaves):
                    built[str(at)][...] = leaf
            return replace(stored, update=self._opened(name, shape)), KeptUpdate(name, shape)
        except OSError as full:
            if full.errno not in ADVICE:
                raise
            raise server_error(full, f"client {quoted(client, 60)}'s update can't be kept in {self.folder}") from full

    def add(self, kept: KeptUpdate, **about: Any) -> str:
        """Write the line about an update, which counts from now on; return its number in order. Not thread-safe."""
        number = f"{self._next:016d}"
        line = {"file": kept.file, "shape": kept.shape, **about}
        write_whole(self.folder / f"{number}.json", json.dumps(line))
        self._next += 1
        return number

    def remove(self, number: str) -> None:
        """Remove an update, whose arrays may still be read."""
        line = self.folder / f"{number}.json"
        with suppress(FileNotFoundError):
            name = json.loads(line.read_text())["file"]
            line.unlink()
            (self.folder / name).unlink()

    def updates(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield number, update and line of all updates, in order; remove files that no line is about."""
        lines = {}
        for path in self._lines():
            with _naming(path):
                lines[path.stem] = json.loads(path.read_text())
        named = {one["file"] for one in lines.values()}
        for path in self.folder.glob("*.safetensors"):
            if path.name not in named:
                path.unlink()
        for number, about in lines.items():
            with _naming(self.folder / f"{number}.json"):
                update = self._opened(about["file"], about["shape"])
            yield number, update, about

    def state(self) -> dict[str, Any] | None:
        """Return what `save` wrote last; None in a new folder."""
        path = self.folder / STATE
        if not path.exists():
            return None
        with _naming(path):
            return dict(json.loads(path.read_text()))

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the state, all or nothing."""
        write_whole(self.folder / STATE, json.dumps(state))

    def _lines(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.json") if path.stem.isdecimal())

    def _opened(self, name: str, shape: Any) -> Any:
        with open_regular(self.folder / Path(name).name) as file:
            return _built(shape, LocalFiles(exposed=False).tensors(file))


def _described(node: Any, numbers: Iterator[int], leaves: list[Any]) -> Any:
    """Return the containers of an update as JSON; TypeError where a key is neither a text nor a number."""
    if isinstance(node, Mapping):
        if not all(type(key) in (str, int) for key in node):
            raise TypeError("its keys must be texts or whole numbers to be kept in a folder")
        kind = "ordered" if isinstance(node, OrderedDict) else "dict"
        return [kind, [[key, _described(child, numbers, leaves)] for key, child in node.items()]]
    if isinstance(node, (list, tuple)):
        kind = "list" if isinstance(node, list) else "tuple"
        return [kind, [_described(child, numbers, leaves) for child in node]]
    at = next(numbers)
    return ["tensor" if is_tensor(leaves[at]) else "array", at]


def _built(shape: Any, numbers: Mapping[str, Any]) -> Any:
    kind, content = shape
    if kind in ("tensor", "array"):
        leaf = numbers[str(content)]
        if kind == "array" or is_tensor(leaf):
            return leaf
        import torch

        return torch.from_numpy(np.asarray(_Writable(leaf)))
    if kind in ("dict", "ordered"):
        return CONTAINERS[kind]((key, _built(child, numbers)) for key, child in content)
    return CONTAINERS[kind](_built(child, numbers) for child in content)


class _Writable:
    """An array that is flagged as writable, since torch warns otherwise; nothing writes to it."""

    def __init__(self, array: Array) -> None:
        self.array, described = array, array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


class _naming:
    """Add the name of the unreadable file to an error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, (ValueError, KeyError, TypeError, OSError)):
            raise CorruptFileError(
                f"{self.path} can't be read: {short(error)}. Put back a copy, or delete its folder to begin anew."
            ) from None
