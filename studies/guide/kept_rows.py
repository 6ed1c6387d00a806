"""The kept rows of the guide's study: one per finished run, appended when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bartizan import records
from bartizan._util import jsonl
from bartizan._util.jsonl import flatten
from studies.paper.kept_runs import RunSummary
from studies.rows import RESULTS

MAX_PERPLEXITY = 1000.0  # far above that of guessing every character: above it a run counts as diverged
ADVICE = "Put back a copy, or delete the line and run the stage again."
SETTINGS = {
    "b": "clients.byzantine",
    "attack": "attack.name",
    "rule": "rule.name",
    "seed": "seed",
    "data": "data.name",
    "model": "model.name",
    "worker_momentum": "clients.worker_momentum",
    "work": "clients.work",
    "step": "clients.step_size",
    "optimiser": "server.optimiser",
    "server_step": "server.step_size",
    "by_size": "server.by_size",
    "adapters": "model.adapters",
}
"""The fields of a row that are settings, and the keys of an experiment that they come from."""
DEFAULTS: Mapping[str, Any] = {
    **{"slug": "", "data": "fashion-mnist-mini", "model": "cnn", "worker_momentum": 0.0, "optimiser": None},
    **{"work": "gradient", "step": 0.1, "server_step": 0.0, "by_size": True, "adapters": 0, "sketch": ""},
    **{"best": None, "diverged": False, "moved": None, "on_attackers": None, "dim": None, "seconds": None},
    "b_by_data": None,
}
"""The fields that a row leaves out where they are this; rows of earlier sweeps have none of them."""


def stage_file(stage: str, folder: Path = RESULTS) -> Path:
    """Return the file with the rows of a stage."""
    return folder / f"guide-{stage}.jsonl"


def row_of(found: records.Recorded) -> dict[str, Any]:
    """Return the row of a finished run.

    `last` is None if the run failed, `moved` is the part of the weight that projecting moved to other clients, and
    `on_attackers` the part that Byzantine clients got, both means over the rounds.
    """
    if found.end is None:
        raise ValueError(f"{found.folder} is not finished: run the sweep again, it goes on.")
    summary = RunSummary.of(found)
    config = flatten(summary.config)
    join = lambda *keys: " ".join(str(config[key]) for key in keys if key in config)  # noqa: E731
    row = {
        "slug": found.folder.name,
        "metric": found.run.get("metric") or "accuracy",
        "clients_differ": join("split.kind", "split.beta"),
        "sketch": join("sketch.name", "sketch.k", "sketch.s"),
        **{name: config.get(key, DEFAULTS.get(name)) for name, key in SETTINGS.items()},
        "last": last_of(found.end),
        "best": found.end["best"],
        "diverged": found.end["status"] == "diverged",
        "rounds": len(found.rounds),
        "moved": summary.moved,
        "on_attackers": summary.on_attackers,
        "dim": summary.dim,
        "b_by_data": summary.ratio["data"] if summary.ratio and config.get("server.by_size") else None,
        "seconds": summary.seconds["run"],
        "machine": summary.machine,
        "bartizan": summary.bartizan,
    }
    return {name: value for name, value in row.items() if name not in DEFAULTS or value != DEFAULTS[name]}


def last_of(end: Mapping[str, Any]) -> float | None:
    """Return the last accuracy or perplexity; None if the run diverged."""
    last = end["last"]
    return last if end["status"] != "diverged" and last is not None and last < MAX_PERPLEXITY else None  # not for NaN


def keep(file: Path, folder: Path) -> None:
    """Append the row of a finished run, named by its folder, unless the file has it; a torn last line is replaced."""
    before = _read(file)
    if folder.name not in {row.get("slug") for row in before.rows}:
        with jsonl.Appender(file, before.size) as rows:  # opened for each: another version may have taken its place
            rows.append(row_of(records.read(folder)))


def slugs(file: Path) -> set[str]:
    """Return the slugs of the runs that a file keeps."""
    return {row["slug"] for row in _read(file).rows if "slug" in row}


def ends(file: Path) -> dict[tuple[str, str], float]:
    """Return the last accuracies of the kept runs by rule and attack, 0 for those that diverged."""
    return {(row["rule"], row["attack"]): row["last"] or 0.0 for row in _read(file).rows if "rule" in row}


def kept(file: Path) -> pd.DataFrame:
    """Return the kept rows with all fields, ordered by slug."""
    rows = [{**DEFAULTS, **row} for row in _read(file).rows]
    return pd.DataFrame(sorted(rows, key=lambda row: row["slug"]))


def _read(file: Path) -> jsonl.Lines[dict[str, Any]]:
    if not file.exists():
        return jsonl.Lines([], 0, "")
    return jsonl.read(file, dict, advice=ADVICE, checksum_required=False)
