"""The binary form of messages: versioned, bounded and canonical. A message that decodes encodes to the same bytes.

A message is the three bytes b"bcr", the version, the number of its kind, its fields in order, numbers little-endian.
(MessagePack has several encodings of one value, which no hash must depend on, and would be a dependency.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar, Self, cast, dataclass_transform, get_type_hints

import numpy as np

MAGIC, VERSION = b"bcr", 1
MAX_MESSAGE_BYTES = 2**26


class ProtocolError(ValueError):
    """A message that does not fit those before it."""


class WireError(ProtocolError):
    """These bytes are not a message of the kind that was wanted."""


class LongMessageError(WireError):
    """There are bytes behind a whole message."""


def require(sound: bool, problem: str) -> None:
    if not sound:
        raise ProtocolError(problem)


class Reader:
    """The bytes of one message, which are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise WireError(f"it ends {self.at - len(self.data):,} bytes too early")
        return self.data[self.at - size : self.at]

    def number(self, most: int, size: int = 4) -> int:
        found = int.from_bytes(self.take(size), "little")
        if found > most:
            raise WireError(f"it holds the number {found:,} where at most {most:,} is admitted")
        return found


@dataclass(frozen=True)
class Form:
    """The binary form of one field."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


def whole(most: int = 2**64 - 1) -> Form:
    return Form(lambda value: int(value).to_bytes(8, "little"), lambda reader: reader.number(most, 8))


def octets(most: int, size: int | None = None) -> Form:
    """Bytes: at most so many, or exactly `size`."""
    if size is not None:
        return Form(bytes, lambda reader: reader.take(size))
    return Form(lambda value: len(value).to_bytes(4, "little") + value, lambda reader: reader.take(reader.number(most)))


def text(most: int) -> Form:
    def read(reader: Reader) -> str:
        try:
            return reader.take(reader.number(most)).decode()
        except UnicodeDecodeError:
            raise WireError("it holds a text that is not UTF-8") from None

    return Form(lambda value: octets(most).write(value.encode()), read)


def floats(most: int | None = None) -> Form:
    """Finite float64 numbers: at most so many, or a single one."""

    def write(value: Any) -> bytes:
        numbers = np.asarray(value, "<f8").tobytes()
        return numbers if most is None else (len(numbers) // 8).to_bytes(4, "little") + numbers

    def read(reader: Reader) -> Any:
        count = 1 if most is None else reader.number(most)
        numbers = np.frombuffer(reader.take(8 * count), "<f8").astype(np.float64)
        if not np.isfinite(numbers).all():
            raise WireError("it holds a number that is not finite")
        return float(numbers[0]) if most is None else numbers

    return Form(write, read)


def several(most: int, *forms: Form) -> Form:
    """A tuple of at most so many values of one form, or tuples of several forms."""

    def write(value: Any) -> bytes:
        rows = [(one,) for one in value] if len(forms) == 1 else value
        written = [form.write(part) for row in rows for form, part in zip(forms, row, strict=True)]
        return len(rows).to_bytes(4, "little") + b"".join(written)

    def read(reader: Reader) -> tuple[Any, ...]:
        rows = [tuple(form.read(reader) for form in forms) for _ in range(reader.number(most))]
        return tuple(row[0] for row in rows) if len(forms) == 1 else tuple(rows)

    return Form(write, read)


@dataclass_transform(frozen_default=True, eq_default=False)
class Message:
    """Base of all messages: frozen dataclasses, numbered in their order, whose annotations say the form of fields."""

    KIND: ClassVar[int] = 0
    KINDS: ClassVar[dict[int, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)
        cls.KIND = len(Message.KINDS) + 1
        Message.KINDS[cls.KIND] = cls

    @classmethod
    @cache
    def forms(cls) -> tuple[tuple[str, Form], ...]:
        """Return the name and the form of each field."""
        hints: Any = get_type_hints(cls, include_extras=True)
        return tuple((one.name, hints[one.name].__metadata__[0]) for one in fields(cast(Any, cls)))

    @cached_property
    def encoded(self) -> bytes:
        written = [form.write(getattr(self, name)) for name, form in self.forms()]
        return MAGIC + bytes([VERSION, self.KIND]) + b"".join(written)

    @cached_property
    def digest(self) -> bytes:
        return hash_of(b"bcr message", self.encoded)

    @classmethod
    def decode(cls, data: Any, most: int = MAX_MESSAGE_BYTES) -> Self:
        """Return the message in these bytes; WireError if they are another one, malformed, or more than `most`."""
        if not isinstance(data, (bytes, bytearray)) or len(data) > most:
            size = f"{len(data):,} bytes" if isinstance(data, (bytes, bytearray)) else f"a {type(data).__name__}"
            raise WireError(f"it is {size} where at most {most:,} bytes are admitted")
        if data[:4] != MAGIC + bytes([VERSION]) or data[4:5] != bytes([cls.KIND]):
            came = f"it begins with {bytes(data[:5])!r}"
            raise WireError(f"{came}, and a {cls.__name__} of version {VERSION} was wanted (kind {cls.KIND})")
        reader = Reader(bytes(data))
        reader.take(5)
        message = cls(**{name: form.read(reader) for name, form in cls.forms()})
        if reader.at < len(data):
            raise LongMessageError(f"it has {len(data) - reader.at:,} bytes too many")
        return message


def hash_of(domain: bytes, *parts: bytes, key: bytes = b"") -> bytes:
    """Return the BLAKE2b hash of these bytes, of 32 bytes; those of two domains never meet."""
    state = hashlib.blake2b(digest_size=32, person=domain, key=key)
    for part in parts:
        state.update(part)
    return state.digest()
