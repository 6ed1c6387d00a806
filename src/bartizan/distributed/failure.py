"""An error of one rank as a value that is sent to all ranks, so that all raise it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bartizan.errors import BadClientError, TooFewClientsError

PLAIN = (ValueError, TypeError)


@dataclass(frozen=True)
class Failure:
    """An error to raise on every rank.

    Errors of this library and ValueError and TypeError keep their type; any other becomes a RuntimeError that names it.
    """

    kind: str
    message: str
    rank: int  # global rank that it happened on
    of_all_ranks: bool = False  # an error of the whole round, not of this rank's shard
    client: Any = None
    quarantined: dict[Any, str] = field(default_factory=dict)

    @classmethod
    def of(cls, raised: Exception, rank: int, of_all_ranks: bool = False) -> Failure:
        kind = type(raised).__name__
        if isinstance(raised, BadClientError):
            return cls("BadClientError", raised.reason, rank, of_all_ranks, client=raised.client)
        if isinstance(raised, TooFewClientsError):
            return cls("TooFewClientsError", raised.problem, rank, of_all_ranks, quarantined=raised.quarantined)
        for plain in PLAIN:
            if isinstance(raised, plain):
                message = str(raised) if type(raised) is plain else f"{kind}: {raised}"
                return cls(plain.__name__, message, rank, of_all_ranks)
        return cls(kind, str(raised), rank, of_all_ranks)

    def error(self) -> Exception:
        """The exception, the same on every rank."""
        message = self.message if self.of_all_ranks else f"rank {self.rank}: {self.message}"
        if self.kind == "BadClientError":
            return BadClientError(self.client, message)
        if self.kind == "TooFewClientsError":
            return TooFewClientsError(message, self.quarantined)
        for plain in PLAIN:
            if self.kind == plain.__name__:
                return plain(message)
        return RuntimeError(f"rank {self.rank} failed: {self.kind}: {self.message}")


class RankFailed(Exception):
    """Raised on the first rank when another one has failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def raise_any(failures: list[Failure | None]) -> None:
    for failure in failures:
        if failure is not None:
            raise failure.error()
