"""Read, check and clear the folder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bartizan import records as results
from bartizan._util.jsonl import flatten
from bartizan._util.regular_files import read_regular
from bartizan._util.text import short
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import shown
from bartizan.lab.runs import checkpoint
from bartizan.records import AnotherRunError, CorruptFileError, Recorded

CONFIG = "experiment.toml"
ADVICE = "Put back a copy, or pass --fresh to begin again."


def recorded(folder: Path, experiment: Experiment) -> Recorded | None:
    """Read this experiment's lines of an earlier process, up to the last whole one; None if there are none."""
    try:
        found = _read(folder)
    except (FileNotFoundError, NotADirectoryError):
        if (folder / checkpoint.NAME).exists():
            raise CorruptFileError(f"{folder} has a {checkpoint.NAME} but no {results.NAME}. {ADVICE}") from None
        return None
    if found is not None and found.run.get("id") != experiment.id:
        raise AnotherRunError(
            f"{folder} holds another experiment: {_difference(found.run.get('config', {}), experiment.as_dict())}. "
            "Take another folder with --out, or pass --fresh to replace it."
        )
    return found


def refuse_foreign(folder: Path) -> None:
    """Raise AnotherRunError if a run would replace an experiment.toml that no run has written."""
    here = [name for name in (CONFIG, results.NAME, checkpoint.NAME) if (folder / name).exists()]
    if here == [CONFIG]:
        raise AnotherRunError(f"{folder} holds an {CONFIG} that no run wrote. Take another folder with --out.")


def clear(folder: Path) -> None:
    """Remove the files of a run, and nothing else."""
    for name in (results.NAME, checkpoint.NAME, CONFIG):
        with suppress(FileNotFoundError):
            (folder / name).unlink()


def _read(folder: Path) -> Recorded | None:
    try:
        return results.read(folder)
    except CorruptFileError:
        saved = checkpoint.Checkpoint.load(folder)
        if saved is None:
            if b"\n" not in read_regular(folder / results.NAME):  # stopped while it wrote its first line
                return None
            raise
        return results.read(folder, saved.lines)


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    one, other = flatten(there), flatten(here)
    no_part = ("name", "device", "data.folder")  # of the id
    keys = [key for key in {**one, **other} if repr(one.get(key)) != repr(other.get(key)) and key not in no_part]
    differences = [
        f"{short(key, 60)} is {shown(one.get(key))} there and {shown(other.get(key))} here" for key in keys[:3]
    ]
    return "; ".join(differences) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")
