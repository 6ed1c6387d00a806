"""The fields of the lines of results.jsonl, declared once, and the check of all lines that are read.

`docs/reference/results-format.md` explains the fields. What is not declared here is accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bartizan._util import schema
from bartizan._util.schema import Between
from bartizan._util.text import quoted

VERSION = 1
MAX_THREADS = 1024

Id = str | int | float
Number = float | None
Count = Annotated[int, Between(0, 10**15)]


class Ratio(TypedDict):
    """The attackers' share of the clients and of the data."""

    count: NotRequired[Number]
    data: NotRequired[Number]


class Seconds(TypedDict):
    """The time of each stage of a round."""

    train: NotRequired[Number]
    sketch: NotRequired[Number]
    weigh: NotRequired[Number]
    combine: NotRequired[Number]


class RunLine(TypedDict):
    """The first line."""

    kind: Literal["run"]
    version: int
    clients: list[Id]
    id: NotRequired[str]
    name: NotRequired[str | None]
    config: NotRequired[dict[str, Any]]
    byzantine: NotRequired[list[Id] | None]
    ratio: NotRequired[Ratio | None]
    sizes: NotRequired[list[Count] | None]
    split: NotRequired[list[list[Number]] | None]
    classes: NotRequired[list[str] | None]
    data: NotRequired[str | None]
    metric: NotRequired[Literal["accuracy", "perplexity"] | None]
    first_weights: NotRequired[str | None]
    dim: NotRequired[Count | None]
    bartizan: NotRequired[str | None]
    torch: NotRequired[str | None]
    machine: NotRequired[str | None]
    threads: NotRequired[Annotated[int, Between(1, MAX_THREADS)] | None]


class RoundLine(TypedDict):
    """The line of a round."""

    kind: Literal["round"]
    round: int
    clients: list[Id]
    weights: NotRequired[list[Number] | None]
    sizes: NotRequired[list[Number] | None]
    exact_weights: NotRequired[list[Number] | None]
    scores: NotRequired[list[Number] | None]
    ages: NotRequired[list[Count] | None]
    time: NotRequired[Number]
    quarantined: NotRequired[dict[str, str] | None]
    failed: NotRequired[dict[str, str] | None]
    n_byzantine: NotRequired[Count | None]
    seed: NotRequired[str | None]
    sketch: NotRequired[str | None]
    sketch_version: NotRequired[Count | None]
    seconds: NotRequired[Seconds | None]
    read: NotRequired[Number]
    committed_bytes: NotRequired[Number]
    loss: NotRequired[Number]
    norm: NotRequired[Number]
    step: NotRequired[Number]
    accuracy: NotRequired[Number]
    perplexity: NotRequired[Number]
    test_loss: NotRequired[Number]
    backdoor: NotRequired[Number]
    note: NotRequired[str | None]


class EndLine(TypedDict):
    """The last line."""

    kind: Literal["end"]
    status: NotRequired[str | None]
    converged: NotRequired[bool | None]
    best: NotRequired[Number]
    last: NotRequired[Number]
    seconds: NotRequired[Number]


LINES: dict[str, type[Any]] = {"run": RunLine, "round": RoundLine, "end": EndLine}
BY_CLIENT = ("weights", "sizes", "exact_weights", "scores")
"""Fields of a round's line with a number for each of its clients."""


class LineChecker:
    """Check the lines of one file, in their order: the fields of each, and that they fit the lines before."""

    def __init__(self) -> None:
        self.clients: set[Any] | None = None  # of the run; None before its line
        self.texts: set[Any] = set()  # the same as the keys of JSON objects
        self.rounds = 0

    def __call__(self, line: dict[str, Any]) -> dict[str, Any]:
        kind = known_kind(line.get("kind"))
        if (kind == "run") != (self.clients is None):
            raise ValueError(f"a file must begin with a line of kind 'run' and have no other, got {kind!r}")
        if kind == "run" and line.get("version") != VERSION:
            raise ValueError(f"version must be {VERSION}, got {quoted(line.get('version'), 60)}")
        schema.check(LINES[kind], line)
        if kind == "run":
            self._check_run(line)
        elif kind == "round":
            self._check_round(line)
        return line

    def _check_run(self, line: Mapping[str, Any]) -> None:
        ids, split = line["clients"], line.get("split")
        self.clients, self.texts = set(ids), set(map(str, ids))
        _require_known("clients", ids, self.clients)
        if len(self.texts) < len(ids):  # such as 1 and "1"
            raise ValueError("clients names a client twice")
        _require_known("byzantine", line.get("byzantine") or [], self.clients)
        _require_length("sizes", line.get("sizes"), len(ids))
        _require_length("split", split, len(ids))
        if split:
            for row in split:
                _require_length("each list of split", row, len(split[0]))
            _require_length("classes", line.get("classes"), len(split[0]))

    def _check_round(self, line: Mapping[str, Any]) -> None:
        self.rounds += 1
        if line["round"] != self.rounds:
            raise ValueError(f"rounds must be numbered from 1 on, each once, got {line['round']} for {self.rounds}")
        assert self.clients is not None
        _require_known("clients", line["clients"], self.clients)
        for name in BY_CLIENT:
            _require_length(name, line.get(name), len(line["clients"]))
        for name in ("quarantined", "failed"):
            _require_known(name, line.get(name) or [], self.texts)


def known_kind(kind: Any) -> str:
    """Return a line's kind if it is one of `LINES`."""
    if not isinstance(kind, str) or kind not in LINES:
        raise ValueError(f"kind must be one of {', '.join(LINES)}, got {quoted(kind, 60)}")
    return kind


def _require_known(name: str, clients: Collection[Id], known: set[Any]) -> None:
    """Raise unless every id in `clients` is known and appears once."""
    if not known.issuperset(clients):
        unknown = next(one for one in clients if one not in known)
        raise ValueError(f"{name} names {quoted(unknown, 60)}, which is no client of the run")
    if len(set(clients)) < len(clients):
        raise ValueError(f"{name} names a client twice")


def _require_length(name: str, values: Collection[Any] | None, length: int) -> None:
    if values is not None and len(values) != length:
        raise ValueError(f"{name} must have {length:,} entries, got {len(values):,}")
