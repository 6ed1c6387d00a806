"""Surfaces: folders of shards with an index, read locally and from a store; and a store that answers wrongly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
from safetensors.numpy import load, save

import bartizan as bz
from bartizan import files
from bartizan.updates import stores
from fuzz.draw import Draw
from fuzz.mutate import mutated_bytes, mutated_json
from fuzz.surfaces import ACCEPTED, COMPARED, RefusedError, Surface, documented, fair, require

INDEX = "model.safetensors.index.json"
ARRAYS = {
    "a": np.arange(6, dtype=np.float32),
    "n": np.array(3),
    "b": np.ones((2, 2), np.float16),
    "c": np.full(5, 2.0, np.float32),
}
NAMES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
SHARDS = {
    NAMES[0]: save({name: ARRAYS[name] for name in "an"}),
    NAMES[1]: save({name: ARRAYS[name] for name in "bc"}),
}
PLACES = {"a": NAMES[0], "n": NAMES[0], "b": NAMES[1], "c": NAMES[1]}
OTHER_NAMES = ["../x.safetensors", "/etc/passwd", ".safetensors", "x" * 300 + ".safetensors", "a/b.safetensors", "é"]


class Folders:
    """One folder of a client in a local folder and in fsspec's memory: both are read alike, as safetensors reads them.

    What is not accepted is refused, by both.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.fs = folder / "client", fsspec.filesystem("memory")

    def case(self, data: bytes) -> str:
        draw = Draw(data)
        content, valid = self._content(draw)
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self.fs.store.clear()
        self.fs.pipe_file("/client/README.md", b"")
        for name, one in content.items():
            (self.root / name).write_bytes(one)
            self.fs.pipe_file(f"/client/{name}", one)
        local, there = _opened(self.root), _opened("memory://client/")
        require((local is None) == (there is None), f"local {local is not None}, in a store {there is not None}")
        theirs = _read_by_others(content)
        if local is None or there is None:
            require(not valid, "a valid folder was refused")
            raise RefusedError
        require(list(local) == list(there), "other names in a store than in a folder")
        for name, array in local.items():
            require(np.asarray(there[name]).tobytes() == np.asarray(array).tobytes(), f"{name!r} differs in a store")
            if theirs is not None:
                require(np.asarray(array).tobytes() == theirs[name].tobytes(), f"{name!r} has other numbers")
        return ACCEPTED if theirs is None else COMPARED

    def _content(self, draw: Draw) -> tuple[dict[str, bytes], bool]:
        """Return the files, and whether they are as others write them."""
        kind = draw.below(6)
        content = dict(SHARDS)
        index: Any = {"metadata": {"total_size": 60}, "weight_map": dict(PLACES)}
        if kind == 1:
            name = draw.pick(list(PLACES))
            index["weight_map"][name] = draw.pick([*OTHER_NAMES, *NAMES, INDEX])
        elif kind == 2:
            name = draw.pick(NAMES)
            content[name] = mutated_bytes(content[name], draw)
        elif kind == 3:
            del content[draw.pick(NAMES)]
        text = mutated_json(index, draw) if kind == 4 else b"" if kind == 5 else json.dumps(index).encode()
        valid = kind in (0, 5)
        if text and draw.chance(6):
            text, valid = mutated_bytes(text, draw), False
        return content | ({INDEX: text} if text else {}), valid


def _opened(place: Any) -> dict[str, Any] | None:
    try:
        with documented(ValueError):
            return files.open_update(place)
    except RefusedError:
        return None


def _read_by_others(content: dict[str, bytes]) -> dict[str, Any] | None:
    """Return the arrays by safetensors itself; None if it refuses a shard."""
    try:
        return {name: array for shard in NAMES for name, array in load(content[shard]).items()}
    except Exception:  # another reader may raise any error
        return None


