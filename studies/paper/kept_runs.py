"""Summaries of runs of the paper's cells, and the JSON-lines file that keeps those of finished runs.

The file has one line a run and nothing by client, so that a repository can hold it.
`studies/paper/protocols.md` lists the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bartizan import records
from bartizan._util import jsonl, schema
from bartizan._util.text import quoted, text
from studies.paper.paper_protocol import completed, positions, protocol_of, split_config

KIND, VERSION = "kept", 1
DIGITS = 5  # of times and weights
STEPS = ("train", "sketch", "weigh", "combine")  # all but the first are the server's
UNFINISHED = "unfinished"
ADVICE = "Put back a copy, or delete the line and keep the run again."


@dataclass(frozen=True)
class RunSummary:
    """One run of a cell: its configuration, its accuracies, and medians over its rounds."""

    id: str
    config: dict[str, Any]
    status: str
    converged: bool | None
    """None: it is not finished."""
    rounds: int
    best: float | None
    last: float | None
    accuracy: tuple[tuple[int, float], ...]
    """(round, accuracy on the test set) of every evaluated round."""
    seconds: dict[str, float | None]
    """Seconds of the median round (server, its steps, train, one read of the updates) and of the whole run (run)."""
    on_attackers: float | None
    """The weight on Byzantine clients, mean over the rounds; None where it is unknown who is Byzantine."""
    moved: float | None
    """The part of the weight that the projection gave to other clients than the exact rule, mean over the rounds."""
    images: int | None
    """Number of images that all clients hold together."""
    data: str | None
    ratio: dict[str, Any] | None
    dim: int | None
    notes: tuple[str, ...]
    machine: str
    bartizan: str
    torch: str
    commit: str | None
    """The revision that ran, if it was given."""
    first_weights: str | None = None
    """The hash of the file that the run began from; None where its weights were drawn."""
    protocol: str = ""
    """Budgeted or literal, as the configuration says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", completed(self.config))
        protocol = protocol_of(self.config)
        if self.protocol not in ("", protocol):
            raise TypeError(f"protocol must be {protocol!r}, as config says, got {quoted(self.protocol, 60)}")
        object.__setattr__(self, "protocol", protocol)
        if not {"server", "run"} <= set(self.seconds):
            raise TypeError("seconds must have the keys server and run")

    @classmethod
    def of(cls, recorded: records.Recorded, commit: str | None = None) -> RunSummary:
        """Summarise a recorded run, finished or not; one that is none of the laboratory's is a CorruptFileError."""
        run, rounds, end = recorded.run, recorded.rounds, recorded.end or {"status": UNFINISHED}
        curve = [(line["round"], line["accuracy"]) for line in rounds if line.get("accuracy") is not None]
        sizes, attackers = run.get("sizes"), run.get("byzantine")
        weighed = [line for line in rounds if line.get("weights")]
        exact = [line for line in weighed if line.get("exact_weights")]
        spent = [line.get("seconds") or {} for line in rounds]
        seconds = {step: _median(one.get(step) for one in spent) for step in STEPS}
        seconds["read"] = _median(line.get("read") for line in rounds)
        seconds["server"] = _median(sum(one.get(step) or 0.0 for step in STEPS[1:]) for one in spent)
        seconds["run"] = _rounded(end.get("seconds"))
        row = {
            "id": run.get("id"),
            "config": run.get("config"),
            "status": end.get("status"),
            "converged": end.get("converged"),
            "rounds": len(rounds),
            "best": max((accuracy for _, accuracy in curve), default=None),
            "last": curve[-1][1] if curve else None,
            "accuracy": curve,
            "seconds": seconds,
            "on_attackers": None if attackers is None else _mean(_on_attackers(line, attackers) for line in weighed),
            "moved": _mean(_differ(line["weights"], line["exact_weights"]) for line in exact),
            "images": sum(sizes) if sizes else None,
            "data": run.get("data"),
            "ratio": run.get("ratio"),
            "dim": run.get("dim"),
            "notes": list(dict.fromkeys(line["note"] for line in rounds if line.get("note"))),
            "machine": str(run.get("machine") or ""),
            "bartizan": run.get("bartizan") or "",
            "torch": run.get("torch") or "",
            "commit": commit,
            "first_weights": run.get("first_weights"),
        }
        try:
            return schema.parse(cls, row)
        except (TypeError, ValueError) as wrong:
            path = recorded.folder / records.NAME
            raise records.CorruptFileError(f"{path} is not the record of an experiment: {wrong}") from None

    @property
    def identity(self) -> tuple[str, str, int, str | None]:
        """Equal for two runs of the same settings, seed and data."""
        return *split_config(self.config, self.images, self.first_weights), self.seed, self.data

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def planned(self) -> int:
        """Rounds that the configuration asks for."""
        return int(self.config["rounds"])

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    @property
    def ended(self) -> bool:
        return self.diverged or self.rounds == self.planned

    @property
    def best_percent(self) -> float | None:
        """The best accuracy, whether the run converged or not."""
        return None if self.best is None else 100 * self.best

    @property
    def last_percent(self) -> float | None:
        """The accuracy of the last evaluation, whether the run converged or not."""
        return None if self.last is None else 100 * self.last

    @property
    def accuracy_percent(self) -> float | None:
        """The best accuracy; None if the run did not converge."""
        return None if self.converged is False else self.best_percent

    @property
    def server_seconds(self) -> float | None:
        return self.seconds["server"]


