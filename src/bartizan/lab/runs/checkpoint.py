"""Save and load the state of an unfinished run."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from bartizan._util import schema
from bartizan._util.atomic import write_whole
from bartizan._util.machine import torch_for
from bartizan._util.regular_files import open_regular
from bartizan._util.schema import LARGEST, Between
from bartizan._util.text import short
from bartizan.records import CorruptFileError

NAME = "checkpoint.pt"
SECONDS_BETWEEN_SAVES = 15.0  # seconds of training between two checkpoints
MAX_SAVING_FRACTION = 1 / 30  # the part of the time that may go into writing them: a larger model is saved less often


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run, enough to continue to the same results.

    The file is what `torch.save` writes for a dict of these fields, so its parts have checksums.
    """

    id: str
    """Id of the experiment."""
    round: Annotated[int, Between(0, 10**9)]
    """The last finished round."""
    lines: Annotated[int, Between(0, 10**15)]
    """Bytes of results.jsonl up to this round."""
    seconds: Annotated[float, Between(0.0, LARGEST)]
    """Seconds spent so far, over all resumed parts."""
    server: dict[str, Any]
    """The server's `state_dict`: the model's vector under "weights", and the state of the optimiser."""
    history: tuple[float, ...] = ()
    """State of a rule that remembers earlier rounds."""
    diverged: bool = False
    """Tells whether that round was the last because the model is no longer finite."""
    clients: dict[str, Any] = field(default_factory=dict)
    """The clients' `state_dict`: their last updates, if they have momentum over rounds."""
    shapes: dict[str, Any] = field(default_factory=dict)
    """Shapes of the model's tensors by name, in their order in its vector, for runs that begin with this model."""

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
        """Read the checkpoint of a run's folder, None if it has none; a damaged file is a `CorruptFileError`."""
        torch = torch_for("A checkpoint")
        path = Path(folder) / NAME
        try:
            with open_regular(path) as file:
                with zipfile.ZipFile(file) as archive:
                    if any(part.compress_type for part in archive.infolist()):
                        raise zipfile.BadZipFile("its parts are compressed")  # small files could fill the memory
                    damaged = archive.testzip()  # torch does not compare its checksums when it loads
                if damaged is not None:
                    raise zipfile.BadZipFile(f"the checksum of {damaged} does not fit")
                file.seek(0)
                # weights_only: a file from someone else must not execute code.
                content = torch.load(file, map_location=device, weights_only=True)
            if not isinstance(content, dict):
                raise TypeError(f"expected a dict, got {type(content).__name__}")
            return schema.parse(cls, content)
        except FileNotFoundError:
            return None
        except Exception as wrong:  # any content is possible, of other versions too
            raise corrupt(path, wrong) from None


def corrupt(path: Path, wrong: Exception) -> CorruptFileError:
    """Return the error for a checkpoint that can't be used, with the reason."""
    why = (wrong.strerror if isinstance(wrong, OSError) else str(wrong).partition("\n")[0]) or type(wrong).__name__
    return CorruptFileError(
        f"{path} is corrupt or not a checkpoint of this version: {short(why, 200)}. "
        "Put back a copy, or delete it and pass --resume to begin that run again."
    )


class CheckpointTimer:
    """Call `save` every few seconds, less often if a save takes long."""

    def __init__(self, save: Callable[[], None], every: float = SECONDS_BETWEEN_SAVES) -> None:
        self._save, self._every = save, every
        self._last, self._wait = time.monotonic(), every

    def now(self) -> None:
        start = time.monotonic()
        self._save()
        self._last = time.monotonic()
        self._wait = max(self._every, (self._last - start) / MAX_SAVING_FRACTION)

    def if_due(self) -> None:
        if time.monotonic() - self._last >= self._wait:
            self.now()
