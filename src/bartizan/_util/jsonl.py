"""Read, append and rewrite JSON-lines files whose lines carry a checksum."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np

from bartizan._util.atomic import write_whole
from bartizan._util.regular_files import open_regular, read_regular
from bartizan._util.text import short

T = TypeVar("T")
Row = dict[str, Any]

MAX_DEPTH = 32  # objects and lists within each other: deeper ones could exhaust the stack of a recursive function
_CHECKSUM = b',"crc":"'


class CorruptFileError(ValueError):
    """A file does not hold what was written to it; the message names the file."""


@dataclass(frozen=True)
class Lines(Generic[T]):
    """The content of a JSON-lines file."""

    rows: list[T]
    """One entry for each complete line."""
    size: int
    """Bytes up to the end of the last complete line."""
    torn: str
    """The beginning of an incomplete last line: a writer was stopped, or is still writing. Usually empty."""


def encode(row: Mapping[str, Any], *, allow_nan: bool = False) -> bytes:
    """Return one line: compact JSON with a field `crc`, the CRC-32 of the line without it.

    NumPy arrays become lists and paths become strings. NaN and infinities become null, since JSON has neither; with
    `allow_nan` they are written as Python's `json` reads them.

    >>> encode({"kind": "end", "best": float("nan")})
    b'{"kind":"end","best":null,"crc":"67e65041"}\\n'
    """
    values = _jsonable(row, allow_nan)
    body = json.dumps(values, separators=(",", ":"), allow_nan=allow_nan, ensure_ascii=False).encode()
    return body[:-1] + _CHECKSUM + b'%08x"}\n' % zlib.crc32(body)


def read(
    path: Path,
    convert: Callable[[Row], T],
    *,
    advice: str,
    checksum_required: bool = True,
    appended: bool = True,
    size: int | None = None,
) -> Lines[T]:
    """Read a file, or its first `size` bytes, and check every complete line.

    `convert` turns the JSON object of a line into what the caller wants, and raises ValueError, KeyError or TypeError
    if the object is not of the expected form. Each failure becomes a `CorruptFileError` that names the file and the
    line and ends in `advice`. Lines without a checksum are accepted only if it is not required. In a file that is
    `appended` to, an incomplete last line is left out; in one that is always written whole, it is a line like others.
    """
    data = read_regular(path)
    if size is not None:
        if len(data) < size:
            raise CorruptFileError(f"{path} has {len(data)} bytes, and {size} were written: it was cut. {advice}")
        data = data[:size]
    complete, newline, torn = data.rpartition(b"\n") if appended else (data.rstrip(b"\n"), b"", b"")
    rows = []
    for number, line in enumerate(complete.split(b"\n") if complete or newline else [], start=1):
        body, found, checksum = line.rpartition(_CHECKSUM)
        if found or checksum_required:
            body += b"}"
            if checksum != b'%08x"}' % zlib.crc32(body):
                raise CorruptFileError(
                    f"{path} is corrupt in line {number}: its checksum does not fit {_preview(line)}. {advice}"
                )
        else:
            body = line
        try:
            content = json.loads(body)
            if not isinstance(content, dict):
                raise TypeError("expected a JSON object")
            _check_depth(content)
            rows.append(convert(content))
        except (ValueError, KeyError, TypeError, RecursionError) as wrong:
            why = f"{wrong} is missing" if isinstance(wrong, KeyError) else short(wrong)
            raise CorruptFileError(
                f"{path}, line {number}, is not as expected: {why} in {_preview(line)}. {advice}"
            ) from None
    return Lines(rows, len(complete) + len(newline), _preview(torn))


def rewrite(path: Path, rows: Iterable[Mapping[str, Any]], *, settle: bool = False) -> int:
    """Replace a file by these rows, all or nothing; return its size in bytes."""
    content = b"".join(map(encode, rows))
    write_whole(path, content, settle=settle)
    return len(content)


class Appender:
    """Append rows to a file; each row has been passed to the operating system when `append` returns."""

    def __init__(self, path: Path, size: int = 0) -> None:
        """Start a new file, or continue one after its first `size` bytes; what follows them is removed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = open_regular(path, "r+b" if size else "wb", buffering=0)
        self._file.truncate(size)
        self._file.seek(size)

    def append(self, row: Mapping[str, Any], *, allow_nan: bool = False) -> None:
        """Append one line; if that fails, for instance because the disk is full, no part of it remains."""
        before = self._file.tell()
        try:
            line = memoryview(encode(row, allow_nan=allow_nan))
            while line:
                line = line[self._file.write(line) :]
        except BaseException:
            self._file.truncate(before)
            self._file.seek(before)
            raise

    def sync(self) -> int:
        """Wait until the disk has all lines; return the size of the file in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested objects as one, by dotted keys.

    >>> flatten({"seed": 1, "rule": {"name": "krum"}})
    {'seed': 1, 'rule.name': 'krum'}
    """
    found: dict[str, Any] = {}
    for key, value in nested.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _check_depth(value: Any, deepest: int = MAX_DEPTH) -> None:
    if not deepest:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (dict, list)):
            _check_depth(one, deepest - 1)


def _jsonable(value: Any, allow_nan: bool) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _jsonable(one, allow_nan) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(one, allow_nan) for one in value]
    if isinstance(value, float) and not allow_nan and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _preview(line: bytes) -> str:
    return "" if not line else repr(line[:40].decode(errors="replace")) + ("..." if len(line) > 40 else "")
