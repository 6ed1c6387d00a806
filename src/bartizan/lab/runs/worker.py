"""A process of a sweep: it runs what it is sent, and says how it goes."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

LINE, DONE, FAILED = "line", "done", "failed"


def work(pipe: Connection, threads: int) -> None:
    """Run one experiment after another until the pipe is closed.

    The parent decides when to stop: it hears Ctrl-C for all, and asks by SIGTERM or by closing the pipe.
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
    except (EOFError, OSError, KeyboardInterrupt):  # nobody is there to be told
        return
