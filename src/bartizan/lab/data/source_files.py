"""Read the files of a data set, with messages that say what to download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bartizan.lab.data.base import DataError


@dataclass(frozen=True)
class Source:
    """The archive of a data set and the project that publishes it."""

    name: str
    archive: str
    project: str

    def __str__(self) -> str:
        return f"{self.archive} from the {self.project} page"

    def folder(self, given: Path | None) -> Path:
        """The given folder, if it is one."""
        if given is None:
            raise DataError(
                f"{self.name} needs its files: download {self}, unpack, and say in which folder they are "
                "(folder=..., or --data DIR)."
            )
        if not given.is_dir():
            raise DataError(f"{self.name}: {given} is no folder; wanted the one that holds {self}, unpacked.")
        return given

    def missing(self, path: Path, size: str) -> DataError:
        return DataError(f"{self.name}: {path} is missing ({size}). Download {self}, and unpack.")

    def corrupt(self, path: Path, why: str) -> DataError:
        return DataError(f"{self.name}: {path} is corrupt: {why} Download {self} again.")

    def bytes_of(self, path: Path, size: str, most: int) -> bytes:
        """The content of a file of at most `most` bytes; `size` is the usual size, for messages."""
        try:
            found = path.stat().st_size
            if not path.is_file():
                raise self.corrupt(path, "it is no regular file.")
            if found > most:
                raise self.corrupt(path, f"it has {found:,} bytes, which is more than {most:,}; wanted {size}.")
            return path.read_bytes()
        except FileNotFoundError:
            raise self.missing(path, size) from None
        except OSError as unreadable:
            raise DataError(f"{self.name}: {path} can't be read: {unreadable.strerror}.") from unreadable
