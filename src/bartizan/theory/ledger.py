"""What is measured already: a line a cell, appended when it is done, so that a stopped run goes on where it was."""

from __future__ import annotations

import json
import os
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
        self.path = path
        self._done: dict[str, Result] = {}
        text = path.read_bytes() if path.exists() else b""
        whole = text.rpartition(b"\n")[0]
        for n, line in enumerate(whole.splitlines(), start=1):
            try:
                found = json.loads(line)
                self._done[_key(found["cell"])] = found["result"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"{path}, line {n}, is no result of bartizan theory. Delete it and run again."
                ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = len(whole) + 1 if whole else 0
        if len(text) > kept:  # whoever was killed in the middle of a line left a part of it
            os.truncate(path, kept)
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`

    def get(self, cell: Any) -> Result | None:
        return self._done.get(_key(asdict(cell)))

    def add(self, cell: Any, result: Result) -> None:
        line = json.dumps({"cell": asdict(cell), "result": result}) + "\n"
        self._file.write(line.encode())
        self._file.flush()
        # As it will be read again: lists for tuples.
        self._done[_key(asdict(cell))] = json.loads(line)["result"]

    def results(self, cells: Iterable[Any]) -> list[tuple[Any, Result]]:
        """Those of these cells that are finished, in their order."""
        return [(cell, found) for cell in cells if (found := self.get(cell)) is not None]

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *gone: object) -> None:
        self.close()


def _key(cell: dict[str, Any]) -> str:
    return json.dumps(cell, sort_keys=True)
