"""A worker process of a sweep: run the experiments that arrive by a pipe, and send their lines back."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

LINE, DONE, FAILED = "line", "done", "failed"


def work(pipe: Connection, threads: int) -> None:
    """Run one experiment after another until the pipe is closed.

    Only the parent reacts to Ctrl-C; it stops its workers by SIGTERM or by closing their pipes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["NUMBA_NUM_THREADS"] = str(threads)  # read when numba is first imported, which is later
    from bartizan.lab.config.experiment import Experiment
    from bartizan.lab.runs.run import run
    from bartizan.lab.training.torch_import import torch

    torch.set_num_threads(threads)
    try:
        while True:
            config, folder, fresh = pipe.recv()
            try:
                run(
                    Experiment.of(config),
                    Path(folder),
                    resume=True,
                    fresh=fresh,
                    watch=lambda line: pipe.send((LINE, line)),
                )
            except (EOFError, BrokenPipeError):
                return
            except Exception as wrong:
                pipe.send((FAILED, f"{type(wrong).__name__}: {wrong}"))
            else:
                pipe.send((DONE, ""))
    except (EOFError, OSError, KeyboardInterrupt):  # the parent is gone, or stops the sweep
        return