@dataclass(frozen=True)
class KeepResult:
    """The result of `keep`, in numbers of runs."""

    runs: int = 0
    """In the file now."""
    new: int = 0
    changed: int = 0
    unfinished: int = 0
    others: int = 0
    """Not of the paper's cells."""
    unread: tuple[str, ...] = ()


def keep(folder: Path, file: Path, commit: str | None = None) -> KeepResult:
    """Add the finished runs of a folder to the file, each once; doing so again changes nothing.

    A run that is in the file already is replaced, but keeps its commit unless another is given.
    """
    lines = read(file) if file.exists() else []
    before = {one.identity: one for one in lines}
    held, unfinished, others, unread = dict(before), 0, 0, list[str]()
    for one in summaries(folder, unread, commit):
        if one.identity[0] not in positions():
            others += 1
        elif one.converged is None:
            unfinished += 1
        else:
            old = before.get(one.identity)
            held[one.identity] = replace(one, commit=old.commit) if commit is None and old else one
    new = len(held) - len(before)
    changed = sum(held[identity] != one for identity, one in before.items())
    if new or changed or len(lines) > len(before):  # a run that was in the file twice is there once now
        write(file, held.values())
    return KeepResult(len(held), new, changed, unfinished, others, tuple(unread))


def summaries(folder: Path, unread: list[str], commit: str | None = None) -> Iterator[RunSummary]:
    """Yield the summaries of the runs in a folder; why one can't be read is added to `unread`."""
    paths = records.find(folder)
    if not paths:
        raise ValueError(f"{folder} holds no run; `python -m studies paper run TABLE --out DIR` makes some.")
    for path in paths:
        try:
            yield RunSummary.of(records.read(path), commit)
        except (ValueError, OSError) as wrong:
            unread.append(text(wrong))


def write(file: Path, runs: Iterable[RunSummary]) -> None:
    """Replace the file by these runs, in the order of the paper's cells."""
    last = len(positions())
    ordered = sorted(
        runs, key=lambda one: (positions().get(one.identity[0], last), one.identity[0], *map(str, one.identity[1:]))
    )
    jsonl.rewrite(file, ({"kind": KIND, "version": VERSION, **schema.as_row(one)} for one in ordered))


def read(file: Path) -> list[RunSummary]:
    """Return the runs that a file keeps."""

    def parsed(row: dict[str, Any]) -> RunSummary:
        kind, version = row.pop("kind", None), row.pop("version", None)
        if kind != KIND:
            raise ValueError(f"it is of kind {quoted(kind, 60)}, not {KIND!r}")
        if version != VERSION:
            raise ValueError(f"it is of version {quoted(version, 60)}; this bartizan reads version {VERSION}")
        return schema.parse(RunSummary, row)

    return jsonl.read(file, parsed, advice=ADVICE, appended=False).rows


def _on_attackers(line: Mapping[str, Any], byzantine: list[int]) -> float:
    given = zip(line["clients"], line["weights"], strict=True)
    return sum(weight or 0.0 for client, weight in given if client in byzantine)


def _differ(some: list[float | None], others: list[float | None]) -> float:
    """Return half the sum of the differences between the weights: 1 if no client kept any."""
    return sum(abs((a or 0.0) - (b or 0.0)) for a, b in zip(some, others, strict=True)) / 2


def _median(numbers: Iterable[float | None]) -> float | None:
    """Return the median of those that are not 0 or None: refused rounds have no time of the server."""
    measured = [one for one in numbers if one]
    return _rounded(median(measured)) if measured else None


def _mean(numbers: Iterable[float]) -> float | None:
    measured = list(numbers)
    return _rounded(fmean(measured)) if measured else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
