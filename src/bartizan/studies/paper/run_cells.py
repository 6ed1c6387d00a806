"""Running the paper's cells: one at a time, the hard ones first, within a budget."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bartizan._util.console import clock
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs.folder import recorded
from bartizan.lab.runs.progress_display import display
from bartizan.lab.runs.run import run
from bartizan.studies.paper.cells import Cell
from bartizan.studies.paper.outcome import Ours
from bartizan.studies.paper.protocol import ROUNDS, experiment, sketches_of
from bartizan.studies.paper.run_budget import Budget


@dataclass(frozen=True)
class Job:
    """One run of one cell."""

    cell: Cell
    experiment: Experiment

    @property
    def folder(self) -> str:
        """Its name among the runs of a folder; cells that are one experiment have one folder."""
        return f"{self.cell.data}-beta{self.cell.beta:g}-b{self.cell.b:g}-{self.experiment.slug}"

    def __str__(self) -> str:
        sketch = self.experiment.sketch
        how = " ".join(
            [sketch.name, *(f"{key}={sketch.settings[key]}" for key in ("k", "s") if key in sketch.settings)]
        )
        cell = self.cell
        where = f"{cell.data} beta={cell.beta:g} b={cell.b:g}"
        return f"{where} {cell.attack} {cell.rule} {how} seed={self.experiment.seed}"


class OutOfTimeError(Exception):
    """The budget's time is over."""


def plan(
    cells: Sequence[Cell],
    *,
    budget: Budget = Budget(),
    seeds: int = 1,
    sketch: str | None = None,
    data: Path | None = None,
    device: str = "auto",
    changes: Sequence[str] = (),
) -> list[Job]:
    """What to run, in its order: all cells with one seed before any with the next.

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
                data=data,
                device=device,
                changes=changes,
            )
            # A cell of the k/s table can be one of the large table as well: it runs once.
            jobs.setdefault(one.id, Job(cell, one))
    return list(jobs.values())


def carry_out(jobs: Sequence[Job], folder: Path, budget: Budget = Budget()) -> int:
    """Run what is not finished, as long as there is time; how many are left."""
    left = [job for job in jobs if not _finished(job, folder)]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are finished already.")
    started, total = time.monotonic(), len(left)
    while left and not budget.spent:
        number = total - len(left) + 1
        print(f"[{number} of {total}] {left[0]}", flush=True)
        try:
            _carried_out(left[0], folder, budget)
        except OutOfTimeError:
            break
        left.pop(0)
        if left:
            each = (time.monotonic() - started) / number
            print(f"    about {clock(each * len(left))} for the {len(left)} that are left", flush=True)
    if left:
        print(f"The time is over. Runs that are left: {len(left)}; the same command goes on with them.")
    shown = shlex.quote(str(folder))
    print(f"Results: {folder}\nbartizan paper compare {shown}\nbartizan report {shown}")
    return len(left)


def _carried_out(job: Job, folder: Path, budget: Budget) -> None:
    rounds = job.experiment.rounds
    with display({job.folder: rounds}) as progress:

        def watch(line: Mapping[str, Any]) -> None:
            progress.update(job.folder, line)
            if line["kind"] == "round" and line["round"] < rounds and budget.spent:
                raise OutOfTimeError

        done = run(job.experiment, folder / job.folder, resume=True, watch=watch)
    ours = Ours.of(done)
    reached = "did not converge" if ours.accuracy is None else f"best accuracy {ours.accuracy:.2f}%"
    server = "" if ours.seconds is None else f", {1000 * ours.seconds:.3g} ms a round at the server"
    print(f"    {reached}{server}", flush=True)


def _finished(job: Job, folder: Path) -> bool:
    before = recorded(folder / job.folder, job.experiment)
    return before is not None and before.end is not None
