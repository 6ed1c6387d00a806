"""Several callers at once, as a server has them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bartizan as bz


def test_threads_that_aggregate_at_once_get_what_each_would_alone():
    rounds = [np.random.default_rng(i).normal(size=(9, 40_000)).astype(np.float32) for i in range(8)]
    pdr = bz.Aggregator(bz.GeometricMedian(), sketch=bz.Rotated(k=256))
    alone = [pdr(x, seed=3).weights for x in rounds]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: pdr(x, seed=3).weights, rounds))
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_no_threading_layer_of_numba_ends_the_process(layer):
    code = (
        "import numpy as np, bartizan as bz\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "x = np.random.default_rng(0).normal(size=(9, 40_000)).astype(np.float32)\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    out = list(pool.map(lambda _: bz.aggregate(x, bz.Krum(2)).weights.sum(), range(12)))\n"
        "print(sum(out))"
    )
    environment = os.environ | {"NUMBA_THREADING_LAYER": layer}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "12.0"), run.stderr
