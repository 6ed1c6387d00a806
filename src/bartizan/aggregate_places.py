"""The places that `bartizan aggregate` reads and writes, and the names of its clients.

Whoever chose a file's name chose data: it is never parsed as an address, and no found name changes that of another
client.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bartizan._util.redact import without_secrets
from bartizan._util.regular_files import read_regular
from bartizan._util.text import quoted, visible
from bartizan.measure.client_sizes import is_size
from bartizan.updates.files import is_address
from bartizan.updates.headers import read_json_object
from bartizan.updates.layout import Unreadable
from bartizan.updates.places import StoredPlace
from bartizan.updates.stores import explained, filesystem, matching

Place: TypeAlias = Path | StoredPlace | str
"""A path, an object that a store listed, or an address that the caller wrote."""
SUFFIXES = (".safetensors.index.json", ".safetensors", ".npy")
MAX_SIZES_BYTES = 2**26


@dataclass(frozen=True)
class Pattern:
    """A path, an address or a glob as the caller wrote it, the parts of its path, and the places that it names."""

    text: str
    parts: tuple[str, ...]
    places: tuple[Place, ...]

    @classmethod
    def of(cls, text: str, timeout: float) -> Pattern:
        """List what a glob matches, sorted; a name without wildcards stands for itself.

        Whether it is an address is decided by this text alone. A local file that is called like the glob is one of
        those that it names: a shell may have put the name there.
        """
        if is_address(text):
            if not is_wild(text) or text.startswith("http"):
                return cls(text, _parts(without_secrets(text)), (text,))
            path, stored = matching(text, timeout)
            return cls(text, _parts(path), tuple(stored))
        found = set(glob.glob(text)) if is_wild(text) else {text}
        found |= {text} if os.path.lexists(text) else set()
        return cls(text, _parts(str(Path(text))), tuple(map(Path, sorted(found))))

    def whole_name(self, place: Place) -> str:
        """The whole path or address of a place, without secrets."""
        if isinstance(place, Path) or (isinstance(place, StoredPlace) and without_secrets(self.text) == self.text):
            return visible(str(place))
        return visible(without_secrets(str(place)))

    def parts_of(self, place: Place) -> tuple[str, ...]:
        if isinstance(place, str):
            return self.parts
        return _parts(place.path if isinstance(place, StoredPlace) else str(place))


def client_names(patterns: Sequence[Pattern]) -> dict[Place, str]:
    """The clients that patterns name, each with its name: the parts of its path where the patterns are wild or differ.

    A suffix that all patterns end in is left out. No two names are the same.

    >>> list(client_names([Pattern("r/*/x.npy", ("r", "*", "x.npy"), (Path("r/ann/x.npy"),))]).values())
    ['ann']
    """
    found: dict[Place, Pattern] = {}
    for pattern in patterns:
        for place in pattern.places:
            found.setdefault(place, pattern)
    kept, suffix = _named_by([pattern.parts for pattern in patterns])
    names = {}
    for place, pattern in found.items():
        parts = pattern.parts_of(place)
        named = kept and len(parts) == len(pattern.parts)
        name = visible("/".join(parts[i] for i in kept).removesuffix(suffix)) if named else pattern.whole_name(place)
        names[place] = name or r"\empty"
    if len(set(names.values())) < len(names):  # of addresses that differ in what is not shown
        names = {place: f"{number}: {name}" for number, (place, name) in enumerate(names.items(), start=1)}
    return names


def sizes_in(path: str, names: Sequence[str], whole_names: Sequence[str]) -> tuple[list[float], dict[int, Unreadable]]:
    """The sizes of the clients in a JSON file, and why those that it gives none can't take part.

    A key is a client's name, its whole name, or its name without a suffix, if no other client has the same.
    """
    content = read_regular(path, MAX_SIZES_BYTES)
    try:
        sizes = read_json_object(content.strip(), "content")
    except ValueError as wrong:
        raise ValueError(f"{path} must be a JSON object from clients' names to sizes: {wrong}.") from None
    for name, size in sizes.items():
        if not is_size(size):
            raise ValueError(f"{path}: the size of {quoted(name)} must be a positive number, got {quoted(size, 60)}.")
    stems = list(map(_stem, names))
    sharing, taken = Counter(stems), set(names)
    given, lacking = [1.0] * len(names), dict[int, Unreadable]()
    for i, (name, whole, stem) in enumerate(zip(names, whole_names, stems, strict=True)):
        keys = [name, *(key for key in (whole, stem) if key not in taken)]
        key = next((key for key in keys if key in sizes), None)
        if key is None:
            lacking[i] = Unreadable(f"{path} gives no size for it")
        elif key == stem and sharing[stem] > 1 and key != name:
            lacking[i] = Unreadable(f"{path} gives a size for {quoted(stem)}, which {sharing[stem]} clients are called")
        else:
            given[i] = float(sizes[key])
    return given, lacking


def refuse_overwriting(
    outputs: Mapping[str, str | None], inputs: Mapping[str, str | None], patterns: Sequence[Pattern]
) -> None:
    """Raise ValueError if an output would replace another output or what is read.

    A link among the files that a glob finds is not followed: it is not the caller's, and outputs are renamed into
    place, so that what it leads to is read as it was.
    """
    known = {_location(place): option for option, place in inputs.items() if place is not None}
    for pattern in patterns:
        links = not is_wild(pattern.text)
        known |= dict.fromkeys((_location(place, links) for place in pattern.places), "one of the clients")
    for option, output in outputs.items():
        if output is None:
            continue
        fs, path = _location(output)
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            if (what := known.get((fs, "/".join(parts[:end])))) is not None:
                raise ValueError(f"{option} {told(output)} is, or lies in, {what}. Take another name.")
        known[fs, path] = option


def folder_hint(patterns: Sequence[Pattern]) -> str:
    """A question that may end an error, where all that was given is one folder."""
    (only, *others) = patterns
    if others or is_wild(only.text) or only.text.endswith(SUFFIXES):
        return ""
    if not is_address(only.text) and not Path(only.text).is_dir():
        return ""
    return f" A folder is one client's update. Did you mean {told(only.text.rstrip('/') + '/*')}?"


def told(text: str) -> str:
    """What the caller wrote as a path, an address or a glob, for messages."""
    return quoted(without_secrets(text))


def is_wild(text: str) -> bool:
    return any(mark in text for mark in "*?[")


def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.rstrip("/").split("/"))


def _named_by(patterns: Sequence[tuple[str, ...]]) -> tuple[list[int], str]:
    """Which parts of the paths are the clients' names, and the suffix that is left out; none if patterns do not fit."""
    if len(set(map(len, patterns))) != 1 or any("**" in part for parts in patterns for part in parts):
        return [], ""
    columns = [set(column) for column in zip(*patterns, strict=True)]
    kept = [i for i, column in enumerate(columns) if len(column) > 1 or any(map(is_wild, column))]
    suffixes = [suffix for suffix in SUFFIXES if all(part.endswith(suffix) for part in columns[-1])]
    return kept, suffixes[0] if suffixes and kept and kept[-1] == len(columns) - 1 else ""


def _stem(name: str) -> str:
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(suffix)


def _location(place: Place, links: bool = True) -> tuple[Any, str]:
    """The filesystem and the path of a place, the same for all ways to write it; a link at its end may be followed."""
    fs: Any = None
    path = place.path if isinstance(place, StoredPlace) else str(place)
    if isinstance(place, StoredPlace):
        fs = place.fs
    elif isinstance(place, str) and is_address(place):
        with explained(place, "used"):
            fs, path = filesystem(place)
    if fs is not None and "file" not in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
        return fs, path.rstrip("/")
    if links:
        return None, os.path.realpath(path)
    folder, name = os.path.split(os.path.abspath(path))
    return None, os.path.join(os.path.realpath(folder), name)
