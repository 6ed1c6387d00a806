"""A run small enough for a test: real data, a linear model, ten clients, three of them attackers."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

from bartizan import records as results
from bartizan.lab import Experiment, run
from bartizan.lab.runs.checkpoint import Checkpoint

SMALL = Experiment.of(
    {
        "rounds": 6,
        "device": "cpu",
        "model": {"name": "logistic"},
        "clients": {"count": 10, "batch": 8, "byzantine": 3},
        "attack": {"name": "sign-flip"},
        "sketch": {"k": 256},
        "evaluation": {"every": 2},
    }
)
TIMES = ("seconds", "read", "crc")


def facts(folder: Path) -> list[str]:
    """Every line but its times, and the final model to the bit."""
    recorded = results.read(folder)
    lines = [recorded.run, *recorded.rounds, recorded.end or {}]
    told = [json.dumps({key: value for key, value in line.items() if key not in TIMES}) for line in lines]
    saved = Checkpoint.load(folder)
    assert saved is not None
    return [*told, hashlib.sha256(saved.server["weights"].numpy().tobytes()).hexdigest()]


class Enough(Exception):
    """Raised by a test to interrupt a run."""


def run_until(round: int, experiment: Experiment, folder: Path, **settings) -> None:
    """Run an experiment, and interrupt it after a round."""

    def watch(line):
        if line.get("round") == round:
            raise Enough

    with suppress(Enough):
        run(experiment, folder, watch=watch, **settings)
        raise AssertionError("the run ended")


def train(pipe, config, folder, every, room):
    """In a process of its own: say each round, and at the end how it ended."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if room:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        run(
            Experiment.of(config),
            folder,
            resume=True,
            save_every=every,
            watch=lambda line: pipe.send(line.get("round", 0)),
        )
    except BaseException as wrong:
        pipe.send(f"{type(wrong).__name__}: {wrong}")
    else:
        pipe.send("done")


class Child:
    """A process that trains."""

    def __init__(self, process, pipe):
        self.process, self.pipe = process, pipe

    def until(self, round):
        while isinstance(said := self.pipe.recv(), int):
            if said >= round:
                return
        raise AssertionError(said)

    def said(self):
        while isinstance(said := self.pipe.recv(), int):
            pass
        return said


@contextmanager
def child(experiment, folder, every=0.0, room=0):
    """From a server that has imported everything and done nothing: it starts in no time, and is killed in none."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bartizan.lab.training.training_loop", "bartizan.kernels.cpu", "laboratory"])
    pipe, theirs = context.Pipe()
    process = context.Process(target=train, args=(theirs, experiment.as_dict(), str(folder), every, room))
    process.start()
    theirs.close()
    try:
        yield Child(process, pipe)
    finally:
        pipe.close()
        process.kill()
        process.join()
