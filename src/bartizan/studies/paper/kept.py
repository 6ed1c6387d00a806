"""Finished runs in one file: a JSON line each, without what goes by client, so small that a repository can hold them.

`docs/reference/results-format.md` lists the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bartizan import records as results
from bartizan._util import jsonl
from bartizan.lab.config.keys import shown
from bartizan.studies.paper.cell_settings import filled, parted, places
from bartizan.studies.paper.outcome import Ours, number

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", filled(self.config))
        for name, fits in FORM.items():
            if not fits(getattr(self, name)):
                raise TypeError(f"{name} can't be {shown(getattr(self, name))}")

    @classmethod
    def of(cls, recorded: results.Recorded, commit: str | None = None) -> Kept:
        run, rounds, end, ours = recorded.run, recorded.rounds, recorded.end, Ours.of(recorded)
        assert end is not None
        seen = [list(point) for point in ours.curve]
        times = {part: [line["seconds"].get(part) for line in rounds] for part in PARTS}
        times["read"] = [line.get("read") for line in rounds]
        return cls(
            id=run["id"],
            config=run["config"],
            status=end["status"],
            converged=end["converged"],
            rounds=len(rounds),
            best=max((accuracy for _, accuracy in seen), default=None),
            last=seen[-1][1] if seen else None,
            accuracy=seen,
            seconds={part: _middle(of) for part, of in times.items()}
            | {"server": _short(ours.seconds), "run": _short(end.get("seconds"))},
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
            curve=tuple((int(at), accuracy) for at, accuracy in self.accuracy),
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
    lines = read(file) if file.exists() else []
    held = {one.identity: one for one in lines}
    before, unfinished, strangers, unread = dict(held), 0, 0, list[str]()
    paths = results.find(folder)
    if not paths:
        raise ValueError(f"{folder} holds no run; `bartizan paper run TABLE --out DIR` makes some.")
    for path in paths:
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
        except results.MALFORMED as wrong:
            unread.append(results.explain(path, wrong))
    new = [identity for identity in held if identity not in before]
    changed = [identity for identity, one in before.items() if held[identity] != one]
    if new or changed or len(lines) > len(before):  # a run that stood there twice stands there once
        write(file, list(held.values()))
    return Outcome(len(held), len(new), len(changed), unfinished, strangers, tuple(unread))


def write(file: Path, runs: list[Kept]) -> None:
    """In the order of the paper's cells, so that the same runs are the same file."""
    ordered = sorted(
        runs,
        key=lambda one: (places().get(one.identity[0], len(places())), one.identity[0], *map(str, one.identity[1:])),
    )
    jsonl.rewrite(file, ({"kind": KIND, "version": VERSION, **asdict(one)} for one in ordered))


def read(file: Path) -> list[Kept]:
    """Read and check every line."""
    advice = "Put back a copy, or delete the line and keep the run again."
    return jsonl.read(file, _kept, advice=advice, appended=False).rows


def _kept(row: dict[str, Any]) -> Kept:
    kind, version = row.pop("kind", None), row.pop("version", None)
    if kind != KIND:
        raise ValueError(f"wanted a line of kind {KIND!r}, got {kind!r}")
    if version != VERSION:
        raise ValueError(f"it is of version {version!r}; this bartizan reads version {VERSION}")
    return Kept(**row)


def _middle(numbers: list[float | None]) -> float | None:
    """The median of what there is; refused rounds have no time of the server."""
    there = [one for one in numbers if one]
    return _short(median(there)) if there else None


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{number(value):.{DIGITS}g}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _finite(value: Any) -> bool:
    try:
        return number(value) == value
    except TypeError:
        return False


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _point(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _whole(value[0]) and _finite(value[1])


def _times(value: Any) -> bool:
    return isinstance(value, dict) and {"server", "run"} <= set(value) and all(map(_or_none(_finite), value.values()))


# What the fields of a line may be; a configuration checks itself.
FORM: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("id", "status", "machine", "bartizan", "torch"), _text),
    **dict.fromkeys(("data", "commit"), _or_none(_text)),
    **dict.fromkeys(("best", "last", "on_liars", "moved"), _or_none(_finite)),
    **dict.fromkeys(("images", "dim"), _or_none(_whole)),
    "rounds": _whole,
    "converged": lambda value: isinstance(value, bool),
    "accuracy": _list_of(_point),
    "seconds": _times,
    "ratio": _or_none(lambda value: isinstance(value, dict)),
    "notes": _list_of(_text),
}
