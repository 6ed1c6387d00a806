"""An error of one rank as a value that travels, so that all ranks raise it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bartizan.errors import BadClientError, TooFewClientsError

PLAIN = (ValueError, TypeError)


@dataclass(frozen=True)
class Failure:
    """What to raise: an error of this library as itself, a ValueError or TypeError as such, any other as a RuntimeError
    that names it.
    """

    kind: str
    message: str
    rank: int  # of the process that it happened in
    of_the_round: bool = False  # and not of this rank's share of it
    client: Any = None
    quarantined: dict[Any, str] = field(default_factory=dict)

    @classmethod
    def of(cls, raised: Exception, rank: int, of_the_round: bool = False) -> Failure:
        kind = type(raised).__name__
        if isinstance(raised, BadClientError):
            return cls("BadClientError", raised.reason, rank, of_the_round, client=raised.client)
        if isinstance(raised, TooFewClientsError):
            return cls("TooFewClientsError", raised.problem, rank, of_the_round, quarantined=raised.quarantined)
        for plain in PLAIN:
            if isinstance(raised, plain):
                message = str(raised) if type(raised) is plain else f"{kind}: {raised}"
                return cls(plain.__name__, message, rank, of_the_round)
        return cls(kind, str(raised), rank, of_the_round)

    def error(self) -> Exception:
        """The same on every rank."""
        message = self.message if self.of_the_round else f"rank {self.rank}: {self.message}"
        if self.kind == "BadClientError":
            return BadClientError(self.client, message)
        if self.kind == "TooFewClientsError":
            return TooFewClientsError(message, self.quarantined)
        for plain in PLAIN:
            if self.kind == plain.__name__:
                return plain(message)
        return RuntimeError(f"rank {self.rank} failed: {self.kind}: {self.message}")


class Failed(Exception):
    """A failure of some rank, on its way to all."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def raise_any(failures: list[Failure | None]) -> None:
    for failure in failures:
        if failure is not None:
            raise failure.error()
