"""Run the paper's cells one at a time, the hard ones first, within a budget."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bartizan import records
from bartizan._util.console import clock
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs import sweep
from bartizan.lab.runs.folder import recorded
from bartizan.lab.runs.progress_display import Display
from bartizan.lab.runs.run import run
from bartizan.records import require_writable
from studies.paper.cells import PaperCell
from studies.paper.kept_runs import RunSummary
from studies.paper.paper_protocol import BUDGETED, ROUNDS, experiment, rule_text, sketches_of

UNITS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """A time after which no run is started, and a number of rounds that all runs are cut to.

    >>> Budget.parse("2h,rounds=30")
    Budget(seconds=7200.0, rounds=30)
    """

    seconds: float | None = None
    rounds: int | None = None
    started: float = field(default_factory=time.monotonic, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse 90s, 20min, 2h, rounds=30, or a time and rounds with a comma between."""
        seconds: float | None = None
        rounds: int | None = None
        for part in (part.strip() for part in text.split(",")):
            if of := re.fullmatch(r"rounds=([1-9]\d{0,5})", part):
                rounds = int(of[1])
            elif of := re.fullmatch(r"(\d+\.?\d*) *(s|min|h)", part):
                seconds = float(of[1]) * UNITS[of[2]]
            else:
                raise argparse.ArgumentTypeError(
                    f"wanted a time such as 90s, 20min or 2h, or rounds=30, or both with a comma between; got {part!r}"
                )
        return cls(seconds, rounds)

    @property
    def spent(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.started >= self.seconds


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
    """The budget's time is over."""


def plan(
    cells: Sequence[PaperCell],
    *,
    budget: Budget = Budget(),
    seeds: int = 1,
    sketch: str | None = None,
    protocol: str = BUDGETED,
    data: Path | None = None,
    device: str = "auto",
    changes: Sequence[str] = (),
) -> list[Job]:
    """Return the runs in their order: all cells with one seed before any with the next.

    Cells that can't be run with `sketch` keep their own if others can; where none can, that is an error.
    """
    jobs: dict[str, Job] = {}
    able = any(sketch in sketches_of(cell) for cell in cells)
    for seed in range(seeds):
        for cell in cells:
            one = experiment(
                cell,
                seed=seed,
                rounds=budget.rounds or ROUNDS,
                sketch=sketch if cell.pdr and (sketch in sketches_of(cell) or not able) else None,
                protocol=protocol,
                data=data,
                device=device,
                changes=changes,
            )
            # A cell of the k/s table can be one of the large table as well: it runs once.
            jobs.setdefault(one.id, Job(cell, one))
    return list(jobs.values())


def run_jobs(jobs: Sequence[Job], folder: Path, budget: Budget = Budget(), workers: int = 1) -> int:
    """Run the jobs that are not finished until the budget is spent; return how many are left."""
    left = [job for job in jobs if not _finished(job, folder)]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are finished already.")
    if left:
        require_writable(folder)
    started, total = time.monotonic(), len(left)
    if workers > 1:
        left = _run_at_once(left, folder, budget, workers)
    while workers == 1 and left and not budget.spent:
        number = total - len(left) + 1
        print(f"[{number} of {total}] {left[0]}", flush=True)
        try:
            _run(left[0], folder, budget)
        except OutOfTimeError:
            break
        left.pop(0)
        if left:
            each = (time.monotonic() - started) / number
            print(f"    about {clock(each * len(left))} for the {len(left)} that are left", flush=True)
    if left:
        why = "The time is over" if budget.spent else "Some runs failed"
        print(f"{why}. Runs that are left: {len(left)}; the same command goes on with them.")
    shown = shlex.quote(str(folder))
    print(f"Results: {folder}\npython -m studies paper compare {shown}\nbartizan report {shown}")
    return len(left)


def _run(job: Job, folder: Path, budget: Budget) -> None:
    rounds = job.experiment.rounds
    with Display({job.folder: rounds}) as progress:

        def watch(line: Mapping[str, Any]) -> None:
            progress.update(job.folder, line)
            if line["kind"] == "round" and line["round"] < rounds and budget.spent:
                raise OutOfTimeError

        done = RunSummary.of(run(job.experiment, folder / job.folder, resume=True, watch=watch))
    seconds = done.server_seconds
    server = "" if seconds is None else f", {1000 * seconds:.3g} ms a round at the server"
    print(f"    {_reached(done)}{server}", flush=True)


def _run_at_once(jobs: Sequence[Job], folder: Path, budget: Budget, workers: int) -> list[Job]:
    """Run several jobs at a time, each in a process; return those that are not finished."""
    by_name, queue = (
        {job.folder: job for job in jobs},
        deque(sweep.Job(job.experiment, folder / job.folder) for job in jobs),
    )
    pool = sweep.WorkerPool(min(workers, len(jobs)))

    def watch(name: str, line: Mapping[str, Any]) -> None:
        if budget.spent:
            raise OutOfTimeError

    try:
        for number, outcome in enumerate(pool.run(queue, watch), start=1):
            job = by_name[outcome.folder.name]
            end = outcome.error or _reached(RunSummary.of(records.read(outcome.folder)))
            print(f"[{number} of {len(jobs)}] {job}: {end}", flush=True)
    except OutOfTimeError:
        pass
    finally:
        pool.stop()
    return [job for job in jobs if not _finished(job, folder)]


def _reached(done: RunSummary) -> str:
    best, last = done.best_percent, done.last_percent
    shown = "no accuracy" if best is None or last is None else f"best accuracy {best:.2f}%, last {last:.2f}%"
    return shown if done.accuracy_percent is not None else f"did not converge ({shown})"


def _finished(job: Job, folder: Path) -> bool:
    before = recorded(folder / job.folder, job.experiment)
    return before is not None and before.end is not None
