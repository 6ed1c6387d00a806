"""Save and load the state of an unfinished run."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from bartizan._util.atomic import write_whole
from bartizan._util.machine import torch_for
from bartizan.records import CorruptFileError

NAME = "checkpoint.pt"
EVERY = 15.0
"""Seconds of training between two checkpoints."""
SHARE = 1 / 30
"""The part of the time that may go into writing them: a larger model is saved less often."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    The file is what `torch.save` writes for a dict of these fields, so its parts have checksums.
    """

    id: str
    """The experiment's."""
    round: int
    """The last finished round."""
    lines: int
    """Bytes of results.jsonl up to this round."""
    seconds: float
    """Spent so far, resumed parts added up."""
    server: dict[str, Any]
    """The server's `state_dict`: the model's vector under "weights", and the state of the optimiser."""
    history: tuple[float, ...] = ()
    """State of a rule that remembers earlier rounds."""
    diverged: bool = False
    """Whether that round was the last because the model is not finite any more."""

    @property
    def sound(self) -> bool:
        """Whether its fields have the types above, which a file does not guarantee."""
        counts = all(type(count) is int and count >= 0 for count in (self.round, self.lines))
        numbers = all(isinstance(number, (int, float)) for number in (self.seconds, *self.history))
        return counts and numbers and isinstance(self.id, str) and isinstance(self.server, dict)

    def save(self, folder: Path) -> None:
        """Write the folder's checkpoint; an interruption or a full disk leaves the previous one."""
        torch = torch_for("A checkpoint")
        content = {one.name: getattr(self, one.name) for one in fields(self)}

        def write(file: BinaryIO) -> None:
            try:
                torch.save(content, file)
            except RuntimeError as wrong:
                # torch raises this for any error of the file.
                raise wrong.__context__ if isinstance(wrong.__context__, OSError) else wrong from None

        write_whole(Path(folder) / NAME, write, settle=True)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Checkpoint | None:
        """The checkpoint of a run's folder, if it has one; a damaged file is a `CorruptFileError`."""
        torch = torch_for("A checkpoint")
        path = Path(folder) / NAME
        if not path.exists():
            return None
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()  # torch does not compare its checksums when it loads
            if damaged is not None:
                raise zipfile.BadZipFile(f"the checksum of {damaged} does not fit")
            # weights_only: a file from someone else must not execute code.
            content = torch.load(path, map_location=device, weights_only=True)
            found = cls(**{**content, "history": tuple(content["history"])})
            if not found.sound:
                raise TypeError("its fields have other types")
            return found
        except Exception as wrong:  # any content is possible, of other versions too
            why = str(wrong).partition("\n")[0][:200] or type(wrong).__name__
            raise CorruptFileError(
                f"{path} is corrupt or not a checkpoint of this version: {why}. "
                "Put back a copy, or delete it and pass --resume to begin that run again."
            ) from None


class CheckpointTimer:
    """Call `save` every few seconds, less often where a save takes long."""

    def __init__(self, save: Callable[[], None], every: float = EVERY) -> None:
        self._save, self._every = save, every
        self._last, self._wait = time.monotonic(), every

    def now(self) -> None:
        start = time.monotonic()
        self._save()
        self._last = time.monotonic()
        self._wait = max(self._every, (self._last - start) / SHARE)

    def if_due(self) -> None:
        if time.monotonic() - self._last >= self._wait:
            self.now()
