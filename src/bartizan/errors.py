"""Errors about clients and about the server; mistakes of the *caller* are plain ValueError or TypeError."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bartizan._util.text import short


class BadClientError(ValueError):
    """Raised under `strict=True`: this client's update can't take part."""

    def __init__(self, client: Any, reason: str) -> None:
        said = f"client {short(client, 60)}: {short(reason)}"
        super().__init__(f"{said} (strict=True; without it this client would be quarantined)")
        self.client = client
        self.reason = reason


class ServerResourceError(OSError):
    """The server is out of file descriptors, memory or disk, or its disk fails: no client is quarantined for it.

    The message says what to raise. Only what this library asks of the operating system itself raises it.
    """


class MemoryBudgetError(ValueError):
    """The limit `memory=` is too small for the round: no client is quarantined for it."""


ADVICE = {
    errno.EMFILE: "Raise the limit on open files of this process (ulimit -n)",
    errno.ENFILE: "Raise the limit on open files of this system (fs.file-max)",
    errno.ENOMEM: "Free memory, or raise the limits on it (ulimit -v, vm.max_map_count)",
    errno.ENOSPC: "Make room on that disk",
    errno.EDQUOT: "Make room on that disk, or raise its quota",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
    errno.EIO: "Check that disk",
}
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of opening and reading that a client's file can't cause."""


def server_error(error: OSError, what: str) -> ServerResourceError:
    """Name an error of the operating system as one of the server, with what to raise."""
    advice = ADVICE.get(error.errno or 0, "Check that this process may use it")
    return ServerResourceError(error.errno, f"{what}: {error.strerror or short(error)}. {advice}.")


def raise_if_exhausted(error: BaseException, what: str) -> None:
    """Raise ServerResourceError for an error of opening or reading that no client's file or store can cause."""
    if isinstance(error, ServerResourceError):
        raise error
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        raise server_error(error, what) from error


class LostClients(Exception):
    """Updates are gone, or not what was measured, when they are read again. Maps clients to reasons."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} clients were lost")
        self.reasons = dict(reasons)


class TooFewClientsError(ValueError):
    """The clients of this round are too few for the rule's condition: there is no robust result."""

    def __init__(
        self, message: str, quarantined: Mapping[Any, str] | None = None, failed: Mapping[Any, str] | None = None
    ) -> None:
        self.problem = message
        self.quarantined, self.failed = dict(quarantined or {}), dict(failed or {})
        for what, clients in (("Quarantined", self.quarantined), ("Failed", self.failed)):
            if clients:
                message += f" {what}: {_grouped(clients)}."
        super().__init__(message)


def nobody_left(n_quarantined: int, n_failed: int = 0) -> str:
    """Return the reason to refuse a round without a usable update."""
    n_out = n_quarantined + n_failed
    counts = f"{n_quarantined} quarantined, {n_failed} failed"
    return f"{n_out} of {n_out} clients are out ({counts}): there is no usable update."


def server_problem(wrong: Exception) -> str:
    """Return a sentence for logs and records on an error of the server in a round, such as a full disk."""
    if isinstance(wrong, ServerResourceError):
        return short(wrong)
    return short(f"the server raised {type(wrong).__name__}: {wrong}")


def _grouped(reasons: Mapping[Any, str], most: int = 10, longest: int = 1500) -> str:
    """Return clients by reason, in at most about `longest` characters."""
    clients: dict[str, list[Any]] = {}
    for client, reason in reasons.items():
        clients.setdefault(reason, []).append(client)
    shown = [f"{_named(who)}: {short(reason)}" for reason, who in list(clients.items())[:most]]
    while len(shown) > 1 and sum(map(len, shown)) > longest:
        shown.pop()
    more = len(clients) - len(shown)
    return "; ".join(shown) + (f"; and {more} more reason{'s' if more > 1 else ''}" if more else "")


def _named(clients: list[Any], most: int = 5) -> str:
    listed = ", ".join(short(client, 60) for client in clients[:most])
    more = f" and {len(clients) - most} more" if len(clients) > most else ""
    return f"client{'s' if len(clients) > 1 else ''} {listed}{more}"


@dataclass(frozen=True)
class NamedErrors:
    """Errors about clients, which name them by their index, name them by their ids.

    Not by `contextmanager`, which from Python 3.12 on leaves the first error, and all updates, in a reference cycle.
    """

    ids: Sequence[Any]
    failed: Mapping[Any, str]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, BadClientError):
            raise BadClientError(self.ids[error.client], error.reason) from None
        if isinstance(error, TooFewClientsError):
            named = {self.ids[client]: reason for client, reason in error.quarantined.items()}
            all_out = 0 < len(named) == len(self.ids)
            problem = nobody_left(len(named), len(self.failed)) if all_out else error.problem
            raise TooFewClientsError(problem, named, self.failed) from None
