"""Save and load the state of a run after its last complete round."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, BinaryIO

import numpy as np
from flwr.app import Array as FlowerArray

from bartizan._util import schema
from bartizan._util.atomic import write_whole
from bartizan._util.regular_files import open_regular
from bartizan._util.schema import LARGEST, Between
from bartizan._util.text import quoted, short
from bartizan.flower.replies import STYPE, Model, as_record
from bartizan.judge.reputation import Reputation
from bartizan.records import CorruptFileError

NAME = "checkpoint.npz"
ABOUT = "about.json"
ADVICE = "Put back a copy, or take another folder to begin again."


@dataclass(frozen=True)
class About:
    """The part of a checkpoint's file that is JSON: all but the arrays."""

    round: Annotated[int, Between(1, 10**9)]
    seconds: Annotated[float, Between(0.0, LARGEST)]
    history: tuple[float, ...]
    reputation: dict[str, dict[str, Any]]
    settings: dict[str, str]
    names: tuple[str, ...]
    """Names of the arrays, which are stored under numbers, since not every name can be that of a zip entry."""


@dataclass(frozen=True)
class Saved:
    """The state of a run after its last complete round."""

    round: int = 0
    seconds: float = 0.0
    history: tuple[float, ...] = ()
    reputation: Reputation = field(default_factory=Reputation)
    settings: Mapping[str, str] = field(default_factory=dict)
    """The rule, sketch and sizes, which must not change between its rounds."""
    arrays: Mapping[str, FlowerArray] = field(default_factory=dict)
    """The model, as Flower sends it."""


def save(folder: Path, saved: Saved) -> None:
    """Write the checkpoint of a folder, all or nothing."""
    about: dict[str, Any] = {"round": saved.round, "seconds": saved.seconds, "history": list(map(float, saved.history))}
    about |= {"reputation": saved.reputation.as_dict(), "settings": dict(saved.settings), "names": list(saved.arrays)}

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:  # it has a checksum of every entry
            archive.writestr(ABOUT, json.dumps(about))
            for i, array in enumerate(saved.arrays.values()):
                archive.writestr(f"{i}.npy", array.data)

    write_whole(folder / NAME, write, settle=True)


def load(folder: Path, model: Model, settings: Mapping[str, str]) -> Saved:
    """Read the checkpoint of a folder, if any; raise ValueError if its model or settings are others."""
    path = folder / NAME
    try:
        with open_regular(path) as file:
            saved = _saved(file)
    except FileNotFoundError:
        return Saved()
    except Exception as wrong:  # any content is possible
        why = (wrong.strerror if isinstance(wrong, OSError) else str(wrong)) or type(wrong).__name__
        why = short(why).rstrip(".")
        raise CorruptFileError(f"{path} is not what RobustStrategy writes: {why}. {ADVICE}") from None
    advice = "Take another folder, or delete that one."
    if model.layout != Model.of(saved.arrays).layout:
        raise ValueError(f"{folder} holds a run of another model. {advice}")
    for key, value in settings.items():
        if (given := saved.settings.get(key)) != value:
            raise ValueError(f"{folder} holds a run with {key} {short(given, 200)}, not {value}. {advice}")
    return saved


def _saved(file: BinaryIO) -> Saved:
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")  # a few bytes could become gigabytes
        most = os.fstat(file.fileno()).st_size
        if any(max(entry.file_size, entry.compress_size) > most for entry in archive.infolist()):
            raise ValueError("an entry claims more bytes than the file has")  # `read` would allocate them
        about = schema.parse(About, json.loads(archive.read(ABOUT)))  # `read` compares the checksum
        if len(set(about.names)) < len(about.names):
            raise ValueError("names holds one name twice")
        data = {name: archive.read(f"{i}.npy") for i, name in enumerate(about.names)}
    arrays = Model.of({name: SimpleNamespace(stype=STYPE, data=one) for name, one in data.items()}).arrays
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"array {name!r} holds NaN or infinite numbers")
    reputation = Reputation.from_dict(about.reputation, _node_id)
    return Saved(about.round, about.seconds, about.history, reputation, about.settings, as_record(arrays))


def _node_id(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) <= 20 and int(name) < 2**64):
        raise ValueError(f"reputation must be by node ids, got {quoted(name, 60)}")
    return int(name)
