"""Record a run in a folder after every round, for `bartizan report`, and continue it after a restart."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from flwr.serverapp.strategy import Result, Strategy

from bartizan import __version__, records
from bartizan._util import jsonl, machine
from bartizan._util.atomic import write_whole
from bartizan._util.types import Array
from bartizan.aggregate import Aggregator
from bartizan.flower.replies import Model
from bartizan.records import CorruptFileError

NAME = "checkpoint.npz"
ADVICE = "Put back a copy, or take another folder to begin again."
log = logging.getLogger("flwr")


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
    text = json.dumps({**state, "history": list(map(float, saved.history)), "names": list(saved.arrays)})
    entries = {"about": np.frombuffer(text.encode(), dtype=np.uint8)}
    entries |= {str(i): array for i, array in enumerate(saved.arrays.values())}

    def write(file: BinaryIO) -> None:
        np.savez(file, allow_pickle=False, **entries)

    write_whole(folder / NAME, write, settle=True)


def load(folder: Path, model: Model, settings: Mapping[str, str]) -> Saved:
    """Read the checkpoint of a folder, if any; raise ValueError if its model or settings are others."""
    path = folder / NAME
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            state = json.loads(file["about"].tobytes())
            arrays = {name: file[str(i)] for i, name in enumerate(state.pop("names"))}
        saved = Saved(**{**state, "history": tuple(state["history"])}, arrays=arrays)
    except FileNotFoundError:
        return Saved()
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as wrong:
        raise CorruptFileError(
            f"{path} is not what RobustStrategy writes ({type(wrong).__name__}: {wrong}). {ADVICE}"
        ) from None
    if model.layout != Model(arrays).layout:
        raise ValueError(f"{folder} holds a run of another model. Take another folder, or delete that one.")
    for key, value in settings.items():
        if saved.settings.get(key) != value:
            raise ValueError(
                f"{folder} holds a run with {key} {saved.settings.get(key)}, not {value}. Take another folder, or "
                f"delete that one."
            )
    return saved


def run_line(name: str, aggregator: Aggregator, dim: int) -> dict[str, Any]:
    """Return what is known of a run before its first round; the clients are added when they are asked."""
    sketch = aggregator.sketch
    config = {"rule": {"name": repr(aggregator.rule)}, "sketch": {"name": sketch if sketch == "auto" else repr(sketch)}}
    unknown = dict.fromkeys(("byzantine", "ratio", "sizes", "split", "classes"))
    about = {"version": records.VERSION, "id": name, "name": name, "config": config, "dim": dim}
    return {"kind": "run", **about, **unknown, "bartizan": __version__, "machine": machine.name_of("cpu")}


class RunRecord:
    """The results.jsonl and the checkpoint of a deployment, whose clients become known round by round."""

    def __init__(self, folder: Path, run: dict[str, Any], done: int = 0) -> None:
        """Begin a file, or continue one after its first `done` rounds."""
        self.folder = folder
        self._lines = [run]
        self._writer: records.Writer | None = None
        if done:
            # Rounds after the checkpoint are run again. They are counted, since their bytes move when a client joins.
            recorded = records.read(folder)
            if len(recorded.rounds) < done:
                raise CorruptFileError(
                    f"{folder / records.NAME} has {len(recorded.rounds)} rounds, and its checkpoint {done}: "
                    f"it was cut. {ADVICE}"
                )
            self._lines = [recorded.run, *recorded.rounds[:done]]
            self._rewrite()

    def add(self, line: Mapping[str, Any], clients: Iterable[str], saved: Saved) -> None:
        """Append a round's line, write the checkpoint, and wait until the disk has both."""
        run = self._lines[0]
        known = run.get("clients", [])
        new = [client for client in dict.fromkeys(clients) if client not in set(known)]
        self._lines.append({"kind": "round", **line})
        with self._logging_full_disk():
            if self._writer is None or new:
                # The first line names all clients, so the file is written again when one joins.
                run["clients"] = [*known, *new]
                self._rewrite()
            else:
                self._writer.write("round", **line)
                self._writer.sync()
            save(self.folder, saved)

    def end(self, seconds: float) -> None:
        """Write the last line, if there was any round."""
        accuracies = [line["accuracy"] for line in self._lines if line.get("accuracy") is not None]
        best = {"best": max(accuracies), "last": accuracies[-1]} if accuracies else {}
        if len(self._lines) > 1:
            self._lines.append({"kind": "end", "status": "finished", "seconds": seconds, **best})
            with self._logging_full_disk():
                self._rewrite()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _rewrite(self) -> None:
        self.close()
        size = jsonl.rewrite(self.folder / records.NAME, self._lines, settle=True)
        self._writer = records.Writer(self.folder, keep=size)

    @contextmanager
    def _logging_full_disk(self) -> Iterator[None]:
        """Log an OSError, such as a full disk, and go on: the next round is written with this one."""
        try:
            yield
        except OSError as full:
            self.close()
            log.error("The run can't be recorded (%s): after a crash it would go on from an earlier round.", full)


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
        setattr(result, name, {number + done: metrics for number, metrics in getattr(result, name).items()})
