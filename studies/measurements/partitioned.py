"""The cost of a partitioned call beside one flat call on the same cores, the updates being on the workers already."""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from studies.options import command
from studies.timing import in_turns

PAUSE = 0.02  # seconds of each step of the engine alone, which are subtracted: messages that follow at once wait longer


def partitioned(
    *,
    engine: Literal["dask", "ray", "torch", "none"] = "dask",
    clients: int = 200,
    dim: int = 1_000_000,
    workers: int = 2,
    repeats: int = 15,
) -> None:
    """Time flat and partitioned calls in turns; the fastest of each counts.

    The flat call uses as many threads as there are workers, each worker one. "engine alone" is what Dask or Ray takes
    for two steps that compute nothing and return as many bytes as the sketches and the sums have: a partitioned call
    takes at least that much longer. For torch: `torchrun --standalone --nproc-per-node 2 -m studies partitioned
    --engine torch`.
    """
    cuts = np.linspace(0, clients, workers + 1).astype(int).tolist()
    shares = [(first, last, dim) for first, last in pairwise(cuts)]
    compare = partial(measure, clients=clients, dim=dim, n_workers=workers, repeats=repeats, name=engine)
    os.environ["NUMBA_NUM_THREADS"] = "1"  # of the workers, which inherit it
    if engine == "dask":
        from dask.distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster, direct_to_workers=True) as client:
            os.environ["NUMBA_NUM_THREADS"] = str(workers)
            compare([client.submit(updates_of, *share) for share in shares], client)
    elif engine == "none":
        os.environ["NUMBA_NUM_THREADS"] = str(workers)
        compare([updates_of(*share) for share in shares], None)
    elif engine == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        os.environ["NUMBA_NUM_THREADS"] = str(1 if rank else workers)
        compare(updates_of(*shares[rank]), dist.group.WORLD, is_caller=not rank)
        dist.destroy_process_group()
    else:
        import ray

        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
        os.environ["NUMBA_NUM_THREADS"] = str(workers)
        remote = ray.remote(updates_of)
        compare([remote.remote(*share) for share in shares], "ray")


add_to = command(partitioned)


def updates_of(first, last, dim):
    rows = [np.random.default_rng(client).standard_normal(dim, dtype=np.float32) for client in range(first, last)]
    return np.stack(rows)


def wait_and_return(part, size, dtype):
    time.sleep(PAUSE)
    return np.ones(size, dtype)


def engine_alone(parts, engine, share, dim, k):
    from bartizan.sources.partitioned.workers import workers_of

    workers = workers_of(engine, parts, 60)
    workers.map(wait_and_return, dict.fromkeys(range(workers.n_parts), (share * k, "float64")))
    workers.sum(wait_and_return, dict.fromkeys(range(workers.n_parts), (dim, "float32")))


def measure(parts, engine, *, clients, dim, n_workers, repeats, name, is_caller=True):
    """Print a line per rule; a torch rank that is not the caller takes part only."""
    from numba import config

    import bartizan as bz
    from bartizan import partitioned

    def one_thread_per_worker(rule):
        # A rank computes in this process; the workers of other engines do not.
        config.NUMBA_NUM_THREADS = 1 if name == "torch" else n_workers
        try:
            return partitioned.aggregate(parts, rule, sketch=sketch, seed=1, engine=engine)
        finally:
            config.NUMBA_NUM_THREADS = n_workers

    x = updates_of(0, clients, dim) if is_caller else None
    sketch, f = bz.Rotated(k=4096), clients // 5
    for rule in (bz.Mean(), bz.Krum(f), bz.GeometricMedian(), bz.NNM(f) >> bz.GeometricMedian()):
        calls = {"flat": partial(bz.aggregate, x, rule, sketch=sketch, seed=1)} if is_caller else {}
        calls["partitioned"] = partial(one_thread_per_worker, rule)
        if name in ("dask", "ray"):
            k = sketch.k if rule.needs_distances else 1
            calls["engine alone"] = partial(engine_alone, parts, engine, clients // n_workers, dim, k)
        results = {called: call() for called, call in calls.items()}
        best = {called: min(seconds) for called, seconds in in_turns(calls, repeats, label=repr(rule)).items()}
        if not is_caller:
            continue
        assert np.array_equal(results["flat"].weights, results["partitioned"].weights)
        flat, own = best["flat"], best["partitioned"]
        least = f", engine alone {1000 * (best['engine alone'] - 2 * PAUSE):.0f} ms" if "engine alone" in best else ""
        stages = {stage: round(1000 * seconds) for stage, seconds in results["partitioned"].seconds.items()}
        print(f"{rule!r}: flat {1000 * flat:.0f} ms, {name} {1000 * own:.0f} ms, {own / flat:.2f}{least}; ", end="")
        print(f"{stages} ms, load {os.getloadavg()[0]:.1f}")
