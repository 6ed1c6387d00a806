"""Run the tasks of a kernel on all cores, by Python's own threads.

Kernels release the interpreter lock, and each thread takes the next task when it is done with one. So a busy core
delays no other, several callers may share the threads, Ctrl-C works between tasks, and so do forked children.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count

from bartizan._util.jit import config

_pool: ThreadPoolExecutor | None = None


def n_threads() -> int:
    """Return the number of threads: one per core, or the environment variable NUMBA_NUM_THREADS."""
    return config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]


def share(task: Callable[[int], None], n_tasks: int, threads: int) -> None:
    """Call task(0) to task(n_tasks - 1) on this thread and up to `threads - 1` others."""
    helpers = min(threads, n_tasks) - 1
    if helpers < 1:
        for i in range(n_tasks):
            task(i)
        return
    tickets = count()
    given_up = False

    def work() -> None:
        while not given_up and (i := next(tickets)) < n_tasks:
            task(i)

    pool = _helpers()
    others: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # no thread can be started: Python is about to end, or the system has none left
            others.extend(pool.submit(work) for _ in range(helpers))
        work()
    finally:
        given_up = True
        for other in others:
            if not other.cancel():  # begun: its task reads and writes the caller's memory
                other.exception()
    for other in others:
        if not other.cancelled():
            other.result()


def share_range(task: Callable[[int, int], None], n: int, threads: int) -> None:
    """Call task(first, last) for ranges that cover 0 to n, a few for each thread, so that all are busy to the end."""
    if threads <= 1:
        return task(0, n)
    parts = min(n, 8 * threads)
    share(lambda i: task(n * i // parts, n * (i + 1) // parts), parts, threads)


def _helpers() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, n_threads() - 1), thread_name_prefix="bartizan")
    return _pool


def _forget() -> None:
    """Drop the pool in a forked child, which has none of its parent's threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget)
