"""Read all runs of a folder and check their fields; list those that can't be read with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bartizan import records
from bartizan._util.console import ProgressLine
from bartizan._util.jsonl import flatten
from bartizan._util.text import text
from bartizan.lab.metrics import metric_of
from bartizan.lab.report.run_data import ROUND_NUMBERS, STAGES, Run, Singles
from bartizan.records import CorruptFileError, Recorded

MAX_CELLS = 10**8
"""Rounds times clients of one run, at most, to fit into memory."""


@dataclass(frozen=True)
class Loaded:
    """The runs of a folder."""

    folder: Path
    runs: list[Run]
    broken: list[tuple[str, str]]
    """Folders of runs that can't be read, and why."""


def load(folder: Path) -> Loaded:
    """Read the runs in a folder; raise FileNotFoundError if it has none. A corrupt run raises nothing."""
    folders = records.find(folder)
    if not folders:
        raise FileNotFoundError(
            f"{folder} holds no run: there is no {records.NAME} in it or below. "
            "Wanted a folder that `bartizan run` or `bartizan sweep` wrote."
        )
    found = Loaded(folder, [], [])
    with ProgressLine("reading runs", len(folders), plain=False) as progress:
        for one in folders:
            name = text(one.relative_to(folder).as_posix() if one != folder else one.resolve().name)
            try:
                found.runs.append(_run(records.read(one), name))
            except (ValueError, OSError) as wrong:
                found.broken.append((name, text(wrong)))
            progress.advance()
    return found


def _run(recorded: Recorded, folder: str) -> Run:
    """Turn the lines of a run, whose fields are checked, into arrays."""
    run, end, ids = recorded.run, recorded.end or {}, recorded.run["clients"]
    where = recorded.folder / records.NAME
    if not ids:
        raise CorruptFileError(f"{where}: clients is empty, so there is nothing to show.")
    if len(recorded.rounds) * len(ids) > MAX_CELLS:
        raise CorruptFileError(
            f"{where} has {len(recorded.rounds):,} rounds of {len(ids):,} clients; a report shows up to "
            f"{MAX_CELLS:,} rounds times clients."
        )
    byzantine, split, classes = run.get("byzantine"), run.get("split"), run.get("classes")
    ratio, config = run.get("ratio") or {}, flatten(run.get("config", {}))
    rounds = _rounds(recorded.rounds, {one: i for i, one in enumerate(ids)})
    metric = metric_of(run)
    values = rounds["series"][metric.name]
    known = values[np.isfinite(values)].tolist()
    return Run(
        folder=folder,
        id=text(run.get("id")),
        name=text(run.get("name")),
        config={text(key): text(one) if isinstance(one, str) else one for key, one in config.items()},
        clients=tuple(map(text, ids)),
        byzantine=None if byzantine is None else np.array([one in set(byzantine) for one in ids], dtype=bool),
        ratio=(_number(ratio, "count"), _number(ratio, "data")),
        split=None if split is None else np.array(split, dtype=np.float64),
        classes=None if classes is None else tuple(map(text, classes)),
        dim=run.get("dim"),
        versions={key: text(run[key]) for key in ("bartizan", "torch", "machine") if run.get(key)},
        status="unfinished" if recorded.end is None else text(end.get("status")) or "finished",
        torn=text(recorded.torn),
        converged=bool(end.get("converged", True)) and end.get("status") != "diverged",
        metric=metric,
        best=_first(_number(end, "best"), metric.best(known)),
        last=_first(_number(end, "last"), *known[-1:]),
        seconds=_number(end, "seconds"),
        **rounds,
    )


def _rounds(lines: list[dict[str, Any]], index: dict[Any, int]) -> dict[str, Any]:
    """Return the round lines of a file as arrays, by the names of the fields of `Run`."""
    by_text = {str(one): i for one, i in index.items()}  # keys of JSON objects are strings
    shape = (len(lines), len(index))
    series = {name: np.full(len(lines), math.nan) for name in (*ROUND_NUMBERS, *STAGES)}
    weights, sizes = np.full(shape, math.nan, dtype=np.float32), np.full(shape, math.nan)
    present, quarantined, failed = (np.zeros(shape, dtype=bool) for _ in range(3))
    exact: dict[int, Singles] = {}
    notes, sketch = [], ""
    for t, line in enumerate(lines):
        took_part = [index[client] for client in line["clients"]]
        present[t, took_part] = True
        for values, name in ((weights, "weights"), (sizes, "sizes")):
            if line.get(name) is not None:
                values[t, took_part] = line[name]
        if line.get("weights") is not None and line.get("exact_weights") is not None:
            exact[t] = np.full(len(index), math.nan, dtype=np.float32)
            exact[t][took_part] = line["exact_weights"]
        for flags, name in ((quarantined, "quarantined"), (failed, "failed")):
            flags[t, [by_text[client] for client in line.get(name) or ()]] = True
        for name in ROUND_NUMBERS:
            series[name][t] = _number(line, name)
        for name in STAGES:
            series[name][t] = _number(line.get("seconds") or {}, name)
        sketch = sketch or text(line.get("sketch"))
        if line.get("note"):
            notes.append((t + 1, text(line["note"])))
    return {
        "series": series,
        "weights": weights,
        "present": present,
        "quarantined": quarantined,
        "failed": failed,
        "sizes": sizes if np.isfinite(sizes).any() else None,
        "exact_rounds": np.array([*exact], dtype=np.intp),
        "exact": np.array([*exact.values()], dtype=np.float32).reshape(len(exact), len(index)),
        "sketch": sketch,
        "notes": tuple(notes),
    }


def _number(values: Mapping[str, Any], name: str) -> float:
    """Return a field that is a number; NaN if it is absent or null."""
    value = values.get(name)
    return math.nan if value is None else float(value)


def _first(*values: float) -> float:
    return next((float(value) for value in values if math.isfinite(value)), math.nan)
