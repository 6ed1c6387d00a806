"""What is tried, and what counts as a failure."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

# Found, not imported: coverage is of what is imported later.
_found = find_spec("bartizan")
HOME = str(Path(_found.origin or "").parent) if _found else ""
RAISE = dis.opmap["RAISE_VARARGS"]
LONGEST_MESSAGE, LONGEST_REASON = 4000, 600
NO_MEMORY = "memory ends where an attacker says so"
"""By which a MemoryError that a client raises is known from one of the library's."""
ACCEPTED, COMPARED, REFUSED = "accepted", "compared", "refused"
"""What became of a case; "compared" is accepted, and an oracle has given the same answer."""


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
    warm: Callable[[], None] = lambda: None
    """Compiles whatever any case may need, so that no case is timed with it."""


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
    """Raised by a `raise` of the library, not by something that it called and that met what it had not expected."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or not at.tb_frame.f_code.co_filename.startswith(HOME):
        return False
    # Errors of C have no frame of their own: that of the line which called it is the last, and no `raise` stands there.
    raised = at.tb_frame.f_code.co_code[at.tb_lasti] == RAISE
    return raised and 10 < len(str(error)) < LONGEST_MESSAGE and not out_of_memory(error)


def out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ended behind this error, by no attacker's own word: something was allocated that should not be."""
    while error is not None:
        if isinstance(error, MemoryError) and str(error) != NO_MEMORY:
            return True
        error = error.__cause__ or error.__context__
    return False


def fair(reason: str) -> bool:
    """Whether a client's quarantine is explained in a few words, and not by memory that ended."""
    return 10 < len(reason) < LONGEST_REASON and ("MemoryError" not in reason or NO_MEMORY in reason)
