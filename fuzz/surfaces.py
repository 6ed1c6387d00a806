"""Registry of the surfaces, and what counts as a refusal or a failure of a case."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

# The package is located, not imported: coverage is measured of what is imported later.
_spec = find_spec("bartizan")
HOME = str(Path(_spec.origin or "").parent) if _spec else ""
RAISE = dis.opmap["RAISE_VARARGS"]
LONGEST_MESSAGE, LONGEST_REASON = 4000, 600
CLIENT_MEMORY_ERROR = "raised by a client"
"""Text of a MemoryError that a client raises, to tell it from one of the library's."""
ACCEPTED, COMPARED, REFUSED = "accepted", "compared", "refused"
"""Outcomes of a case; "compared" is accepted, and the result equals that of an oracle."""


@dataclass(frozen=True)
class Surface:
    """One way into the library: `case` runs the case that some bytes describe and returns its outcome."""

    case: Callable[[bytes], str]
    seeds: list[bytes] = field(default_factory=lambda: [b""])
    """Cases that mutation starts from."""
    length: int = 400
    """Largest number of bytes of a case."""
    warm: Callable[[], None] = lambda: None
    """Compiles the kernels that any case may need, so that no case is timed with compilation."""


@dataclass(frozen=True)
class Entry:
    """Where a surface is built, its share of the time, the modules that guide coverage, and the extra it needs."""

    build: str
    share: int
    modules: tuple[str, ...]
    needs: str = "torch"


def _under(package: str, *names: str) -> tuple[str, ...]:
    return tuple(f"bartizan.{package}.{name}" for name in names)


DATA, REPORT = "lab.data", "lab.report"
SURFACES = {
    "aggregate": Entry("aggregate:surface", 6, _under("updates", "parse", "layout") + _under("judge", "quarantine")),
    "round": Entry("round:surface", 5, ("bartizan.round", *_under("updates", "parse", "spill"))),
    "sizes": Entry("sizes:surface", 2, _under("judge", "client_reports") + _under("rules", "base"), "hypothesis"),
    "update-files": Entry("updates.files:surface", 2, _under("updates", "files", "headers"), "safetensors"),
    "shards": Entry("updates.stores:folders", 2, _under("updates", "folders", "headers", "fetch"), "safetensors"),
    "stores": Entry("updates.stores:store", 1, _under("updates", "fetch", "stores"), "fsspec"),
    "adapters": Entry(
        "adapters:surface", 2, _under("sources.adapters", "adapters", "peft_folders", "adapter_round"), "safetensors"
    ),
    "server-faults": Entry("server_faults:surface", 1, _under("updates", "files", "mapping", "spill"), "safetensors"),
    "weightless": Entry("weightless:containers", 2, _under("updates", "parse", "layout", "build"), "hypothesis"),
    "weightless-adapters": Entry(
        "weightless:adapters",
        1,
        _under("sources.adapters", "adapters", "adapter_round", "merge", "result_template"),
        "hypothesis",
    ),
    "blind-spots": Entry(
        "blind_spots:surface",
        1,
        (*_under("measure", "rotated"), *_under("sources.adapters", "two_sided")),
        "hypothesis",
    ),
    "cifar": Entry("lab.data:cifar", 2, _under(DATA, "safe_pickle", "cifar", "base"), "PIL"),
    "mnist": Entry("lab.data:mnist", 1, _under(DATA, "idx", "base"), "PIL"),
    "sotu": Entry("lab.data:sotu", 1, _under(DATA, "addresses", "base"), "PIL"),
    "tiny-imagenet": Entry("lab.data:tiny_imagenet", 1, _under(DATA, "tiny_imagenet", "base"), "PIL"),
    "configs": Entry("lab.config:surface", 2, _under("lab.config", "experiment", "choices", "keys")),
    "results": Entry(
        "lab.runs:results",
        2,
        (
            "bartizan.records",
            "bartizan.result_lines",
            "bartizan._util.schema",
            "bartizan._util.jsonl",
            *_under(REPORT, "load", "run_data", "content", "finding", "factors", "pack"),
        ),
    ),
    "checkpoints": Entry(
        "lab.runs:checkpoints", 1, _under("lab.runs", "checkpoint") + _under("lab.training", "server")
    ),
    "first-weights": Entry("lab.weights:surface", 1, _under("lab.models", "weights"), "safetensors"),
    "file-kinds": Entry(
        "file_kinds:surface",
        1,
        ("bartizan._util.regular_files", *_under("updates", "files"), *_under(DATA, "base")),
        "PIL",
    ),
    "flower": Entry("flower:surface", 2, _under("flower", "replies"), "flwr"),
    "flower-checkpoints": Entry("flower_checkpoints:surface", 1, _under("flower", "saved_state"), "flwr"),
    "nvflare": Entry("nvflare:surface", 2, _under("nvflare", "aggregator", "site_results"), "nvflare"),
}


def build(name: str, folder: Path) -> Surface:
    module, _, function = SURFACES[name].build.partition(":")
    surface: Surface = getattr(import_module(f"fuzz.{module}"), function)(folder)
    return surface


def missing(name: str) -> list[str]:
    """Return the packages that a surface needs and that are not installed."""
    return [package for package in ("torch", SURFACES[name].needs) if find_spec(package) is None]


class WrongError(AssertionError):
    """The library returned another result than the oracle."""


class RefusedError(Exception):
    """The library refused this case with a documented error."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise WrongError(message)


@contextmanager
def documented(*kinds: type[BaseException], sound: bool = False) -> Iterator[None]:
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


def on_purpose(error: BaseException) -> bool:
    """Return whether a `raise` statement of the library raised this, with a message of reasonable length."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or not at.tb_frame.f_code.co_filename.startswith(HOME):
        return False
    # An error from C has no frame of its own: the last frame is that of the calling line, which is no `raise`.
    raised = at.tb_frame.f_code.co_code[at.tb_lasti] == RAISE
    return raised and 10 < len(str(error)) < LONGEST_MESSAGE and not out_of_memory(error)


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether a MemoryError that no client raised is among the causes of this error."""
    while error is not None:
        if isinstance(error, MemoryError) and str(error) != CLIENT_MEMORY_ERROR:
            return True
        error = error.__cause__ or error.__context__
    return False


def fair(reason: str) -> bool:
    """Return whether a client's quarantine is explained in a few words, and not by a lack of memory."""
    return 10 < len(reason) < LONGEST_REASON and ("MemoryError" not in reason or CLIENT_MEMORY_ERROR in reason)
