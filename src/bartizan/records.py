"""Write and read `results.jsonl`, the record of one training run in the laboratory or in a deployment.

The file begins with a `run` line (clients and configuration), has one `round` line for each round, and closes with an
`end` line. `docs/reference/results-format.md` lists the fields of each. The report reads nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bartizan._util import jsonl, schema
from bartizan._util.jsonl import CorruptFileError, encode
from bartizan._util.schema import Between
from bartizan._util.text import quoted

__all__ = ["CorruptFileError", "Recorded", "Writer", "encode", "find", "read"]

VERSION = 1
NAME = "results.jsonl"
MOST_THREADS = 1024

Id = str | int | float
Number = float | None
Count = Annotated[int, Between(0, 10**15)]


class Ratio(TypedDict):
    count: NotRequired[Number]
    data: NotRequired[Number]


class Seconds(TypedDict):
    train: NotRequired[Number]
    sketch: NotRequired[Number]
    weigh: NotRequired[Number]
    combine: NotRequired[Number]


class RunLine(TypedDict):
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
    dim: NotRequired[Count | None]
    bartizan: NotRequired[str | None]
    torch: NotRequired[str | None]
    machine: NotRequired[str | None]
    threads: NotRequired[Annotated[int, Between(1, MOST_THREADS)] | None]


class RoundLine(TypedDict):
    kind: Literal["round"]
    round: int
    clients: list[Id]
    weights: NotRequired[list[Number] | None]
    sizes: NotRequired[list[Number] | None]
    exact_weights: NotRequired[list[Number] | None]
    scores: NotRequired[list[Number] | None]
    quarantined: NotRequired[dict[str, str] | None]
    failed: NotRequired[dict[str, str] | None]
    n_byzantine: NotRequired[Count | None]
    seed: NotRequired[str | None]
    sketch: NotRequired[str | None]
    seconds: NotRequired[Seconds | None]
    read: NotRequired[Number]
    loss: NotRequired[Number]
    norm: NotRequired[Number]
    step: NotRequired[Number]
    accuracy: NotRequired[Number]
    test_loss: NotRequired[Number]
    backdoor: NotRequired[Number]
    note: NotRequired[str | None]


class EndLine(TypedDict):
    kind: Literal["end"]
    status: NotRequired[str | None]
    converged: NotRequired[bool | None]
    best: NotRequired[Number]
    last: NotRequired[Number]
    seconds: NotRequired[Number]


LINES: dict[str, type[Any]] = {"run": RunLine, "round": RoundLine, "end": EndLine}
BY_CLIENT = ("weights", "sizes", "exact_weights", "scores")
"""Fields of a round's line with a number for each of its clients."""


@dataclass(frozen=True)
class Recorded:
    """The lines of one run's file."""

    folder: Path
    run: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    torn: str = ""
    """The beginning of an incomplete last line: the writer was stopped, or is still writing. Usually empty."""

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines in order."""
        return [self.run, *self.rounds, *([self.end] if self.end else [])]


class Writer(jsonl.Appender):
    """Append lines to a run's file."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Start a new file in `folder`, or continue one after its first `keep` bytes."""
        super().__init__(folder / NAME, keep)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line of a kind in `LINES`."""
        self.append({"kind": _known(kind), **fields})


def read(folder: Path, keep: int | None = None) -> Recorded:
    """Read a run's file, or its first `keep` bytes, and check every complete line and all its fields."""
    path = Path(folder) / NAME
    advice = "Put back a copy, or delete the run's folder and run again."
    found = jsonl.read(path, _Checked(), advice=advice, size=keep)
    if not found.rows:
        raise CorruptFileError(f"{path} holds no complete line. Delete its folder and run again.")
    run, *others = found.rows
    rounds = [line for line in others if line["kind"] == "round"]
    ends = [line for line in others if line["kind"] == "end"]
    return Recorded(path.parent, run, rounds, ends[-1] if ends else None, found.torn)


def find(folder: Path) -> list[Path]:
    """Return the folders of all runs in a folder, itself included, sorted by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; wanted one that `bartizan run` or `sweep` wrote.")
    return sorted(path.parent for path in folder.rglob(NAME))


class _Checked:
    """Check the lines of one file, in their order: the fields of each, and that they fit the lines before."""

    def __init__(self) -> None:
        self.clients: set[Any] | None = None
        """Of the run; None before its line."""
        self.texts: set[Any] = set()
        """The same as the keys of JSON objects."""
        self.took_part: list[Id] = []
        """The clients of the last round, which need no other check if the next round has the same."""
        self.rounds = 0

    def __call__(self, line: dict[str, Any]) -> dict[str, Any]:
        kind = _known(line.get("kind"))
        if (kind == "run") != (self.clients is None):
            raise ValueError(f"a file must begin with a line of kind 'run' and have no other, got {kind!r}")
        if kind == "run" and line.get("version") != VERSION:
            raise ValueError(f"it is of version {quoted(line.get('version'), 60)}, and version {VERSION} is read")
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
        for row in split or []:
            _require_length("each list of split", row, len(split[0]))
        if split:
            _require_length("classes", line.get("classes"), len(split[0]))

    def _check_round(self, line: Mapping[str, Any]) -> None:
        self.rounds += 1
        if line["round"] != self.rounds:
            raise ValueError(f"rounds must be numbered from 1 on, each once, got {line['round']} for {self.rounds}")
        assert self.clients is not None
        if line["clients"] != self.took_part:
            _require_known("clients", line["clients"], self.clients)
            self.took_part = line["clients"]
        for name in BY_CLIENT:
            _require_length(name, line.get(name), len(self.took_part))
        _require_known("quarantined", line.get("quarantined") or [], self.texts)


def _known(kind: Any) -> str:
    if not isinstance(kind, str) or kind not in LINES:
        raise ValueError(f"the kind of a line is one of {', '.join(LINES)}, got {quoted(kind, 60)}")
    return kind


def _require_known(name: str, clients: Collection[Id], known: set[Any]) -> None:
    """Raise unless all are clients of the run, each once."""
    if not known.issuperset(clients):
        unknown = next(one for one in clients if one not in known)
        raise ValueError(f"{name} names {quoted(unknown, 60)}, which is no client of the run")
    if len(set(clients)) < len(clients):
        raise ValueError(f"{name} names a client twice")


def _require_length(name: str, values: Collection[Any] | None, length: int) -> None:
    if values is not None and len(values) != length:
        raise ValueError(f"{name} must have {length:,} entries, got {len(values):,}")
