"""Run the paper's cells, the hard ones first, within a time."""

from __future__ import annotations

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bartizan import records
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs import sweep
from bartizan.lab.runs.folder import recorded
from bartizan.records import require_writable
from studies.paper.cells import PaperCell
from studies.paper.kept_runs import RunSummary
from studies.paper.paper_protocol import experiment, rule_text, sketches_of


def time_limit(minutes: float | None) -> Callable[[], bool]:
    """Return a function that says whether so many minutes have passed since."""
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= end


@dataclass(frozen=True)
class Job:
    """One run of one cell."""

    cell: PaperCell
    experiment: Experiment

    @property
    def folder(self) -> str:
        """The name of the run's folder; cells with equal experiments share one."""
        return f"{self.cell.data}-beta{self.cell.beta:g}-b{self.cell.b:g}-{self.experiment.slug}"

    def __str__(self) -> str:
        cell, sketch = self.cell, self.experiment.sketch
        size = [f"{key}={sketch.settings[key]}" for key in ("k", "s") if key in sketch.settings]
        rule = rule_text(cell, {"name": self.experiment.rule.name, **self.experiment.rule.settings})
        where = f"{cell.data} beta={cell.beta:g} b={cell.b:g} {cell.attack} {rule}"
        return " ".join([where, sketch.name, *size, f"seed={self.experiment.seed}"])


class OutOfTimeError(Exception):
    """The time is over."""


def plan(cells: Sequence[PaperCell], *, seeds: int = 1, sketch: str | None = None, **settings: Any) -> list[Job]:
    """Return the runs in their order: all cells with one seed before any with the next.

    `sketch` is for the cells that can be run with it; the others keep their own. `settings` are of `experiment`.
    """
    jobs: dict[str, Job] = {}
    for seed in range(seeds):
        for cell in cells:
            own = sketch if sketch in sketches_of(cell) else None
            one = experiment(cell, seed=seed, sketch=own, **settings)
            # A cell of the k/s table can be one of the large table as well: it runs once.
            jobs.setdefault(one.id, Job(cell, one))
    return list(jobs.values())


def run_jobs(jobs: Sequence[Job], folder: Path, spent: Callable[[], bool] = time_limit(None), workers: int = 1) -> int:
    """Run the jobs that are not finished until the time is spent; return how many are left."""
    left = [job for job in jobs if not _finished(job, folder)]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are finished already.")
    if left and not spent():
        require_writable(folder)
        with suppress(OutOfTimeError):
            _run(left, folder, spent, workers)
    left = [job for job in left if not _finished(job, folder)]
    if left:
        why = "The time is over" if spent() else "Some runs failed"
        print(f"{why}. Runs that are left: {len(left)}; the same command goes on with them.")
    shown = shlex.quote(str(folder))
    print(f"Results: {folder}\npython -m studies paper compare {shown}\nbartizan report {shown}")
    return len(left)


def _run(jobs: Sequence[Job], folder: Path, spent: Callable[[], bool], workers: int) -> None:
    """Run the jobs in their order, each in a process, and print the end of each."""
    by_name = {job.folder: job for job in jobs}
    queue = deque(sweep.Job(job.experiment, folder / job.folder) for job in jobs)
    pool = sweep.WorkerPool(min(workers, len(jobs)))

    def watch(name: str, line: Mapping[str, Any]) -> None:
        if line["kind"] == "round" and line["round"] < by_name[name].experiment.rounds and spent():
            raise OutOfTimeError

    try:
        for number, outcome in enumerate(pool.run(queue, watch), start=1):
            end = outcome.error or _reached(RunSummary.of(records.read(outcome.folder)))
            print(f"[{number} of {len(jobs)}] {by_name[outcome.folder.name]}: {end}", flush=True)
            if spent():
                raise OutOfTimeError
    finally:
        pool.stop()


def _reached(done: RunSummary) -> str:
    best, last = done.best_percent, done.last_percent
    shown = "no accuracy" if best is None or last is None else f"best accuracy {best:.2f}%, last {last:.2f}%"
    return shown if done.accuracy_percent is not None else f"did not converge ({shown})"


def _finished(job: Job, folder: Path) -> bool:
    before = recorded(folder / job.folder, job.experiment)
    return before is not None and before.end is not None
