"""The places that `bartizan aggregate` reads and writes, and the names of its clients.

Whoever chose a file's name chose data: it is never parsed as an address, and no found name changes that of another
client.
"""

from __future__ import annotations

import glob
import os
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
from bartizan.updates.stores import StoredPlace, explained, filesystem, matching

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
        """List the matches of a glob, sorted; a name without wildcards stands for itself.

        This text alone decides whether it is an address. A local file that is called like the glob is one of its
        matches: a shell may have put the name there.
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
        """Return the whole path or address of a place, without secrets."""
        if isinstance(place, Path) or (isinstance(place, StoredPlace) and without_secrets(self.text) == self.text):
            return visible(str(place))
        return visible(without_secrets(str(place)))

    def parts_of(self, place: Place) -> tuple[str, ...]:
        if isinstance(place, str):
            return self.parts
        return _parts(place.path if isinstance(place, StoredPlace) else str(place))


def client_names(patterns: Sequence[Pattern]) -> dict[Place, str]:
    """Return the clients' places with their names: the parts of a path where the patterns are wild or differ.

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


def sizes_in(path: str, names: Sequence[str]) -> tuple[list[float], dict[int, Unreadable]]:
    """Return the clients' sizes from a JSON file by their names, and why those without one can't take part."""
    content = read_regular(path, MAX_SIZES_BYTES)
    try:
        sizes = read_json_object(content.strip(), "content")
    except ValueError as wrong:
        raise ValueError(f"{path} must be a JSON object from clients' names to sizes: {wrong}.") from None
    for name, size in sizes.items():
        if not is_size(size):
            raise ValueError(f"{path}: the size of {quoted(name)} must be a positive number, got {quoted(size, 60)}.")
    given = [sizes.get(name) for name in names]
    lacking = {i: Unreadable(f"{path} gives no size for it") for i, size in enumerate(given) if size is None}
    return [1.0 if size is None else float(size) for size in given], lacking


def refuse_overwriting(
    outputs: Mapping[str, str | None], inputs: Mapping[str, str | None], patterns: Sequence[Pattern]
) -> None:
    """Raise ValueError if an output would replace another output or an input.

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
    """Return a question that ends an error if the only place given is a folder, else an empty string."""
    (only, *others) = patterns
    if others or is_wild(only.text) or only.text.endswith(SUFFIXES):
        return ""
    if not is_address(only.text) and not Path(only.text).is_dir():
        return ""
    return f" A folder is one client's update. Did you mean {told(only.text.rstrip('/') + '/*')}?"


def told(text: str) -> str:
    """Quote a path, an address or a glob for messages, without secrets."""
    return quoted(without_secrets(text))


def is_wild(text: str) -> bool:
    return any(mark in text for mark in "*?[")


def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.rstrip("/").split("/"))


def _named_by(patterns: Sequence[tuple[str, ...]]) -> tuple[list[int], str]:
    """Return which parts of a path are a client's name, and the suffix to leave out; nothing if patterns do not fit."""
    if len(set(map(len, patterns))) != 1 or any("**" in part for parts in patterns for part in parts):
        return [], ""
    columns = [set(column) for column in zip(*patterns, strict=True)]
    kept = [i for i, column in enumerate(columns) if len(column) > 1 or any(map(is_wild, column))]
    suffixes = [suffix for suffix in SUFFIXES if all(part.endswith(suffix) for part in columns[-1])]
    return kept, suffixes[0] if suffixes and kept and kept[-1] == len(columns) - 1 else ""


def _location(place: Place, links: bool = True) -> tuple[Any, str]:
    """Return a place's filesystem and path, the same for all ways to write it; a final link is followed if `links`."""
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
