"""One run as the pictures want it: arrays by round, NaN where nothing was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.text import text
from bartizan._util.types import Floats
from bartizan.lab.report.fields import flat, mapping, number, numbers, places, shown, table, texts
from bartizan.records import NAME, CorruptFileError, Recorded

Flags = npt.NDArray[np.bool_]
Singles = npt.NDArray[np.float32]

ROUND = ("accuracy", "test_loss", "backdoor", "loss", "norm", "step", "read")
SERVER = ("sketch", "weigh", "combine")
SECONDS = ("train", *SERVER)


@dataclass(frozen=True, eq=False)
class Run:
    """What one `results.jsonl` tells, checked; T rounds, M clients."""

    place: str
    """Its folder, as seen from the one that was asked for."""
    id: str
    name: str
    config: dict[str, Any]
    """By dotted names, such as `rule.name`."""
    clients: tuple[str, ...]
    byzantine: Flags | None
    """(M,) the true attackers; None where nobody knows."""
    ratio: tuple[float, float]
    """Of the attackers, by count and by data."""
    sizes: Floats | None
    split: Floats | None
    classes: tuple[str, ...] | None
    dim: int | None
    versions: dict[str, str]
    status: str
    """`finished`, `diverged`, or `unfinished`."""
    torn: str
    converged: bool
    best: float
    last: float
    seconds: float
    series: dict[str, Floats]
    """(T,) for each name of `ROUND` and `SECONDS`."""
    weights: Singles
    """(T, M); NaN for who did not take part, and for a rule without weights."""
    present: Flags
    quarantined: Flags
    counted_for: Floats | None
    """(T, M) the size that each client counted for in a round, NaN where nobody said; None where all counted alike."""
    exact_rounds: npt.NDArray[np.intp]
    exact: Singles
    """(R, M) what the unprojected rule would have given, in those rounds."""
    sketch: str
    notes: tuple[tuple[int, str], ...]

    @property
    def n_rounds(self) -> int:
        return len(self.present)

    @property
    def weighs(self) -> bool:
        return bool(np.isfinite(self.weights).any())

    @property
    def server(self) -> Floats:
        """Seconds of the server in each round; a part that nobody timed counts nothing, and a refused round is NaN."""
        spent = np.nan_to_num(np.stack([self.series[name] for name in SERVER])).sum(axis=0)
        return np.where(spent > 0, spent, math.nan)

    @property
    def reads(self) -> Floats:
        """The same, in reads of the updates, where a read was timed."""
        read = self.series["read"]
        return np.divide(self.server, read, out=np.full(self.n_rounds, math.nan), where=read > 0)

    def share(self) -> Floats:
        """(M,) a client's mean weight over its rounds, an equal share being 1."""
        equal = self.weights * self.present.sum(axis=1, keepdims=True)
        return mean(np.asarray(equal, dtype=np.float64), axis=0)

    def on_attackers(self) -> Floats:
        """(T,) the attackers' part of all weight; NaN where there are none, or nobody knows them."""
        if self.byzantine is None or not self.byzantine.any():
            return np.full(self.n_rounds, math.nan)
        held = np.nan_to_num(self.weights)
        total = held.sum(axis=1, dtype=np.float64)
        theirs = held[:, self.byzantine].sum(axis=1, dtype=np.float64)
        return np.divide(theirs, total, out=np.full(self.n_rounds, math.nan), where=total > 0)

    def distance(self) -> Floats:
        """(R,) total variation distance of the weights to the exact ones."""
        ours = np.nan_to_num(self.weights[self.exact_rounds])
        return 0.5 * np.abs(ours - np.nan_to_num(self.exact)).sum(axis=1, dtype=np.float64)


