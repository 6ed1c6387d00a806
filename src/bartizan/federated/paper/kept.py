"""Finished runs in one file: a JSON line each, without what goes by client, so small that a repository can hold them.

`docs/results-format.md` lists the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bartizan import results
from bartizan.atomic import write_whole
from bartizan.federated.paper.ours import Ours, served_in
from bartizan.federated.paper.settings import parted, places

VERSION = 1
KIND = "kept"
PARTS = ("train", "sketch", "weigh", "combine")
DIGITS = 5  # of a time


@dataclass(frozen=True)
class Kept:
    """One finished run, as the file has it."""

    id: str
    config: dict[str, Any]
    status: str
    converged: bool
    rounds: int
    best: float | None
    last: float | None
    accuracy: list[list[float]]
    """[round, accuracy on the test set] of every evaluated round."""
    seconds: dict[str, float | None]
    """Of the median round: server, and its parts; train; one read of the updates. Of the whole run: run."""
    on_liars: float | None
    """The mean round's weight on Byzantine clients."""
    moved: float | None
    """The part of the weight that went elsewhere than the exact rule's: the mean of the evaluated rounds."""
    images: int | None
    data: str | None
    ratio: dict[str, float] | None
    dim: int | None
    notes: list[str]
    machine: str
    bartizan: str
    torch: str
    commit: str | None
    """The revision that ran, where somebody said it."""

    @classmethod
    def of(cls, recorded: results.Recorded, commit: str | None = None) -> Kept:
        run, rounds, end, ours = recorded.run, recorded.rounds, recorded.end, Ours.of(recorded)
        assert end is not None
        config = {key: dict(value) if isinstance(value, Mapping) else value for key, value in run["config"].items()}
        config["data"].pop("folder", None)  # of somebody's machine
        seen = [[line["round"], line["accuracy"]] for line in rounds if line.get("accuracy") is not None]
        times = {part: [line["seconds"].get(part) for line in rounds] for part in PARTS}
        times["server"] = [served_in(line["seconds"]) for line in rounds]
        times["read"] = [line.get("read") for line in rounds]
        return cls(
            id=run["id"],
            config=config,
            status=end["status"],
            converged=end["converged"],
            rounds=len(rounds),
            best=max((accuracy for _, accuracy in seen), default=None),
            last=seen[-1][1] if seen else None,
            accuracy=seen,
            seconds={part: _middle(of) for part, of in times.items()} | {"run": _short(end.get("seconds"))},
            on_liars=_short(ours.on_liars),
            moved=_short(ours.moved),
            images=ours.images,
            data=run.get("data"),
            ratio=run.get("ratio"),
            dim=run.get("dim"),
            notes=list(dict.fromkeys(line["note"] for line in rounds if line.get("note"))),
            machine=ours.machine,
            bartizan=run.get("bartizan") or "",
            torch=run.get("torch") or "",
            commit=commit,
        )

    @property
    def identity(self) -> tuple[str, str, int, str | None]:
        """Two runs that have it in common are one run made twice."""
        return *parted(self.config, self.images), self.config["seed"], self.data

    @property
    def ours(self) -> Ours:
        best = None if self.best is None else 100 * self.best
        return Ours(
            seed=self.config["seed"],
            accuracy=best if self.converged else None,
            seconds=self.seconds["server"],
            done=self.rounds,
            planned=self.config["rounds"],
            diverged=self.status == "diverged",
            machine=self.machine,
            best=best,
            images=self.images,
            on_liars=self.on_liars,
            moved=self.moved,
        )


@dataclass(frozen=True)
class Outcome:
    """What keeping the runs of a folder came to."""

    runs: int = 0
    """In the file, now."""
    new: int = 0
    changed: int = 0
    unfinished: int = 0
    strangers: int = 0
    """Runs that are none of the paper's cells."""
    unread: tuple[str, ...] = ()


def keep(folder: Path, file: Path, commit: str | None = None) -> Outcome:
    """Put the finished runs of a folder into the file, each once; a second time changes nothing.

    A run that is there already gives way to the folder's, but keeps its commit where none is said now.
    """
    held = {one.identity: one for one in read(file)} if file.exists() else {}
    before, unfinished, strangers, unread = dict(held), 0, 0, list[str]()
    for path in results.find(folder):
        try:
            recorded = results.read(path)
            if parted(recorded.run["config"])[0] not in places():
                strangers += 1
            elif recorded.end is None:
                unfinished += 1
            else:
                one = Kept.of(recorded, commit)
                old = before.get(one.identity)
                if commit is None and old is not None:
                    one = Kept.of(recorded, old.commit)
                held[one.identity] = one
        except (results.CorruptFileError, KeyError, TypeError) as wrong:
            unread.append(results.trouble(path, wrong))
    new = [identity for identity in held if identity not in before]
    changed = [identity for identity, one in before.items() if held[identity] != one]
    if new or changed:
        write(file, list(held.values()))
    return Outcome(len(held), len(new), len(changed), unfinished, strangers, tuple(unread))


def write(file: Path, runs: list[Kept]) -> None:
    """In the order of the paper's cells, so that the same runs are the same file."""
    ordered = sorted(runs, key=lambda one: (places()[one.identity[0]], one.identity[0], *map(str, one.identity[1:])))
    lines = [results.encoded({"kind": KIND, "version": VERSION, **asdict(one)}) for one in ordered]
    write_whole(file, b"".join(lines))


def read(file: Path) -> list[Kept]:
    out = []
    for number, line in enumerate(results.decoded(file, file.read_bytes().rstrip(b"\n"), (KIND,)), start=1):
        version = line.pop("version", None)
        if version != VERSION:
            raise results.CorruptFileError(
                f"{file}, line {number}, is of version {version!r}; this bartizan reads version {VERSION}."
            )
        try:
            out.append(Kept(**{name: value for name, value in line.items() if name != "kind"}))
        except TypeError as wrong:
            raise results.CorruptFileError(f"{file}, line {number}, is no kept run: {wrong}") from None
    return out


def _middle(numbers: list[float | None]) -> float | None:
    """The median of what there is; refused rounds have no time of the server."""
    there = [number for number in numbers if number]
    return _short(median(there)) if there else None


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.{DIGITS}g}")
