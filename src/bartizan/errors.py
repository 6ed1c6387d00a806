"""What can go wrong with clients; everything the *caller* gets wrong is a plain ValueError or TypeError."""

from __future__ import annotations

from collections.abc import Mapping


class BadClientError(ValueError):
    """Under `strict=True`: this client's update could not take part."""

    def __init__(self, client: int, reason: str) -> None:
        super().__init__(f"client {client}: {reason} (strict=True; without it this client would be quarantined)")
        self.client = client
        self.reason = reason


class TooFewClientsError(ValueError):
    """The clients at hand do not meet the rule's condition: no robust answer exists this round."""

    def __init__(self, message: str, quarantined: Mapping[int, str] | None = None) -> None:
        self.quarantined = dict(quarantined or {})
        if self.quarantined:
            reasons = "; ".join(f"client {i}: {reason}" for i, reason in list(self.quarantined.items())[:10])
            more = len(self.quarantined) - 10
            message += f" Quarantined: {reasons}" + (f"; and {more} more." if more > 0 else ".")
        super().__init__(message)
