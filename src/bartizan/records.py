"""What a training run leaves behind: one JSON line an event, appended as it happens, each with its checksum.

A run's folder holds `results.jsonl`: first a `run` line (who takes part, the whole configuration), then one `round`
line a round, last an `end` line. Laboratory and deployment alike write these; the report reads nothing else.
`docs/reference/results-format.md` lists the fields.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util.text import quoted

VERSION = 1
NAME = "results.jsonl"
KINDS = ("run", "round", "end")


class CorruptFileError(ValueError):
    """A file of a run that is not what was written; the message names it."""


# What reading a run can raise whose lines are whole and yet not those of a run.
ODD = (CorruptFileError, KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class Recorded:
    """One run as its file tells it."""

    folder: Path
    run: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    torn: str = ""
    """What was found behind the last whole line, if anything: a writer was stopped, or is writing."""

    def lines(self) -> list[dict[str, Any]]:
        """All of them, in order."""
        return [self.run, *self.rounds, *([self.end] if self.end else [])]


class Writer:
    """Appends lines to a run's file; each is on its way to the disk when `write` returns."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Begin a file, or go on with the first `keep` bytes of one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self._file = open(self.path, "r+b" if keep else "wb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._file.truncate(keep)
        self._file.seek(keep)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line, or nothing: where the disk is full, what got there is taken back."""
        if kind not in KINDS:
            raise ValueError(f"a line's kind is one of {', '.join(KINDS)}, got {kind!r}.")
        before = self._file.tell()
        try:
            line = memoryview(encoded({"kind": kind, **fields}))
            while line:
                line = line[self._file.write(line) :]
        except BaseException:
            self._file.truncate(before)
            self._file.seek(before)
            raise

    def settle(self) -> int:
        """Wait until the disk has it; how many bytes there are."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *gone: object) -> None:
        self.close()


def read(folder: Path, keep: int | None = None) -> Recorded:
    """A run's file, or its first `keep` bytes, checked line by line; a last line that is not whole is only told."""
    path = Path(folder) / NAME
    data = path.read_bytes()
    if keep is not None:
        if len(data) < keep:
            raise CorruptFileError(f"{path} has {len(data)} bytes, and its checkpoint knows of {keep}: it was cut.")
        data = data[:keep]
    whole, _, torn = data.rpartition(b"\n")
    lines = list(decoded(path, whole))
    if not lines:
        raise CorruptFileError(f"{path} holds no whole line. Delete its folder and run again.")
    run, *others = lines
    if run["kind"] != "run":
        raise CorruptFileError(f"{path} must begin with a line of kind 'run', got {run['kind']!r}.")
    if run.get("version") != VERSION:
        raise CorruptFileError(
            f"{path} is of version {quoted(run.get('version'))}; this bartizan reads version {VERSION}."
        )
    rounds = [line for line in others if line["kind"] == "round"]
    if [line.get("round") for line in rounds] != list(range(1, len(rounds) + 1)):
        raise CorruptFileError(f"{path}: rounds must be numbered from 1 on, each once.")
    ends = [line for line in others if line["kind"] == "end"]
    return Recorded(path.parent, run, rounds, ends[-1] if ends else None, _shown(torn))


def find(folder: Path) -> list[Path]:
    """The folders of all runs in a folder, itself included, in order of their names."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; wanted one that `bartizan run` or `sweep` wrote.")
    return sorted(path.parent for path in folder.rglob(NAME))


def encoded(line: Mapping[str, Any]) -> bytes:
    """A line with its checksum; NaN and infinities, which JSON does not have, become null.

    >>> encoded({"kind": "end", "best": float("nan")})
    b'{"kind":"end","best":null,"crc":"67e65041"}\\n'
    """
    body = json.dumps(_plain(line), separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()
    return body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)


def trouble(path: Path, wrong: Exception) -> str:
    """Why a run can't be used, in one line that names it."""
    if isinstance(wrong, CorruptFileError):
        return str(wrong)
    return f"{path}: no {wrong} in it" if isinstance(wrong, KeyError) else f"{path} holds what no run writes: {wrong}"


def decoded(
    path: Path, data: bytes, kinds: Sequence[str] = KINDS, remedy: str = "delete the run's folder and run again"
) -> Iterator[dict[str, Any]]:
    """Lines, each checked against its checksum, and that it is of a kind that is wanted here."""
    for number, line in enumerate(data.split(b"\n") if data else [], start=1):
        body, found, crc = line.rpartition(b',"crc":"')
        body += b"}"
        if not found or crc != b'%08x"}' % zlib.crc32(body):
            raise CorruptFileError(
                f"{path} is corrupt in line {number}: its checksum does not fit {_shown(line)}. "
                f"Put back a copy, or {remedy}."
            )
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.get("kind") not in kinds:
            raise CorruptFileError(f"{path} has a line {number} that no run writes: {_shown(line)}.")
        yield content


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def _shown(text: bytes) -> str:
    return "" if not text else repr(text[:40].decode(errors="replace")) + ("..." if len(text) > 40 else "")
