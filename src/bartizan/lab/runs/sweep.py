"""Many experiments, each in a folder of its own, on all cores or on one GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs.folder import recorded
from bartizan.lab.runs.worker import DONE, LINE, work

Watch = Callable[[str, Mapping[str, Any]], None]
TRIES = 2
PATIENCE = 30.0
"""Seconds that workers have to finish their round when they are to stop."""


@dataclass(frozen=True)
class Outcome:
    """What became of one experiment of a sweep."""

    experiment: Experiment
    folder: Path
    status: str
    """"finished", "skipped" where it was finished before, or "failed"."""
    error: str = ""


@dataclass(frozen=True)
class Job:
    """One experiment to be run; how often it was begun."""

    experiment: Experiment
    folder: Path
    fresh: bool = False
    tries: int = 0


def sweep(
    experiments: Iterable[Experiment],
    folder: Path | str,
    *,
    workers: int | None = None,
    resume: bool = True,
    watch: Watch | None = None,
) -> list[Outcome]:
    """Run all experiments that are not finished yet, several at a time, and say what became of each.

    Args:
        experiments: What to run; those with a grid stand for all of it.
        folder: Each has a folder in it, named by its `slug`.
        workers: How many at a time, each in a process of its own; a core each if not given, one on a GPU.
        resume: Keep what is finished and go on with what is not; otherwise all begin again.
        watch: Is shown every line of every run, as watch(slug, line); of what was done before first.

    A run whose process dies is tried once more from its checkpoint; the others go on. Processes are spawned, so a
    script that calls this needs ``if __name__ == "__main__":`` around it.
    """
    folder = Path(folder)
    watch = watch or (lambda slug, line: None)
    runs = {one.slug: one for experiment in experiments for one in experiment.runs()}
    outcomes: dict[str, Outcome] = {}
    jobs: deque[Job] = deque()
    for slug, experiment in runs.items():
        job = Job(experiment, folder / slug, fresh=not resume)
        try:
            before = recorded(job.folder, experiment) if resume else None
        except (ValueError, OSError) as wrong:
            outcomes[slug] = Outcome(experiment, job.folder, "failed", str(wrong))
            continue
        if before is not None and before.end is not None:
            outcomes[slug] = Outcome(experiment, job.folder, "skipped")
            for line in before.lines():
                watch(slug, line)
        else:
            jobs.append(job)
    if jobs:
        n = min(workers or _workers(jobs), len(jobs))
        with _team(n) as team:
            for outcome in team.run(jobs, watch):
                outcomes[outcome.folder.name] = outcome
    return [outcomes[slug] for slug in runs]


class Team:
    """The processes of a sweep, and what each is at."""

    def __init__(self, size: int) -> None:
        self.size, self.threads = size, max(1, cores() // size)
        self.members: dict[Connection, BaseProcess] = {}
        self.busy: dict[Connection, Job] = {}

    def run(self, jobs: deque[Job], watch: Watch) -> Iterator[Outcome]:
        while jobs or self.busy:
            self._assign(jobs)
            for pipe in wait(list(self.members)):
                assert isinstance(pipe, Connection)
                try:
                    kind, content = pipe.recv()
                except (EOFError, OSError):
                    if (job := self.busy.pop(pipe, None)) is not None:
                        yield from self._lost(job, self.members[pipe], jobs)
                    self._dismiss(pipe)
                    continue
                job = self.busy[pipe]
                if kind == LINE:
                    watch(job.folder.name, content)
                else:
                    del self.busy[pipe]
                    yield Outcome(job.experiment, job.folder, "finished" if kind == DONE else "failed", content)

    def _assign(self, jobs: deque[Job]) -> None:
        while jobs and len(self.busy) < self.size:
            pipe = next((one for one in self.members if one not in self.busy), None) or self._hired()
            job = jobs.popleft()
            self.busy[pipe] = replace(job, tries=job.tries + 1, fresh=False)
            with suppress(OSError):  # dead already: its pipe tells
                pipe.send((job.experiment.as_dict(), str(job.folder), job.fresh))

    def _hired(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self.threads), daemon=True)
        with _sigint_ignored():
            process.start()
        theirs.close()
        self.members[pipe] = process
        return pipe

    def _lost(self, job: Job, process: BaseProcess, jobs: deque[Job]) -> Iterator[Outcome]:
        process.join(PATIENCE)
        if job.tries < TRIES:
            jobs.appendleft(job)
            return
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        error = f"its process died {TRIES} times, last by {how}; if by SIGKILL, memory may be short: take fewer workers"
        yield Outcome(job.experiment, job.folder, "failed", error)

    def _dismiss(self, pipe: Connection) -> None:
        pipe.close()
        self.members.pop(pipe).join(PATIENCE)

    def stop(self) -> None:
        """Ask all to finish their round and save; whoever does not in time is ended."""
        for pipe, process in self.members.items():
            pipe.close()
            process.terminate()
        until = time.monotonic() + PATIENCE
        try:
            for process in self.members.values():
                process.join(max(0.0, until - time.monotonic()))
        finally:
            for process in self.members.values():
                process.kill()
                process.join()


@contextmanager
def _team(size: int) -> Iterator[Team]:
    team = Team(size)
    try:
        yield team
    finally:
        team.stop()


@contextmanager
def _sigint_ignored() -> Iterator[None]:
    """A child begins as deaf to Ctrl-C as its parent is at that moment."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _workers(jobs: Sequence[Job]) -> int:
    from bartizan.lab.training.training_loop import Training

    return 1 if any(Training.device_of(job.experiment) == "cuda" for job in jobs) else cores()