class Answers(fsspec.AbstractFileSystem):
    """A store whose object of client 0 is answered wrongly from some request on."""

    protocol = "hostile"
    cachable = False
    content: dict[str, bytes]
    wrong: Callable[[str, Any], Any]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("hostile://").strip("/")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if path not in Answers.content:
            raise FileNotFoundError(path)
        about = {"name": path, "size": len(Answers.content[path]), "type": "file", "ETag": "1"}
        return self._answered(path, "info", about)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        return self._answered(path, "bytes", Answers.content[path][start:end])

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        raise NotImplementedError

    @staticmethod
    def _answered(path: str, kind: str, answer: Any) -> Any:
        return Answers.wrong(kind, answer) if path == "0.safetensors" else answer


def _raised(kind: type[Exception]) -> Callable[[Any], Any]:
    def answer(right: Any) -> Any:
        raise kind("a store's own words " * 50)

    return answer


ERRORS = [OSError, FileNotFoundError, PermissionError, KeyError, RuntimeError, TimeoutError, UnicodeError, TypeError]
WRONG: dict[str, list[Callable[[Any], Any]]] = {
    "bytes": [
        lambda right: right[:-1],
        lambda right: right + b"\0",
        lambda right: right * 1000 + b"\0",
        lambda right: None,
        lambda right: 7,
        lambda right: [None] * (len(right) + 1),
        *map(_raised, ERRORS),
    ],
    "info": [
        lambda right: right | {"ETag": "2"},
        lambda right: right | {"size": right["size"] + 1},
        lambda right: right | {"size": None},
        lambda right: right | {"size": -1},
        lambda right: right | {"size": 2**70},
        lambda right: right | {"size": "60"},
        lambda right: right | {"type": "directory"},
        lambda right: {},
        lambda right: None,
        *map(_raised, ERRORS),
    ],
}


class Store:
    """Four clients in a store; the first is answered wrongly at some request, and must be quarantined alone."""

    def __init__(self, folder: Path) -> None:
        fsspec.register_implementation("hostile", Answers, clobber=True)
        Answers.content = {f"{m}.safetensors": save({"w": ARRAYS["a"] + m, "n": np.array(m)}) for m in range(4)}
        self.case(bytes([15]))  # compiles the kernels

    def case(self, data: bytes) -> str:
        draw = Draw(data)
        at, seen, done = 1 + draw.below(16), [0], [False]
        rule = draw.pick([bz.Mean(), bz.GeometricMedian()])
        sketch = draw.pick(["rotated", "exact"])
        memory = draw.pick([None, "64 MiB"])

        def wrong(kind: str, answer: Any) -> Any:
            seen[0] += 1
            if seen[0] != at:
                return answer
            done[0] = True
            return draw.pick(WRONG[kind])(answer)

        Answers.wrong = staticmethod(wrong)
        updates = [f"hostile://{m}.safetensors" for m in range(4)]
        with patch.object(stores, "ATTEMPTS", 1):  # the time between attempts is not tested here
            out = bz.aggregate(updates, rule, sketch=sketch, seed=1, memory=memory)
        require(set(out.quarantined) == ({0} if done[0] else set()), f"request {at}: {out.quarantined}")
        require(all(map(fair, out.quarantined.values())), f"reasons: {out.quarantined}")
        values = np.array([ARRAYS["a"] + m for m in range(4) if m not in out.quarantined])
        same = bz.aggregate(values, rule, sketch=sketch, seed=1)
        require(np.array_equal(out.update["w"], same.update) or sketch == "exact", "not the update of the others")
        require(np.allclose(out.update["w"], same.update, rtol=1e-5), "far from the update of the others")
        if done[0]:
            raise RefusedError
        return COMPARED


def folders(folder: Path) -> Surface:
    return Surface(Folders(folder).case, [bytes([kind, *range(30)]) for kind in range(6)])


def store(folder: Path) -> Surface:
    seeds = [bytes([15, rule, sketch, memory]) for rule in (0, 1) for sketch in (0, 1) for memory in (0, 1)]
    seeds += [bytes([at, 0, 0, 0, how]) for at in range(8) for how in range(20)]
    return Surface(Store(folder).case, seeds, length=12)
