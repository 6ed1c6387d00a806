"""An error of one rank as a value that travels, so that all ranks raise it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bartizan.errors import BadClientError, TooFewClientsError

PLAIN: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError}


@dataclass(frozen=True)
class Failure:
    """What to raise: an error of this library as itself, any other as a RuntimeError that names it."""

    kind: str
    message: str
    client: Any = None
    quarantined: dict[Any, str] = field(default_factory=dict)

    @classmethod
    def of(cls, raised: Exception) -> Failure:
        kind = type(raised).__name__
        if isinstance(raised, BadClientError):
            return cls(kind, raised.reason, client=raised.client)
        if isinstance(raised, TooFewClientsError):
            return cls(kind, raised.problem, quarantined=raised.quarantined)
        return cls(kind, str(raised))

    def error(self, rank: int | None = None) -> Exception:
        """The error itself; with the rank that it happened on."""
        message = self.message if rank is None else f"rank {rank}: {self.message}"
        if self.kind == "BadClientError":
            return BadClientError(self.client, message)
        if self.kind == "TooFewClientsError":
            return TooFewClientsError(message, self.quarantined)
        if self.kind in PLAIN:
            return PLAIN[self.kind](message)
        where = "rank 0" if rank is None else f"rank {rank}"
        return RuntimeError(f"{where} failed: {self.kind}: {self.message}")
