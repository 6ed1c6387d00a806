"""Run one experiment in a folder, and resume it after an interruption."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from bartizan import records as results
from bartizan._util.atomic import write_whole
from bartizan._util.jsonl import flatten
from bartizan._util.locks import is_at
from bartizan._util.text import quoted
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs import checkpoint
from bartizan.lab.runs.checkpoint import Checkpoint, CheckpointTimer
from bartizan.lab.runs.folder import CONFIG, clear, recorded, refuse_foreign
from bartizan.records import AnotherRunError, CorruptFileError, Recorded, Writer, locked, require_writable

if TYPE_CHECKING:
    from bartizan.lab.training.population import Population
    from bartizan.lab.training.training_loop import Training
    from bartizan.measure.sketches import Sketch

Watch = Callable[[Mapping[str, Any]], None]
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run(
    experiment: Experiment,
    folder: Path | str,
    *,
    resume: bool = False,
    fresh: bool = False,
    watch: Watch | None = None,
    save_every: float = checkpoint.SECONDS_BETWEEN_SAVES,
) -> Recorded:
    """Train as an experiment says, and return what is in the folder's `results.jsonl` afterwards.

    Args:
        experiment: What to run; a grid is for `sweep`.
        folder: Where the results go. A finished run of the same experiment is not run again.
        resume: Go on with an unfinished one from its last checkpoint; it ends as if it had never stopped.
        fresh: Replace whatever run is in the folder.
        watch: Called with every line of the run, those from before a resume first. Whatever it raises stops the run
            after a checkpoint.
        save_every: Seconds of training between two checkpoints.
    """
    if experiment.grid:
        raise ValueError("This experiment has a grid, which is several runs: `bartizan sweep`, or take one of .runs().")
    folder = Path(folder)
    watch = watch or (lambda line: None)
    with locked(folder) as handle, _explained(folder):
        refuse_foreign(folder)
        before = None if fresh else recorded(folder, experiment)
        if before is not None and before.end is None and not resume:
            raise AnotherRunError(
                f"{folder} holds an unfinished run, stopped after round {len(before.rounds)} of {experiment.rounds}. "
                "Pass --resume to go on with it, or --fresh to begin again."
            )
        if before is None or before.end is None:
            _train(experiment, folder, handle, before, watch, save_every)
        else:
            config = flatten(before.run.get("config", {}))
            if config.get("data.folder") != experiment.data.folder:
                from bartizan.lab.training.population import Population

                _require_same_data(Population.of(experiment), before, folder)
            if config.get("model.weights", "") != experiment.model.weights:
                from bartizan.lab.models.weights import FirstWeights

                _require_same_weights(FirstWeights.read(experiment.model.weights).digest, before, folder)
            _replay(before, watch)
        return results.read(folder)


def _train(
    experiment: Experiment, folder: Path, handle: int, before: Recorded | None, watch: Watch, save_every: float
) -> None:
    require_writable(folder)
    from bartizan.lab.training.reproducible import deterministic
    from bartizan.lab.training.training_loop import Training

    kind = Training
    if experiment.server.buffer:
        from bartizan.lab.training.virtual_time import BufferedTraining

        kind = BufferedTraining

    saved = Checkpoint.load(folder) if before is not None else None
    before = None if saved is None else lines_of(saved, folder, experiment)
    device = Training.device_of(experiment)
    with deterministic(device, None if before is None else before.run.get("threads")):
        training = kind(experiment, device)
        if before is not None:
            _require_same_data(training.population, before, folder)
            _require_same_weights(training.first.digest if training.first else None, before, folder)
            _require_same_sketch(training.sketch, before, folder)
        if saved is not None:
            try:
                training.restore(saved.server, saved.history, saved.diverged, saved.clients)
            except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as wrong:  # any state is possible
                raise checkpoint.corrupt(folder / checkpoint.NAME, wrong) from None
        with Interrupts() as interrupts:
            if before is None:
                clear(folder)  # not before the data is loaded: what fails until here leaves an older run in place
            with Writer(folder, keep=saved.lines if saved else 0) as lines:
                if before is not None:
                    _replay(before, watch)
                else:
                    opening = {"version": results.VERSION, "id": experiment.id, "name": experiment.name}
                    _write(lines, watch, "run", **opening, **training.opening())
                write_whole(folder / CONFIG, experiment.to_toml())
                done, spent = (saved.round, saved.seconds) if saved else (0, 0.0)
                started = time.monotonic() - spent
                _Rounds(training, folder, handle, lines, watch, done, started).run(save_every, interrupts)


@dataclass
class _Rounds:
    """The rounds of a run: each is trained, its line written, and now and then a checkpoint."""

    training: Training
    folder: Path
    handle: int
    lines: Writer
    watch: Watch
    done: int
    """The last finished round."""
    started: float
    """The time at which the run would have begun without interruptions."""

    def run(self, save_every: float, interrupts: Interrupts) -> None:
        checkpoints = CheckpointTimer(self.save, save_every)
        while self.done < self.training.experiment.rounds and not self.training.diverged:
            line = self.training.round(self.done + 1)
            self.done += 1
            self._require_folder()
            self.lines.write("round", **line)
            checkpoints.if_due()
            try:
                self.watch({"kind": "round", **line})
                if interrupts.requested:
                    raise KeyboardInterrupt
            except BaseException:
                checkpoints.now()
                raise
        checkpoints.now()
        _write(self.lines, self.watch, "end", **self.end())
        self.lines.sync()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def save(self) -> None:
        self._require_folder()
        id, length = self.training.experiment.id, self.lines.sync()
        shapes = {entry.name: list(entry.shape) for entry in self.training.clients.flat}
        Checkpoint(id, self.done, length, self.seconds, *self.training.state(), shapes=shapes).save(self.folder)

    def _require_folder(self) -> None:
        """Raise if what is written would be lost: to go on would take hours, and to make the folder again hide that."""
        if not (is_at(self.handle, self.folder) and is_at(self.lines.fileno(), self.folder / results.NAME)):
            raise FileNotFoundError(
                f"{self.folder}, or the {results.NAME} there, was deleted or moved while its run was writing to it. "
                f"The run was stopped in round {self.done}. Begin it again, or put the folder back and pass --resume."
            )

    def end(self) -> dict[str, Any]:
        metric, diverged = self.training.metric, self.training.diverged
        values = [line[metric.name] for line in results.read(self.folder).rounds if metric.name in line]
        best = metric.best(one for one in values if one is not None)
        return {
            "status": "diverged" if diverged else "finished",
            "converged": not diverged and metric.merit(best) >= metric.merit(self.training.converged_at),
            "best": best,
            "last": values[-1] if values else math.nan,
            "seconds": self.seconds,
        }


class Interrupts:
    """Set `requested` on the first Ctrl-C or SIGTERM; a second Ctrl-C raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for which in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(which) not in (signal.SIG_IGN, None):
                    self._before[which] = signal.signal(which, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        for which, before in self._before.items():
            signal.signal(which, before)

    def _handle(self, which: int, frame: FrameType | None) -> None:
        if which == signal.SIGINT:
            if self.requested:
                raise KeyboardInterrupt
            # Not print: the signal may have come while something was being printed.
            os.write(2, b"\nStopping once this round is done and saved; Ctrl-C again stops at once.\n")
        self.requested = True


def lines_of(saved: Checkpoint, folder: Path, experiment: Experiment) -> Recorded:
    """Read the lines of the rounds up to the checkpoint."""
    before = results.read(folder, saved.lines)
    servers = saved.server.get("round")
    if type(servers) is not int:
        wrong = TypeError(f"server.round must be a whole number, got {quoted(servers, 60)}")
        raise checkpoint.corrupt(folder / checkpoint.NAME, wrong)
    rounds = {len(before.rounds), saved.round, servers}
    if saved.id != experiment.id or len(rounds) > 1 or before.torn or before.end:
        raise CorruptFileError(
            f"{folder / checkpoint.NAME} does not belong to {folder / results.NAME}: it was saved after round "
            f"{saved.round}, {saved.lines} bytes. Put back a copy of both, or pass --fresh to begin again."
        )
    return before


def _require_same_data(population: Population, before: Recorded, folder: Path) -> None:
    if before.run.get("data") != population.dataset.digest:
        there, here = sum(before.run.get("sizes") or ()), len(population.dataset.train)
        raise _other(folder, f"on other images of {population.dataset.name}: {there:,} to train with, here {here:,}")


def _require_same_weights(digest: str | None, before: Recorded, folder: Path) -> None:
    there = before.run.get("first_weights")
    if there != digest:
        raise _other(folder, f"from other first weights (model.weights): a file of hash {there}, here {digest}")


def _require_same_sketch(sketch: Sketch, before: Recorded, folder: Path) -> None:
    for line in before.rounds:
        there = line.get("sketch_version", 1)
        if line.get("sketch") == repr(sketch) and there != sketch.version:
            how = f"with version {there} of its sketch, here {sketch.version}: seeds draw other projections"
            raise _other(folder, how)


def _other(folder: Path, how: str) -> AnotherRunError:
    return AnotherRunError(f"{folder} holds this experiment {how}. Take another folder with --out, or pass --fresh.")


def _replay(before: Recorded, watch: Watch) -> None:
    for line in before.lines():
        watch(line)


def _write(lines: Writer, watch: Watch, kind: str, **fields: Any) -> None:
    lines.write(kind, **fields)
    watch({"kind": kind, **fields})


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as wrong:  # torch's word for it, on a GPU and in host memory
        if "out of memory" not in str(wrong) and "can't allocate memory" not in str(wrong):
            raise
        raise MemoryError(
            f"There is too little memory ({str(wrong).splitlines()[0]}). What was written to {folder} is kept: take a "
            "smaller clients.batch or model, or stop what else is running, then pass --resume."
        ) from None
    except OSError as wrong:
        if wrong.errno not in DISK_FULL:
            raise
        raise OSError(
            wrong.errno,
            f"There is no room left for the results in {folder} ({wrong.strerror}). "
            "What was written is kept: make room, then pass --resume.",
        ) from None
