"""Several callers at once, as a server has them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bartizan as bz
from bartizan._util.threads import share


def test_threads_that_aggregate_at_once_get_what_each_would_alone():
    rounds = [np.random.default_rng(i).normal(size=(9, 40_000)).astype(np.float32) for i in range(8)]
    pdr = bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated(k=256))
    alone = [pdr(x, seed=3).weights for x in rounds]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: pdr(x, seed=3).weights, rounds))
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_aggregates_as_its_parent_did():
    code = (
        "import os, numpy as np, bartizan as bz\n"
        "x = np.random.default_rng(0).normal(size=(9, 40_000)).astype(np.float32)\n"
        "aggregate = lambda: bz.aggregate(x, bz.GeometricMedian(), sketch=bz.Rotated(), seed=1).weights.tobytes()\n"
        "before = aggregate()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if aggregate() == before else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), aggregate() == before)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip() == "0 True", run.stderr


def test_a_thread_that_outlives_the_main_one_aggregates_on():
    """Then Python starts no more threads: the work is done on the one that asks for it."""
    code = (
        "import threading, numpy as np, bartizan as bz\n"
        "x = np.random.default_rng(0).normal(size=(9, 40_000)).astype(np.float32)\n"
        "aggregate = lambda: bz.aggregate(x, bz.GeometricMedian(), sketch=bz.Rotated(), seed=1).weights.tobytes()\n"
        "before = aggregate()\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    print(aggregate() == before)\n"
        "threading.Thread(target=late).start()"
    )
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert run.stdout.strip() == "True", run.stderr


def test_an_interrupt_or_an_error_in_one_task_ends_them_all_and_comes_out():
    done = []

    def task(i: int) -> None:
        if i == 3:
            raise KeyboardInterrupt
        done.append(i)

    with pytest.raises(KeyboardInterrupt):
        share(task, 10_000, 4)
    assert len(done) < 10_000
    share(done.append, 100, 4)
    assert sorted(done[-100:]) == list(range(100))
