"""A run's folder: whose it is, how far it got, and that only one process is at work in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bartizan import records as results
from bartizan._util.locks import SUPPORTED, try_lock
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import shown
from bartizan.lab.runs import checkpoint
from bartizan.records import CorruptFileError, Recorded

CONFIG = "experiment.toml"
ADVICE = "Put back a copy, or pass --fresh to begin again."


class AnotherRunError(FileExistsError):
    """The folder holds something that must not be written over unasked."""


def recorded(folder: Path, experiment: Experiment) -> Recorded | None:
    """What an earlier process wrote of this very experiment, up to the last line that is whole; None if nothing."""
    try:
        found = _readable(folder)
    except (FileNotFoundError, NotADirectoryError):
        if (folder / checkpoint.NAME).exists():
            raise CorruptFileError(
                f"{folder} has a {checkpoint.NAME}, and no {results.NAME} for it. {ADVICE}"
            ) from None
        return None
    if found is not None and found.run["id"] != experiment.id:
        raise AnotherRunError(
            f"{folder} holds another experiment: {_difference(found.run['config'], experiment.as_dict())}. "
            "Take another folder with --out, or pass --fresh to replace it."
        )
    return found


def refuse_foreign(folder: Path) -> None:
    """Raise where a run would write over an experiment's file that no run has written."""
    here = [name for name in (CONFIG, results.NAME, checkpoint.NAME) if (folder / name).exists()]
    if here == [CONFIG]:
        raise AnotherRunError(f"{folder} holds an {CONFIG} that no run wrote. Take another folder with --out.")


def clear(folder: Path) -> None:
    """Remove what a run writes, and nothing else."""
    for name in (results.NAME, checkpoint.NAME, CONFIG):
        with suppress(FileNotFoundError):
            (folder / name).unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else runs here meanwhile; the system lets go of it whatever way this process ends."""
    there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"{folder} is no folder; results need one. Take another with --out.") from None
    if not SUPPORTED:  # Windows opens no folders
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(handle):
            raise AnotherRunError(f"Another process is at work in {folder}. Wait for it, or take another.")
        yield
    finally:
        os.close(handle)
        if not there:
            with suppress(OSError):  # it has something in it
                folder.rmdir()


def _readable(folder: Path) -> Recorded | None:
    try:
        return results.read(folder)
    except CorruptFileError:
        saved = checkpoint.Checkpoint.load(folder)
        if saved is None:
            if b"\n" not in (folder / results.NAME).read_bytes():  # stopped while it wrote its first line
                return None
            raise
        return results.read(folder, saved.lines)


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    one, other = dict(_flat(there)), dict(_flat(here))
    no_part = ("name", "device", "data.folder")  # of the id
    keys = [key for key in {**one, **other} if repr(one.get(key)) != repr(other.get(key)) and key not in no_part]
    told = [f"{key} is {shown(one.get(key))} there and {shown(other.get(key))} here" for key in keys[:3]]
    return "; ".join(told) + (f"; and {len(keys) - 3} more" if len(keys) > 3 else "")


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value
