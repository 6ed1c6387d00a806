"""What is tried, and what counts as a failure."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

# Found, not imported: coverage is of what is imported later.
_found = find_spec("bartizan")
HOME = str(Path(_found.origin or "").parent) if _found else ""
LONGEST_MESSAGE = 4000
ACCEPTED, REFUSED = "accepted", "refused"


class WrongError(AssertionError):
    """The library gave an answer, and not the one that the oracle gives."""


class RefusedError(Exception):
    """The library refused this case with an error of its own, as documented."""


@dataclass(frozen=True)
class Surface:
    """One way into the library: a case a call, which says whether it was accepted or refused."""

    case: Callable[[bytes], str]
    seeds: list[bytes] = field(default_factory=lambda: [b""])
    """Where mutation begins: whole files, or nothing where bytes are choices."""
    length: int = 400
    """Bytes of a case, at most."""


def require(fact: object, said: str) -> None:
    if not fact:
        raise WrongError(said)


@contextmanager
def documented(*kinds: type[BaseException]) -> Iterator[None]:
    """An error of these kinds is a refusal, if the library itself raised it, with something to say."""
    try:
        yield
    except kinds as error:
        if not on_purpose(error):
            raise
        raise RefusedError from error


def on_purpose(error: BaseException) -> bool:
    """Raised by a line of the library, not by something that it called and that met what it had not expected."""
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    return where.startswith(HOME) and 10 < len(str(error)) < LONGEST_MESSAGE
