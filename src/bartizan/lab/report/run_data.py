"""One recorded run as arrays by round and client, with NaN where nothing was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.jsonl import flatten
from bartizan._util.text import text
from bartizan._util.types import Floats
from bartizan.lab.report.fields import Fields, positions
from bartizan.records import NAME, CorruptFileError, Recorded

Flags = npt.NDArray[np.bool_]
Singles = npt.NDArray[np.float32]

ROUND = ("accuracy", "test_loss", "backdoor", "loss", "norm", "step", "read")
SERVER = ("sketch", "weigh", "combine")
SECONDS = ("train", *SERVER)


@dataclass(frozen=True, eq=False)
class Run:
    """The content of one `results.jsonl`, checked; T rounds, M clients."""

    folder: str
    """Its folder, relative to the folder of the report."""
    id: str
    name: str
    config: dict[str, Any]
    """Settings by dotted names, such as `rule.name`."""
    clients: tuple[str, ...]
    byzantine: Flags | None
    """(M,) the true attackers; None in a deployment, which does not know them."""
    ratio: tuple[float, float]
    """Part of the attackers in the number of clients and in the data."""
    split: Floats | None
    """(M, classes) number of examples."""
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
    """(T, M); NaN for clients that did not take part, and for rules without weights."""
    present: Flags
    quarantined: Flags
    sizes: Floats | None
    """(T, M) the data size by which each client was weighed; None if all counted alike."""
    exact_rounds: npt.NDArray[np.intp]
    exact: Singles
    """(R, M) the weights of the unprojected rule, in those rounds."""
    sketch: str
    notes: tuple[tuple[int, str], ...]

    @property
    def n_rounds(self) -> int:
        return len(self.present)

    @property
    def weighs(self) -> bool:
        return bool(np.isfinite(self.weights).any())

    @property
    def coordinatewise(self) -> bool:
        """Whether rounds were aggregated without weights, as coordinate-wise rules do; a refused round has no time."""
        return not self.weighs and bool(np.isfinite(self.server).any())

    @property
    def n_attackers(self) -> int:
        return 0 if self.byzantine is None else int(self.byzantine.sum())

    @property
    def server(self) -> Floats:
        """(T,) seconds of the server; a part that was not timed counts 0, and a refused round is NaN."""
        spent = np.nan_to_num(np.stack([self.series[name] for name in SERVER])).sum(axis=0)
        return np.where(spent > 0, spent, math.nan)

    @property
    def reads(self) -> Floats:
        """(T,) the server's time over the time of one read of the updates, where a read was timed."""
        return _ratio(self.server, self.series["read"])

    def share(self) -> Floats:
        """(M,) each client's mean weight over its rounds; 1 is an equal share."""
        equal = self.weights * self.present.sum(axis=1, keepdims=True)
        return mean(np.asarray(equal, dtype=np.float64), axis=0)

    def on_attackers(self) -> Floats:
        """(T,) the attackers' part of all weight; NaN if there are none, or they are not known."""
        if self.byzantine is None or not self.byzantine.any():
            return np.full(self.n_rounds, math.nan)
        weights = np.nan_to_num(self.weights)
        theirs = weights[:, self.byzantine].sum(axis=1, dtype=np.float64)
        return _ratio(theirs, weights.sum(axis=1, dtype=np.float64))

    def distance(self) -> Floats:
        """(R,) total variation distance between the weights and the exact ones."""
        ours = np.nan_to_num(self.weights[self.exact_rounds])
        return 0.5 * np.abs(ours - np.nan_to_num(self.exact)).sum(axis=1, dtype=np.float64)


def mean(values: Floats, axis: int) -> Floats:
    """Return the mean of the finite values; NaN if there are none."""
    finite = np.isfinite(values)
    return _ratio(np.where(finite, values, 0.0).sum(axis=axis), finite.sum(axis=axis))


def median(*values: Floats) -> float:
    """Return the median of the finite values of all arrays; NaN if there are none."""
    joined = np.concatenate(values)
    finite = joined[np.isfinite(joined)]
    return float(np.median(finite)) if finite.size else math.nan


