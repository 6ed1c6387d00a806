"""Choices read from bytes: the same bytes give the same choices, and after their end every choice is the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Reads a case's bytes one choice at a time.

    >>> d = Draw(bytes([7, 1, 0]))
    >>> d.below(5), d.pick("ab"), d.below(1000)
    (2, 'b', 0)
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def below(self, n: int) -> int:
        """Return an integer from 0 to n - 1."""
        value = self.byte()
        if n > 256:
            value = 256 * value + self.byte()
        return value % n

    def pick(self, things: Sequence[T]) -> T:
        return things[self.below(len(things))]

    def chance(self, one_in: int) -> bool:
        """Return True with odds of 1 to `one_in`; False after the end of the bytes."""
        return self.below(one_in) == one_in - 1

    def rest(self) -> bytes:
        """Return the remaining bytes."""
        left, self.at = self.data[self.at :], len(self.data)
        return left
