"""Checkpoint a run after every round, and continue one after a restart."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from flwr.serverapp.strategy import Result, Strategy

from bartizan._util.atomic import write_whole
from bartizan._util.types import Array
from bartizan.flower.replies import Model
from bartizan.records import CorruptFileError

NAME = "checkpoint.npz"


@dataclass(frozen=True)
class Saved:
    """The state of a run after its last complete round."""

    round: int = 0
    seconds: float = 0.0
    history: tuple[float, ...] = ()
    reputation: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """How the run aggregates, which must not change between its rounds."""
    arrays: dict[str, Array] = field(default_factory=dict)


def save(folder: Path, saved: Saved) -> None:
    """Write the checkpoint of a folder, all or nothing."""
    state = {key: value for key, value in vars(saved).items() if key != "arrays"}
    # The names are stored apart: entries of a zip file can't have any name.
    text = json.dumps({**state, "names": list(saved.arrays)})
    entries = {"about": np.frombuffer(text.encode(), dtype=np.uint8)}
    entries |= {str(i): array for i, array in enumerate(saved.arrays.values())}

    def write(file: BinaryIO) -> None:
        np.savez(file, allow_pickle=False, **entries)

    write_whole(folder / NAME, write, settle=True)


def load(folder: Path) -> Saved | None:
    """Read the checkpoint of a folder; None if there is none."""
    path = folder / NAME
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            state = json.loads(file["about"].tobytes())
            arrays = {name: file[str(i)] for i, name in enumerate(state.pop("names"))}
        return Saved(**{**state, "history": tuple(state["history"])}, arrays=arrays)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as wrong:
        raise CorruptFileError(
            f"{path} is not what RobustStrategy writes ({type(wrong).__name__}: {wrong}). "
            "Put back a copy, or take another folder to begin again."
        ) from None


def load_for(folder: Path, model: Model, settings: Mapping[str, str]) -> Saved | None:
    """Read the checkpoint of a folder; raise ValueError if it is of another model or of other settings."""
    saved = load(folder)
    if saved is None:
        return None
    advice = "Take another folder, or delete that one."
    if model.layout != Model(saved.arrays).layout:
        raise ValueError(f"{folder} holds a run of another model. {advice}")
    for key, value in settings.items():
        if saved.settings.get(key) != value:
            raise ValueError(f"{folder} holds a run with {key} {saved.settings.get(key)}, not {value}. {advice}")
    return saved


def _with_offset(name: str) -> Callable[..., Any]:
    def method(self: ResumedStrategy, server_round: int, *arguments: Any) -> Any:
        return getattr(self.strategy, name)(self.done + server_round, *arguments)

    return method


class ResumedStrategy(Strategy):
    """A strategy in Flower's loop, which counts rounds from 1, called with the rounds of the whole run."""

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy, self.done = strategy, done

    def summary(self) -> None:
        self.strategy.summary()

    configure_train = _with_offset("configure_train")
    aggregate_train = _with_offset("aggregate_train")
    configure_evaluate = _with_offset("configure_evaluate")
    aggregate_evaluate = _with_offset("aggregate_evaluate")


def resumed(strategy: Strategy, done: int) -> ResumedStrategy:
    """Return the strategy continued after `done` rounds, under its own class name, which Flower logs."""
    named: type[ResumedStrategy] = type(type(strategy).__name__, (ResumedStrategy,), {})
    return named(strategy, done)


def renumber(result: Result, done: int) -> None:
    """Number the rounds of a result by the whole run."""
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        rounds = getattr(result, name)
        moved = {server_round + done: metrics for server_round, metrics in rounds.items()}
        rounds.clear()
        rounds.update(moved)
