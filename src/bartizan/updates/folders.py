"""Updates in several files: shards with an index, and folders as Hugging Face's libraries write them.

A folder is local or in a store; file names and the index come from an untrusted source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bartizan._util.regular_files import open_regular, read_regular
from bartizan._util.text import quoted
from bartizan.errors import raise_if_exhausted
from bartizan.updates.headers import MOST_HEADER, read_json_object
from bartizan.updates.layout import MAX_NODES

if TYPE_CHECKING:
    from bartizan.updates.files import LocalFiles

INDEX = ".index.json"
KNOWN = ".npy, .safetensors, .safetensors.index.json and folders of these"
USUAL = ("adapter_model.safetensors", "model.safetensors")
"""Files that are the whole update where a folder holds them; the first is written by peft."""
MOST_SHARDS = 1024
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True)
class Folder:
    """A folder of files on this machine; errors name the file that they are about."""

    path: Path
    files: LocalFiles

    def names(self) -> list[str]:
        """Return the names of the files in the folder."""
        return sorted(one.name for one in self.path.iterdir())

    def local(self, names: Sequence[str]) -> list[Path]:
        """Return where these files are on this machine."""
        return [self.path / name for name in names]

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file; ValueError if it has more than `most` bytes."""
        (path,) = self.local([name])
        with naming(name):
            return read_regular(path, most)

    def tensors(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the arrays of each of these `.safetensors` files, mapped; ValueError if one is not sound."""
        most = max(MOST_HEADER // len(names), 2**16)  # bytes of the header of each file of an update
        for name, path in zip(names, self.local(names), strict=True):
            with naming(name), open_regular(path) as file:
                arrays = self.files.tensors(file, most)
            yield arrays


def open_folder(folder: Folder) -> dict[str, Any]:
    """The arrays of the one update in a folder: of its index, its usual file, or all of its `.safetensors` files."""
    names = folder.names()
    indices = sorted(name for name in names if name.endswith(".safetensors" + INDEX))
    if len(indices) > 1:
        raise ValueError(f"it holds several index files: {_listed(indices)}; name the one that is meant")
    if indices:
        return open_index(folder, indices[0])
    usual = next((name for name in USUAL if name in names), None)
    shards = [usual] if usual else sorted(name for name in names if name.endswith(".safetensors"))
    if not shards:
        raise ValueError(f"it is a folder without .safetensors files; it holds {_listed(names) or 'nothing'}")
    _check_complete(shards)
    return _joined(folder, shards)


def open_index(folder: Folder, name: str) -> dict[str, Any]:
    """The arrays of the shards that an index file names; each must be in the shard that the index gives for it."""
    text = folder.read(name, MOST_HEADER)
    with naming(name):
        places = _read_index(text)
    arrays = _joined(folder, list(dict.fromkeys(places.values())), places)
    missing = next((name for name in places if name not in arrays), None)
    if missing is not None:
        raise ValueError(f"{quoted(missing)} of its index is not in {quoted(places[missing])}")
    return arrays


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Raise an error about one file of several as a ValueError that names the file; one of the server as it is."""
    try:
        yield
    except (ValueError, OSError) as unsound:
        raise_if_exhausted(unsound, f"{quoted(name)} can't be read")
        said = (unsound.strerror or unsound) if isinstance(unsound, OSError) else unsound
        raise ValueError(f"{quoted(name)}: {said}") from None


def _read_index(text: bytes) -> dict[str, str]:
    """The name of the file that holds each array."""
    places = read_json_object(text.strip(), "index").get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        raise ValueError("its index must have a weight_map from names of arrays to names of files")
    for shard in places.values():
        if not re.fullmatch(r"[\w+-][\w .+-]*\.safetensors", shard):
            raise ValueError(f"its index names the file {quoted(shard)}; wanted a .safetensors file beside the index")
    return places


def _joined(folder: Folder, shards: list[str], places: dict[str, str] | None = None) -> dict[str, Any]:
    if len(shards) > MOST_SHARDS:
        raise ValueError(f"it has {len(shards):,} files of arrays; at most {MOST_SHARDS:,} are read")
    arrays: dict[str, Any] = {}
    for shard, held in zip(shards, folder.tensors(shards), strict=True):
        for name, array in held.items():
            if name in arrays:
                raise ValueError(f"{quoted(name)} is in two files, also in {quoted(shard)}")
            if places is not None and places.get(name) != shard:
                raise ValueError(f"{quoted(name)} is in {quoted(shard)}, and the index does not say so")
            arrays[name] = array
        if len(arrays) > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES:,} arrays")
    return arrays


def _check_complete(shards: list[str]) -> None:
    """Files numbered "00002-of-00003" must all be there."""
    for shard in shards:
        if (numbered := SHARD.fullmatch(shard)) and int(numbered[3]) != len(shards):
            raise ValueError(f"{quoted(shard)} is one of {int(numbered[3])} files, and the folder has {len(shards)}")


def _listed(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(quoted(name, 60) for name in names[:most]) + more
