"""Write and read `results.jsonl`, the record of one training run in the laboratory or in a deployment.

The file begins with a `run` line (clients and configuration), has one `round` line for each round, and closes with an
`end` line. `result_lines` declares the fields of each, and `docs/reference/results-format.md` explains them. The report
reads nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bartizan import __version__
from bartizan._util import jsonl, machine
from bartizan._util.jsonl import CorruptFileError as CorruptFileError
from bartizan._util.jsonl import encode as encode
from bartizan._util.locks import is_at, try_lock
from bartizan.result_lines import VERSION as VERSION
from bartizan.result_lines import LineChecker, known_kind

NAME = "results.jsonl"


class AnotherRunError(FileExistsError):
    """The folder holds, or another process writes, a run that must not be replaced."""


def deployment_line(name: str, rule: str, sketch: str, dim: int | None) -> dict[str, Any]:
    """Return the first line of the record of a deployment, whose attackers and clients are not known yet."""
    config = {"rule": {"name": rule}, "sketch": {"name": sketch}}
    unknown = dict.fromkeys(("byzantine", "ratio", "sizes", "split", "classes"))
    about = {"version": VERSION, "id": name, "name": name, "config": config, "dim": dim, "clients": []}
    return {"kind": "run", **about, **unknown, "bartizan": __version__, "machine": machine.name_of("cpu")}


@dataclass(frozen=True)
class Recorded:
    """The lines of one run's file."""

    folder: Path
    run: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    torn: str = ""
    """The beginning of an incomplete last line: the writer was stopped, or is still writing. Usually empty."""

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines in order."""
        return [self.run, *self.rounds, *([self.end] if self.end else [])]


class Writer(jsonl.Appender):
    """Append lines to a run's file."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Start a new file in `folder`, or continue one after its first `keep` bytes."""
        super().__init__(folder / NAME, keep)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line of a kind in `result_lines.LINES`."""
        self.append({"kind": known_kind(kind), **fields})


def read(folder: Path, keep: int | None = None) -> Recorded:
    """Read a run's file, or its first `keep` bytes, and check every complete line and all its fields."""
    path = Path(folder) / NAME
    advice = "Put back a copy, or delete the run's folder and run again."
    found = jsonl.read(path, LineChecker(), advice=advice, size=keep)
    if not found.rows:
        raise CorruptFileError(f"{path} holds no complete line. Delete its folder and run again.")
    run, *others = found.rows
    rounds = [line for line in others if line["kind"] == "round"]
    ends = [line for line in others if line["kind"] == "end"]
    return Recorded(path.parent, run, rounds, ends[-1] if ends else None, found.torn)


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Make the folder and lock it against other processes; remove it at the end if it is new and still empty.

    Yields the descriptor of the locked folder, which stays the same folder if its name is deleted or given to another.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as wrong:
        raise unusable(folder, wrong) from None
    try:
        if not try_lock(handle):
            raise AnotherRunError(f"Another process is at work in {folder}. Wait for it, or take another.")
        yield handle
    finally:
        ours = is_at(handle, folder)
        os.close(handle)
        for one in made if ours else []:
            with suppress(OSError):  # not empty
                one.rmdir()


def unusable(folder: Path, wrong: OSError) -> OSError:
    """Return an error that says why results can't be written to a folder."""
    if isinstance(wrong, (FileExistsError, NotADirectoryError)):
        return NotADirectoryError(f"{folder} is not a folder; results need one. Take another folder.")
    message = f"Results can't be written to {folder}: {wrong.strerror}. Take another folder."
    return PermissionError(message) if isinstance(wrong, PermissionError) else OSError(message)


def require_writable(folder: Path) -> None:
    """Raise unless files can be written to the folder, or to where it would be made. Leaves nothing there."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as wrong:
        raise unusable(folder, wrong) from None


def find(folder: Path) -> list[Path]:
    """Return the folders of all runs in a folder, itself included, sorted by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; wanted one that `bartizan run` or `sweep` wrote.")
    # `rglob` leaves out links that lead nowhere; reading them says what is wrong.
    return sorted(Path(one) for one, folders, files in os.walk(folder) if NAME in (*folders, *files))
