"""What is measured already: a line a cell, appended when it is done, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

Result = dict[str, Any]


class Ledger:
    """The finished cells of one experiment by what they are: a cell is a frozen dataclass of plain values.

    Its settings stand in the cell, so a changed one is another cell, never a stale result. The code's version does not.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"results go into a folder, and {path.parent} is none. Name another by --out.") from None
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`
        try:
            _claim(self._file, path)
            self._done, whole = read(path)
            if self._file.tell() > whole:  # whoever was killed in the middle of a line left a part of it
                self._file.truncate(whole)
        except BaseException:
            self._file.close()
            raise

    def get(self, cell: Any) -> Result | None:
        return self._done.get(_key(asdict(cell)))

    def add(self, cell: Any, result: Result) -> None:
        line = json.dumps({"cell": asdict(cell), "result": result}) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        # As it will be read again: lists for tuples.
        self._done[_key(asdict(cell))] = json.loads(line)["result"]

    def results(self, cells: Iterable[Any]) -> list[tuple[Any, Result]]:
        return among(self._done, cells)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *gone: object) -> None:
        self.close()


def read(path: Path) -> tuple[dict[str, Result], int]:
    """What is finished, by its cell, and where the last whole line ends. Changes nothing."""
    done: dict[str, Result] = {}
    whole, end, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    for n, line in enumerate(whole.splitlines(), start=1):
        try:
            found = json.loads(line)
            cell, result = found["cell"], found["result"]
            if not (isinstance(cell, dict) and isinstance(result, dict)):
                raise TypeError
            done[_key(cell)] = result
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{path}, line {n}, is no result of bartizan theory. Delete that line, and it is measured again."
            ) from None
    return done, len(whole) + len(end)


def among(done: dict[str, Result], cells: Iterable[Any]) -> list[tuple[Any, Result]]:
    """Those of these cells that are finished, in their order."""
    return [(cell, found) for cell in cells if (found := done.get(_key(asdict(cell)))) is not None]


def _claim(file: Any, path: Path) -> None:
    """For this process alone, where the system knows of locks: two runs would write the same cells twice."""
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another run is writing {path}. Wait for it, or name another folder by --out.") from None


def _key(cell: dict[str, Any]) -> str:
    return json.dumps(cell, sort_keys=True)
