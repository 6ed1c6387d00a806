"""A deployed run in its folder: the lines that `bartizan report` draws, and where to go on after a restart."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bartizan import __version__
from bartizan import records as results
from bartizan._util import machine
from bartizan._util.atomic import write_whole
from bartizan._util.types import Array
from bartizan.aggregate import Aggregator
from bartizan.flower.decode import Model
from bartizan.records import CorruptFileError, Writer

CHECKPOINT = "checkpoint.npz"
log = logging.getLogger("flwr")


def opening(name: str, aggregator: Aggregator, dim: int) -> dict[str, Any]:
    """What is known of a run before its first round; who takes part is added as they come."""
    sketch = aggregator.sketch
    config = {"rule": {"name": repr(aggregator.rule)}, "sketch": {"name": sketch if sketch == "auto" else repr(sketch)}}
    unknown = dict.fromkeys(("byzantine", "ratio", "sizes", "split", "classes"))
    about = {"version": results.VERSION, "id": name, "name": name, "config": config, "dim": dim}
    return about | unknown | {"bartizan": __version__, "machine": machine.name_of("cpu")}


def settings(aggregator: Aggregator, sizes: Any, size_cap: float | None) -> dict[str, str]:
    """How a run aggregates, as it is told and compared."""
    how = "one a node" if sizes is None else "as given"
    if isinstance(sizes, str) and size_cap is not None:
        how = f"as reported, {float(size_cap)} at most"
    return {"rule": repr(aggregator.rule), "sketch": str(aggregator.sketch), "sizes": how}


@dataclass(frozen=True)
class Saved:
    """Where a run stood after its last whole round."""

    round: int
    seconds: float
    history: tuple[float, ...] = ()
    reputation: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """How it aggregates: what must not change on the way."""


def save(folder: Path, saved: Saved) -> None:
    """Write the checkpoint, whole or not at all."""
    about = {
        "round": saved.round,
        "seconds": saved.seconds,
        "history": list(saved.history),
        "reputation": saved.reputation,
        "settings": saved.settings,
        "names": list(saved.arrays),
    }
    # Names may be anything, and entries of a zip file may not.
    numbered = {str(i): array for i, array in enumerate(saved.arrays.values())}
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)

    def write(file: BinaryIO) -> None:
        np.savez(file, allow_pickle=False, about=text, **numbered)

    write_whole(folder / CHECKPOINT, write, settle=True)


def load(folder: Path) -> Saved | None:
    """The checkpoint of a folder, if it has one."""
    path = folder / CHECKPOINT
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            arrays = {name: file[str(i)] for i, name in enumerate(about.pop("names"))}
        return Saved(**{**about, "history": tuple(about["history"])}, arrays=arrays)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as wrong:
        raise CorruptFileError(
            f"{path} is not what RobustStrategy writes ({type(wrong).__name__}: {wrong}). "
            "Put back a copy, or take another folder to begin again."
        ) from None


def unfinished(folder: Path, model: Model, wanted: Mapping[str, str]) -> Saved | None:
    """The checkpoint of a folder, if it has one; raises where it is that of another run."""
    saved = load(folder)
    if saved is None:
        return None
    if not model.same_layout(Model(saved.arrays)):
        raise ValueError(f"{folder} holds a run of another model. Take another folder, or delete that one.")
    for key, value in wanted.items():
        if saved.settings.get(key) != value:
            raise ValueError(
                f"{folder} holds a run with {key} {saved.settings.get(key)}, not {value}. "
                "Take another folder, or delete that one."
            )
    return saved


class Lines:
    """The results.jsonl of a deployment, whose clients become known as they come."""

    def __init__(self, folder: Path, run: Mapping[str, Any], done: int = 0) -> None:
        """Begin a file, or go on behind the first `done` rounds of one."""
        self.folder, self._run = folder, dict(run)
        self._rounds: list[dict[str, Any]] = []
        self._writer: Writer | None = None
        if done:
            # Rounds that no checkpoint knows are run again. Counted in rounds, for bytes move when a client joins.
            recorded = results.read(folder)
            if len(recorded.rounds) < done:
                raise CorruptFileError(
                    f"{folder / results.NAME} tells of {len(recorded.rounds)} rounds, and its checkpoint of {done}: "
                    "it was cut. Put back a copy, or take another folder to begin again."
                )
            self._run, self._rounds = recorded.run, recorded.rounds[:done]
            self._rewrite()

    def add(self, line: Mapping[str, Any], clients: Iterable[str]) -> None:
        """One round's line, on the disk when this returns."""
        known = self._run.setdefault("clients", [])
        new = [client for client in dict.fromkeys(clients) if client not in set(known)]
        self._rounds.append(dict(line))
        try:
            if self._writer is None or new:
                # The first line names all clients, so one that was not there before is a reason to write all again.
                self._run["clients"] = [*known, *new]
                self._rewrite()
            else:
                self._writer.write("round", **line)
                self._writer.sync()
        except OSError:  # the line is kept, and written with the next
            self.close()
            raise

    def end(self, seconds: float) -> None:
        """The last line, if there was a round at all."""
        if self._writer is None and self._rounds:
            self._rewrite()
        if self._writer is not None:
            accuracies = [line["accuracy"] for line in self._rounds if line.get("accuracy") is not None]
            best = {"best": max(accuracies), "last": accuracies[-1]} if accuracies else {}
            self._writer.write("end", status="finished", seconds=seconds, **best)
            self._writer.sync()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _rewrite(self) -> None:
        lines = [{**self._run, "kind": "run"}, *({**line, "kind": "round"} for line in self._rounds)]
        whole = b"".join(map(results.encode, lines))
        self.close()
        write_whole(self.folder / results.NAME, whole, settle=True)
        self._writer = Writer(self.folder, keep=len(whole))


@contextmanager
def as_far_as_there_is_room() -> Iterator[None]:
    """A full disk ends no run: what it had is kept, and the next round is written with this one."""
    try:
        yield
    except OSError as full:
        log.error("The run can't be recorded (%s): after a crash it would go on from an earlier round.", full)
