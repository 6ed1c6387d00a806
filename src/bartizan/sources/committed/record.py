"""The record of committed rounds: the messages of one after another, in one file, each chained to those before it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bartizan._util.locks import try_lock
from bartizan._util.regular_files import open_regular
from bartizan._util.text import short
from bartizan.errors import server_error
from bartizan.sources.committed.round_messages import Closing, Opening, decoded
from bartizan.sources.committed.wire import MAX_MESSAGE_BYTES, LongMessageError, Message, WireError, hash_of

FIRST_LINE = b"bartizan record 1\n"
FIRST_HEAD = hash_of(b"bcr head", FIRST_LINE)


class RecordError(ValueError):
    """The record is not what was written: names the first entry that is not."""


class TornRecordError(RecordError):
    """The last entry is cut short: the server was stopped while it wrote it."""


def head_after(head: bytes, message: Message) -> bytes:
    """Return the head of the chain after one more message."""
    return hash_of(b"bcr head", head, message.encoded)


def entries(file: BinaryIO) -> Iterator[tuple[Message, bytes]]:
    """Yield the messages of a record, and the head after each; RecordError at the first that is not as chained."""
    if file.read(len(FIRST_LINE)) != FIRST_LINE:
        raise RecordError("it does not begin as a record of committed rounds does")
    head, number = FIRST_HEAD, 0
    while prefix := file.read(4):
        number, size = number + 1, int.from_bytes(prefix, "little")
        if size > MAX_MESSAGE_BYTES:
            raise RecordError(f"entry {number} would have {size:,} bytes: its size was changed")
        data, written = file.read(size), file.read(32)
        if len(prefix) < 4 or len(data) < size or len(written) < 32:
            try:
                decoded(data)
            except LongMessageError:
                changed = f"entry {number} would have {size:,} bytes, and is shorter: its size was changed"
                raise RecordError(changed) from None
            except WireError:
                pass
            raise TornRecordError(f"entry {number} is cut short: it would have {size:,} bytes")
        head = hash_of(b"bcr head", head, data)
        if head != written:
            raise RecordError(f"entry {number} is not what was chained: its bytes or its hash were changed")
        try:
            yield decoded(data), head
        except WireError as wrong:
            raise RecordError(f"entry {number} is no message: {wrong}") from None


class Record:
    """A record that is written, in a file or in memory; a round that another process left open is closed first."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.head, self.n_rounds, end, last, dropped = FIRST_HEAD, 0, 0, None, ""
        opening: Message | None = None
        if self.path is None:
            self.file: BinaryIO = io.BytesIO()
        else:
            self.file = open_regular(self.path, "r+b" if self.path.exists() else "x+b", buffering=0)
            if not try_lock(self.file):
                self.file.close()
                raise ValueError(f"{short(self.path)} is written by another server. Take another record.")
        if size := self.file.seek(0, os.SEEK_END):
            self.file.seek(0)
            try:
                for last, head in entries(self.file):
                    self.head, self.n_rounds, end = head, self.n_rounds + isinstance(last, Opening), self.file.tell()
                    opening = last if isinstance(last, Opening) else opening
            except TornRecordError:
                end = end or len(FIRST_LINE)
                dropped = f"; {size - end:,} bytes of an unfinished entry were dropped"
            except RecordError as wrong:
                self.file.close()
                raise RecordError(f"{short(self.path)} can't be continued: {wrong}. Take a new record.") from None
            self.file.truncate(end)
        self.file.seek(end)
        if not end:
            self._write(FIRST_LINE)
        if opening is not None and not isinstance(last, Closing):
            self.append(Closing(opening.digest, self.head, "the server stopped before the round was closed" + dropped))

    def append(self, message: Message) -> None:
        """Add a message; an error of the disk is a ServerResourceError, and the record stays as it was."""
        head = head_after(self.head, message)
        self._write(len(message.encoded).to_bytes(4, "little") + message.encoded + head)
        self.head, self.n_rounds = head, self.n_rounds + isinstance(message, Opening)
        if isinstance(message, Closing) and self.path is not None:
            os.fsync(self.file.fileno())

    def _write(self, data: bytes) -> None:
        begin, left = self.file.tell(), memoryview(data)
        try:
            while left:
                left = left[self.file.write(left) :]
        except OSError as full:
            self.file.truncate(begin)
            self.file.seek(begin)
            raise server_error(full, f"The record {short(self.path)} can't be written") from full

    def close(self) -> None:
        """Close the file, which others may then continue."""
        if self.path is not None:
            self.file.close()

    def read(self) -> bytes:
        """Return the whole record."""
        self.file.seek(0)
        return self.file.read()
