"""Registry of the surfaces, and what counts as a refusal or a failure of a case."""

import dis
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# The package is located, not imported: coverage is measured of what is imported later.
_spec = find_spec("bartizan")
HOME = str(Path(_spec.origin or "").parent) if _spec else ""
RAISE = dis.opmap["RAISE_VARARGS"]
LONGEST_MESSAGE, REASON_CHARACTERS = 4000, 600
CLIENT_MEMORY_ERROR = "raised by a client"
"""Text of a MemoryError that a client raises, to tell it from one of the library's."""
ACCEPTED, COMPARED, REFUSED = "accepted", "compared", "refused"
"""Outcomes of a case; "compared" is accepted, and the result equals that of an oracle."""


@dataclass(frozen=True)
class Surface:
    """One way into the library: `check` runs a case, which is drawn as its arguments, and returns the outcome."""

    check: Callable[..., str]
    cases: Mapping[str, Any]
    """A Hypothesis strategy for each argument."""


def surface_of_calls(calls):
    """Return the surface whose cases are functions without arguments, drawn with all that they need."""
    return Surface(lambda call: call(), {"call": calls})


@dataclass(frozen=True)
class Entry:
    """Where a surface is built, its share of the time, the packages whose branches guide it, and the extra it needs."""

    build: str
    share: int
    packages: str
    needs: str = "torch"


SURFACES = {
    "aggregate": Entry("aggregate", 6, "updates judge"),
    "round": Entry("round", 5, "updates judge round"),
    "sizes": Entry("sizes", 2, "judge rules.base"),
    "update-files": Entry("updates.files", 2, "updates", "safetensors"),
    "shards": Entry("updates.files:shards", 2, "updates", "safetensors"),
    "adapters": Entry("adapters", 2, "sources.adapters", "safetensors"),
    "server-faults": Entry("server_faults", 1, "updates", "safetensors"),
    "weightless": Entry("weightless:containers", 2, "updates"),
    "weightless-adapters": Entry("weightless:adapters", 1, "sources.adapters"),
    "committed": Entry("committed", 2, "sources.committed"),
    "cifar": Entry("lab.data:cifar", 2, "lab.data", "PIL"),
    "mnist": Entry("lab.data:mnist", 1, "lab.data", "PIL"),
    "sotu": Entry("lab.data:sotu", 1, "lab.data", "PIL"),
    "tiny-imagenet": Entry("lab.data:tiny_imagenet", 1, "lab.data", "PIL"),
    "configs": Entry("lab.config", 2, "lab.config"),
    "results": Entry("lab.runs:results", 2, "records lab.report"),
    "checkpoints": Entry("lab.runs:checkpoints", 1, "lab.runs lab.training.server"),
    "first-weights": Entry("lab.runs:first_weights", 1, "lab.models.weights", "safetensors"),
    "flower": Entry("flower:replies", 2, "flower", "flwr"),
    "flower-checkpoints": Entry("flower:checkpoints", 1, "flower", "flwr"),
    "nvflare": Entry("nvflare", 2, "nvflare", "nvflare"),
}


def build(name, folder):
    """Return a surface that writes its files into this folder."""
    module, _, function = SURFACES[name].build.partition(":")
    folder.mkdir(parents=True, exist_ok=True)
    return getattr(import_module(f"fuzz.{module}"), function or "surface")(folder)


def missing(name):
    """Return the packages that a surface needs and that are not installed."""
    return [package for package in ("torch", "hypothesis", SURFACES[name].needs) if find_spec(package) is None]


class WrongError(AssertionError):
    """The library returned another result than the oracle."""


class RefusedError(Exception):
    """The library refused this case with a documented error."""


def require(condition, message):
    if not condition:
        raise WrongError(message)


@contextmanager
def documented(*kinds, sound=False):
    """Turn an error of these kinds that the library raised itself, with a message, into a refusal.

    It is wrong to refuse a sound input.
    """
    try:
        yield
    except kinds as error:
        if not on_purpose(error):
            raise
        require(not sound, f"a sound input was refused: {error}")
        raise RefusedError from error


def on_purpose(error):
    """Return whether a `raise` statement of the library raised this, with a message of reasonable length."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or not at.tb_frame.f_code.co_filename.startswith(HOME):
        return False
    # An error from C has no frame of its own: the last frame is that of the calling line, which is no `raise`.
    raised = at.tb_frame.f_code.co_code[at.tb_lasti] == RAISE
    return raised and 10 < len(str(error)) < LONGEST_MESSAGE and not out_of_memory(error)


def out_of_memory(error):
    """Return whether a MemoryError that no client raised is among the causes of this error."""
    while error is not None:
        if isinstance(error, MemoryError) and str(error) != CLIENT_MEMORY_ERROR:
            return True
        error = error.__cause__ or error.__context__
    return False


def fair(reason):
    """Return whether a client's quarantine is explained in a few words, and not by a lack of memory."""
    return 10 < len(reason) < REASON_CHARACTERS and ("MemoryError" not in reason or CLIENT_MEMORY_ERROR in reason)
