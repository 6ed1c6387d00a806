"""Where a run stands, in one file: written whole or not at all, and known to be what was written."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from bartizan._util.atomic import write_whole
from bartizan._util.machine import torch_for
from bartizan.records import CorruptFileError

NAME = "checkpoint.pt"
MAGIC = b"bartizan checkpoint 1\n"
DIGEST = hashlib.sha256().digest_size
EVERY = 15.0
"""Seconds of training between two checkpoints."""
SHARE = 1 / 30
"""The part of the time that may go into writing them: a larger model is saved less often."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped."""

    id: str
    """The experiment's."""
    round: int
    """The last one that is done."""
    lines: int
    """Bytes of results.jsonl that belong to it."""
    seconds: float
    """Spent so far, resumed parts added up."""
    server: dict[str, Any]
    """Its `state_dict`: the model's vector under "weights", and what the optimiser remembers."""
    history: tuple[float, ...] = ()
    """What a rule with a memory wants to be passed."""
    diverged: bool = False
    """Whether that round was the last because the model is not finite any more."""

    @property
    def sound(self) -> bool:
        """Whether its fields are of their types, as those of a file may not be."""
        counts = all(type(count) is int and count >= 0 for count in (self.round, self.lines))
        numbers = all(isinstance(number, (int, float)) for number in (self.seconds, *self.history))
        return counts and numbers and isinstance(self.id, str) and isinstance(self.server, dict)

    def save(self, folder: Path) -> None:
        torch = torch_for("A checkpoint")
        content = {one.name: getattr(self, one.name) for one in fields(self)}

        def write(file: BinaryIO) -> None:
            file.write(MAGIC + bytes(DIGEST))
            hashed = _Hashed(file)
            try:
                torch.save(content, hashed)
            except RuntimeError:  # torch says so of whatever went wrong below it
                if hashed.failure is None:
                    raise
                raise hashed.failure from None
            file.seek(len(MAGIC))
            file.write(hashed.digest())

        write_whole(Path(folder) / NAME, write, settle=True)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Checkpoint | None:
        """The checkpoint of a run's folder, if it has one."""
        torch = torch_for("A checkpoint")
        path = Path(folder) / NAME
        try:
            data = memoryview(path.read_bytes())
        except FileNotFoundError:
            return None
        advice = "Put back a copy, or delete it and pass --resume to begin that run again."
        head = len(MAGIC) + DIGEST
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise CorruptFileError(f"{path} is no checkpoint of this bartizan: it begins otherwise. {advice}")
        if hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]:
            raise CorruptFileError(f"{path} is corrupt: its checksum does not fit its {len(data)} bytes. {advice}")
        # The checksum guards against accidents, weights_only against files from strangers.
        try:
            content = torch.load(io.BytesIO(data[head:]), map_location=device, weights_only=True)
            found = cls(**{**content, "history": tuple(content["history"])})
            if not found.sound:
                raise TypeError("its fields have other types")
            return found
        except Exception as wrong:  # whatever a stranger made of it, or another version of us
            unlike = f"not what this bartizan writes ({type(wrong).__name__})"
            raise CorruptFileError(f"{path} is whole, and {unlike}. {advice}") from None


class _Hashed:
    """A file whose bytes are hashed on their way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        try:
            return self._file.write(data)
        except OSError as failure:
            self.failure = failure
            raise

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> bytes:
        return self._hash.digest()


class Keeper:
    """Saves when it is time to: often enough to lose little, seldom enough to cost little."""

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
