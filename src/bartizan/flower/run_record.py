"""Record a run in a folder after every round, for `bartizan report`, and continue it after a restart."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from bartizan import records
from bartizan._util.atomic import write_whole
from bartizan._util.locks import is_at
from bartizan.flower import saved_state
from bartizan.flower.replies import Model
from bartizan.flower.saved_state import ADVICE, Saved
from bartizan.records import AnotherRunError, CorruptFileError

log = logging.getLogger("flwr")


class RunRecord:
    """The results.jsonl and the checkpoint of a deployment, whose clients become known round by round.

    The folder is locked from `__enter__` to `__exit__`. Without a folder nothing is recorded.
    """

    def __init__(self, folder: Path | None, run: dict[str, Any]) -> None:
        self.folder = folder
        self._run = run
        self._rounds: list[bytes] = []  # as they are written
        self._accuracies: list[float] = []
        self._added = False
        self._lock = ExitStack()
        self._locked_folder = -1

    def __enter__(self) -> Self:
        if self.folder is not None:
            self._lock_folder(self.folder)
        return self

    def __exit__(self, *raised: object) -> None:
        self._lock.close()

    def load(self, model: Model, settings: Mapping[str, str]) -> Saved:
        """Return the state of an earlier run in the folder, which is continued; raise ValueError if it can't be."""
        if self.folder is None:
            return Saved()
        saved = saved_state.load(self.folder, model, settings)
        try:
            recorded = records.read(self.folder)
        except FileNotFoundError:
            recorded = records.Recorded(self.folder, {})
        n_rounds = len(recorded.rounds)
        if n_rounds < saved.round:
            raise CorruptFileError(
                f"{self.folder / saved_state.NAME} is of round {saved.round}, and {records.NAME} beside it has "
                f"{n_rounds} rounds: one of them was changed or cut. {ADVICE}"
            )
        if saved.round:
            self._run = recorded.run
            for line in recorded.rounds[: saved.round]:  # later ones are run again
                self._keep(line)
        elif n_rounds > 1:  # of one, its process may have been killed before it wrote the checkpoint
            why = f"{self.folder} holds {n_rounds} rounds and no {saved_state.NAME} to go on from. {ADVICE}"
            raise AnotherRunError(why)
        return saved

    def add(self, line: Mapping[str, Any], clients: Iterable[str], saved: Saved) -> None:
        """Append a round's line, write the checkpoint, and wait until the disk has both."""
        self._run["clients"] = list(dict.fromkeys([*self._run["clients"], *clients]))
        self._keep({"kind": "round", **line})
        if self.folder is None:
            return
        self._added = True
        with self._logging_errors():
            self._write(self.folder)
            saved_state.save(self.folder, saved)

    def end(self, seconds: float, status: str) -> dict[str, Any]:
        """Return the last line, which is written if any round was added."""
        best = {"best": max(self._accuracies), "last": self._accuracies[-1]} if self._accuracies else {}
        line = {"kind": "end", "status": status, "seconds": seconds, **best}
        if self.folder is not None and self._added:
            with self._logging_errors():
                self._write(self.folder, line)
        return line

    def lines(self) -> list[dict[str, Any]]:
        """Return the first line and those of the rounds so far."""
        return [self._run, *map(json.loads, self._rounds)]

    def _keep(self, line: Mapping[str, Any]) -> None:
        self._rounds.append(records.encode(line))
        if line.get("accuracy") is not None:
            self._accuracies.append(line["accuracy"])

    def _write(self, folder: Path, *last: Mapping[str, Any]) -> None:
        """Write the whole record, since its first line names all clients, and they may have become more."""
        self._lock_folder(folder)
        lines = [records.encode(self._run), *self._rounds, *map(records.encode, last)]
        write_whole(folder / records.NAME, b"".join(lines), settle=True)

    def _lock_folder(self, folder: Path) -> None:
        """Make and lock the folder; again if it was deleted, moved or replaced."""
        if is_at(self._locked_folder, folder):
            return
        if self._locked_folder >= 0:
            log.error("%s was deleted or moved while the run goes on: making it again.", folder)
        self._lock.close()
        self._locked_folder = -1
        self._locked_folder = self._lock.enter_context(records.locked(folder))

    @contextmanager
    def _logging_errors(self) -> Iterator[None]:
        """Log an OSError, such as a full disk, and go on: the next round is written with this one."""
        try:
            yield
        except OSError as full:
            log.error("The run can't be recorded (%s): after a crash it would go on from an earlier round.", full)