def of(recorded: Recorded, folder: str) -> Run:
    """Check the lines of a run and turn them into arrays."""
    where = str(recorded.folder / NAME)
    run, end = Fields(recorded.run, where), Fields(recorded.end or {}, where)
    ids = recorded.run.get("clients")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, (str, int, float)) for one in ids):
        raise CorruptFileError(f"{where}: 'clients' must be a list of numbers or strings.")
    index = {one: i for i, one in enumerate(ids)}
    if len(index) != len(ids):
        raise CorruptFileError(f"{where}: 'clients' names a client twice.")
    byzantine = None
    if run.values.get("byzantine") is not None:
        byzantine = np.isin(np.arange(len(ids)), run.clients("byzantine", index))
    split, classes = run.table("split", len(ids)), run.texts("classes")
    if classes is not None and split is not None and len(classes) != split.shape[1]:
        raise CorruptFileError(f"{where}: 'classes' must name the {split.shape[1]} columns of 'split'.")
    run.numbers("sizes", len(ids))  # not drawn, only checked
    ratio, dim, config = run.nested("ratio"), run.number("dim"), flatten(run.nested("config").values)
    rounds = _rounds(recorded.rounds, where, index)
    accuracy = rounds["series"]["accuracy"]
    known = accuracy[np.isfinite(accuracy)]
    status = end.values.get("status")
    return Run(
        folder=folder,
        id=text(run.values.get("id")),
        name=text(run.values.get("name")),
        config={text(key): text(one) if isinstance(one, str) else one for key, one in config.items()},
        clients=tuple(map(text, ids)),
        byzantine=byzantine,
        ratio=(ratio.number("count"), ratio.number("data")),
        split=split,
        classes=classes,
        dim=None if math.isnan(dim) else int(dim),
        versions={key: text(run.values[key]) for key in ("bartizan", "torch", "machine") if run.values.get(key)},
        status="unfinished" if recorded.end is None else text(status) or "finished",
        torn=text(recorded.torn),
        converged=bool(end.values.get("converged", True)) and status != "diverged",
        best=_first(end.number("best"), known.max(initial=-math.inf)),
        last=_first(end.number("last"), *known[-1:]),
        seconds=end.number("seconds"),
        **rounds,
    )


def _rounds(lines: list[dict[str, Any]], where: str, index: dict[Any, int]) -> dict[str, Any]:
    """Return the round lines of a file as arrays, by the names of the fields of `Run`."""
    by_text = {str(one): i for one, i in index.items()}  # keys of JSON objects are strings
    shape = (len(lines), len(index))
    series = {name: np.full(len(lines), math.nan) for name in (*ROUND, *SECONDS)}
    weights, sizes = np.full(shape, math.nan, dtype=np.float32), np.full(shape, math.nan)
    present, quarantined = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    exact_rounds, exact, notes, sketch = [], [], [], ""
    ids: Any = None
    took_part: list[int] = []
    for t, line in enumerate(lines):
        fields = Fields(line, f"{where}: round {t + 1}")
        if ids is None or line.get("clients") != ids:  # most rounds have the clients of the one before
            took_part, ids = fields.clients("clients", index), line["clients"]
        present[t, took_part] = True
        given = fields.numbers("weights", len(took_part))
        compared = fields.numbers("exact_weights", len(took_part))
        counted = fields.numbers("sizes", len(took_part))
        if given is not None:
            weights[t, took_part] = given
        if counted is not None:
            sizes[t, took_part] = counted
        if given is not None and compared is not None:
            exact_rounds.append(t)
            exact.append(np.full(len(index), math.nan, dtype=np.float32))
            exact[-1][took_part] = compared
        gone = fields.nested("quarantined")
        quarantined[t, positions(gone.values, by_text, gone.where)] = True
        seconds = fields.nested("seconds")
        for name in ROUND:
            series[name][t] = fields.number(name)
        for name in SECONDS:
            series[name][t] = seconds.number(name)
        sketch = sketch or text(line.get("sketch"))
        if line.get("note"):
            notes.append((t + 1, text(line["note"])))
    return {
        "series": series,
        "weights": weights,
        "present": present,
        "quarantined": quarantined,
        "sizes": sizes if np.isfinite(sizes).any() else None,
        "exact_rounds": np.array(exact_rounds, dtype=np.intp),
        "exact": np.array(exact, dtype=np.float32).reshape(len(exact), len(index)),
        "sketch": sketch,
        "notes": tuple(notes),
    }


def _ratio(above: Any, below: Any) -> Floats:
    return np.divide(above, below, out=np.full(np.shape(below), math.nan), where=below > 0)


def _first(*values: float) -> float:
    return next((float(value) for value in values if math.isfinite(value)), math.nan)