def mean(values: Floats, axis: int) -> Floats:
    """Of what is there; NaN where nothing is."""
    there = np.isfinite(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    return np.divide(total, count, out=np.full(count.shape, math.nan), where=count > 0)


def of(recorded: Recorded, place: str) -> Run:
    """Check what a file told, and turn it into arrays."""
    run, rounds, end = recorded.run, recorded.rounds, recorded.end
    file = recorded.folder / NAME
    ids = run.get("clients")
    if not isinstance(ids, list) or not ids:
        raise CorruptFileError(f"{file}: 'clients' must be a list of ids, got {shown(ids)}.")
    index = {one: i for i, one in enumerate(ids)} if all(isinstance(one, (str, int, float)) for one in ids) else {}
    if len(index) != len(ids):
        raise CorruptFileError(f"{file}: 'clients' must be different numbers or strings, got {shown(ids)}.")
    M, T = len(ids), len(rounds)

    byzantine = None
    if run.get("byzantine") is not None:
        byzantine = np.zeros(M, dtype=bool)
        byzantine[places(run["byzantine"], index, f"{file}: 'byzantine'")] = True
    ratio = mapping(run.get("ratio"), f"{file}: 'ratio'")
    sizes = run.get("sizes")
    classes, split = run.get("classes"), run.get("split")
    counts = None if split is None else table(split, M, f"{file}: 'split'")
    if classes is not None and not isinstance(classes, list):
        raise CorruptFileError(f"{file}: 'classes' must be a list of names, got {shown(classes)}.")
    if classes is not None and counts is not None and len(classes) != counts.shape[1]:
        raise CorruptFileError(f"{file}: 'classes' must name the {counts.shape[1]} columns of 'split'.")
    dim = number(run.get("dim"), f"{file}: 'dim'")

    seen = _Rounds(file, index, T)
    for line in rounds:
        seen.add(line)
    accuracy = seen.series["accuracy"]
    known = accuracy[np.isfinite(accuracy)]
    ended = end or {}
    return Run(
        place=place,
        id=text(run.get("id")),
        name=text(run.get("name")),
        config=flat(mapping(run.get("config"), f"{file}: 'config'")),
        clients=texts(ids),
        byzantine=byzantine,
        ratio=(
            number(ratio.get("count"), f"{file}: 'ratio'"),
            number(ratio.get("data"), f"{file}: 'ratio'"),
        ),
        sizes=None if sizes is None else numbers(sizes, M, f"{file}: 'sizes'"),
        split=counts,
        classes=None if classes is None else texts(classes),
        dim=None if math.isnan(dim) else int(dim),
        versions={key: text(run.get(key)) for key in ("bartizan", "torch", "machine") if run.get(key)},
        status="unfinished" if end is None else text(ended.get("status")) or "finished",
        torn=text(recorded.torn),
        converged=bool(ended.get("converged", True)) and ended.get("status") != "diverged",
        best=_first(number(ended.get("best"), f"{file}: 'best'"), known.max() if known.size else math.nan),
        last=_first(number(ended.get("last"), f"{file}: 'last'"), known[-1] if known.size else math.nan),
        seconds=number(ended.get("seconds"), f"{file}: 'seconds'"),
        series=seen.series,
        weights=seen.weights,
        present=seen.present,
        quarantined=seen.quarantined,
        counted_for=seen.counted_for,
        exact_rounds=np.array(seen.exact_rounds, dtype=np.intp),
        exact=np.array(seen.exact, dtype=np.float32).reshape(len(seen.exact), M),
        sketch=seen.sketch,
        notes=tuple(seen.notes),
    )


class _Rounds:
    """The round lines of a file, put into arrays one by one."""

    def __init__(self, file: Path, index: dict[Any, int], n_rounds: int) -> None:
        self.file, self.index = file, index
        # Keys of JSON objects are strings, whatever the ids are.
        self.by_text = {str(one): i for one, i in index.items()}
        shape = (n_rounds, len(index))
        self.series = {name: np.full(n_rounds, math.nan) for name in (*ROUND, *SECONDS)}
        self.weights = np.full(shape, math.nan, dtype=np.float32)
        self.present = np.zeros(shape, dtype=bool)
        self.quarantined = np.zeros(shape, dtype=bool)
        self.counted_for: Floats | None = None
        self.exact_rounds: list[int] = []
        self.exact: list[Singles] = []
        self.notes: list[tuple[int, str]] = []
        self.sketch = ""
        self.ids: Any = False
        self.here: list[int] = []

    def add(self, line: dict[str, Any]) -> None:
        t = line["round"] - 1
        what = f"{self.file}: round {t + 1}:"
        if line.get("clients") != self.ids:  # most rounds have the clients of the one before
            self.here = places(line.get("clients"), self.index, f"{what} 'clients'")
            self.ids = line.get("clients")
        here = self.here
        self.present[t, here] = True
        if line.get("weights") is not None:
            self.weights[t, here] = numbers(line["weights"], len(here), f"{what} 'weights'")
        if line.get("sizes") is not None:
            if self.counted_for is None:
                self.counted_for = np.full(self.weights.shape, math.nan)
            self.counted_for[t, here] = numbers(line["sizes"], len(here), f"{what} 'sizes'")
        if line.get("exact_weights") is not None and line.get("weights") is not None:
            row = np.full(len(self.index), math.nan, dtype=np.float32)
            row[here] = numbers(line["exact_weights"], len(here), f"{what} 'exact_weights'")
            self.exact_rounds.append(t)
            self.exact.append(row)
        for one in mapping(line.get("quarantined"), f"{what} 'quarantined'"):
            if one not in self.by_text:
                raise CorruptFileError(f"{what} 'quarantined' names {shown(one)}, which is no client of the run.")
            self.quarantined[t, self.by_text[one]] = True
        for name in ROUND:
            self.series[name][t] = number(line.get(name), f"{what} {name!r}")
        seconds = mapping(line.get("seconds"), f"{what} 'seconds'")
        for name in SECONDS:
            self.series[name][t] = number(seconds.get(name), f"{what} 'seconds'")
        self.sketch = self.sketch or text(line.get("sketch"))
        if line.get("note"):
            self.notes.append((t + 1, text(line["note"])))


def _first(*values: float) -> float:
    return next((float(value) for value in values if math.isfinite(value)), math.nan)
