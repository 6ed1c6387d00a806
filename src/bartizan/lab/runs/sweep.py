"""Run many experiments, each in its own folder, in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs.folder import recorded
from bartizan.records import require_writable

Watch = Callable[[str, Mapping[str, Any]], None]
MAX_TRIES = 2
LINE, DONE, FAILED, DIED = "line", "done", "failed", "died"
"""Kinds of messages from a worker, and of its death."""
SECONDS_TO_STOP = 30.0  # seconds that workers have to finish their round when the sweep is stopped


@dataclass(frozen=True)
class Outcome:
    """The result of one experiment of a sweep."""

    experiment: Experiment
    folder: Path
    status: str
    """"finished", "skipped" where it was finished before, or "failed"."""
    error: str = ""


@dataclass
class Job:
    """One experiment to run, and the number of its tries."""

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
    """Run all experiments that are not finished yet, several at a time, and return the outcome of each.

    Args:
        experiments: What to run; one with a grid stands for all runs of the grid.
        folder: Where each run gets a folder, named by its `slug`.
        workers: Number of processes, each with one run at a time; by default one per core, or one on a GPU.
        resume: Keep finished runs and go on with unfinished ones; otherwise all begin again.
        watch: Called with every line of every run, as watch(slug, line); lines of finished runs come first.

    A run whose process dies is tried once more from its checkpoint; the others go on. Processes are spawned, so a
    script that calls this needs ``if __name__ == "__main__":`` around it.
    """
    folder = Path(folder)
    watch = watch or (lambda slug, line: None)
    runs = {one.slug: one for experiment in experiments for one in experiment.runs()}
    outcomes: dict[str, Outcome] = {}
    jobs: deque[Job] = deque()
    for slug, experiment in runs.items():
        try:
            before = recorded(folder / slug, experiment) if resume else None
        except (ValueError, OSError) as wrong:
            outcomes[slug] = Outcome(experiment, folder / slug, "failed", str(wrong))
            continue
        if before is None or before.end is None:
            jobs.append(Job(experiment, folder / slug, fresh=not resume))
            continue
        outcomes[slug] = Outcome(experiment, folder / slug, "skipped")
        for line in before.lines():
            watch(slug, line)
    if jobs:
        require_writable(folder)
        import bartizan.lab.torch_import  # noqa: F401 - the workers need it

        pool = WorkerPool(min(workers or _default_workers(jobs), len(jobs)))
        try:
            for outcome in pool.run(jobs, watch):
                outcomes[outcome.folder.name] = outcome
                if not folder.exists():  # runs that are left would make it again
                    raise FileNotFoundError(
                        f"{folder} was deleted or moved while the sweep was writing to it. Begin it again, or put the "
                        "folder back and give the same command."
                    )
        finally:
            pool.stop()
    return [outcomes[slug] for slug in runs]


def work(pipe: Connection, threads: int) -> None:
    """Run one experiment after another until the pipe is closed.

    Only the parent reacts to Ctrl-C; it stops its workers by SIGTERM or by closing their pipes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["NUMBA_NUM_THREADS"] = str(threads)  # read when numba is first imported, which is later
    from bartizan.lab.runs.run import run
    from bartizan.lab.torch_import import torch

    def send_line(line: Mapping[str, Any]) -> None:
        pipe.send((LINE, line))

    torch.set_num_threads(threads)
    try:
        while True:
            config, folder, fresh = pipe.recv()
            try:
                run(Experiment.of(config), folder, resume=True, fresh=fresh, watch=send_line)
            except (EOFError, BrokenPipeError):
                return
            except Exception as wrong:
                pipe.send((FAILED, f"{type(wrong).__name__}: {wrong}"))
                if "CUDA error" in str(wrong):  # no later run could use the GPU in this process
                    return
            else:
                pipe.send((DONE, ""))
    except (EOFError, OSError, KeyboardInterrupt):  # the parent is gone, or stops the sweep
        return


class WorkerPool:
    """A pool of worker processes, with the job of each.

    Unlike `concurrent.futures.ProcessPoolExecutor` it survives the death of a worker.
    """

    def __init__(self, size: int) -> None:
        self.size, self.threads = size, max(1, cores() // size)
        self.workers: dict[Connection, BaseProcess] = {}
        self.busy: dict[Connection, Job] = {}

    def run(self, jobs: deque[Job], watch: Watch) -> Iterator[Outcome]:
        """Do all jobs, and yield the outcome of each when it is known."""
        while jobs or self.busy:
            self._assign(jobs)
            for pipe in wait(list(self.workers)):
                assert isinstance(pipe, Connection)
                job = self.busy.get(pipe)
                try:
                    kind, content = pipe.recv()
                except (EOFError, OSError):  # the worker died
                    kind, content = DIED, self._bury(pipe)
                    if job is not None and job.tries < MAX_TRIES:
                        jobs.appendleft(job)
                        continue
                if job is None:
                    continue
                if kind == LINE:
                    watch(job.folder.name, content)
                else:
                    self.busy.pop(pipe, None)
                    yield Outcome(job.experiment, job.folder, "finished" if kind == DONE else "failed", content)

    def _assign(self, jobs: deque[Job]) -> None:
        while jobs and len(self.busy) < self.size:
            pipe = next((one for one in self.workers if one not in self.busy), None) or self._start_worker()
            job = self.busy[pipe] = jobs.popleft()
            job.tries += 1
            with suppress(OSError):  # dead already: `run` will notice by its pipe
                pipe.send((job.experiment.as_dict(), str(job.folder), job.fresh and job.tries == 1))

    def _start_worker(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self.threads), daemon=True)
        with _sigint_blocked():
            process.start()
        theirs.close()
        self.workers[pipe] = process
        return pipe

    def _bury(self, pipe: Connection) -> str:
        """Remove a dead worker, and return how it died."""
        process = self.workers.pop(pipe)
        self.busy.pop(pipe, None)
        pipe.close()
        process.join(SECONDS_TO_STOP)
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return (
            f"its process died {MAX_TRIES} times, last by {how}; if by SIGKILL, memory may be short: take fewer workers"
        )

    def stop(self) -> None:
        """Ask all workers to finish their round and save; kill those that take too long."""
        for pipe, process in self.workers.items():
            pipe.close()
            process.terminate()
        until = time.monotonic() + SECONDS_TO_STOP
        try:
            for process in self.workers.values():
                process.join(max(0.0, until - time.monotonic()))
        finally:
            for process in self.workers.values():
                process.kill()
                process.join()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C: a process started meanwhile never receives it, this one receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # it would let Ctrl-C through when the first worker starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _default_workers(jobs: Sequence[Job]) -> int:
    from bartizan.lab.training.training_loop import Training

    return 1 if any(Training.device_of(job.experiment) == "cuda" for job in jobs) else cores()
