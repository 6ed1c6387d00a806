"""What a partitioned call costs beside one flat call on the same cores, with updates that are on the workers already.

    python benchmarks/partitioned.py --engine dask --clients 200 --dim 1000000 --workers 2
    torchrun --standalone --nproc-per-node 2 benchmarks/partitioned.py --engine torch

The flat call uses as many threads as there are workers, each worker one. Calls alternate; the fastest of each counts.
"engine alone" is what Dask or Ray takes for two steps that compute nothing and return as many bytes as the sketches and
the sums have: a partitioned call takes at least that much longer than the flat one.
"""

import argparse
import os
import time
from itertools import pairwise

import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--engine", choices=["dask", "ray", "torch", "none"], default="dask")
parser.add_argument("--clients", type=int, default=200)
parser.add_argument("--dim", type=int, default=1_000_000)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--repeats", type=int, default=15)
PAUSE = 0.02  # seconds of each step of the engine alone, which are subtracted: messages that follow at once wait longer


def updates_of(first, last, dim):
    rows = [np.random.default_rng(client).standard_normal(dim, dtype=np.float32) for client in range(first, last)]
    return np.stack(rows)


def wait_and_return(part, size, dtype):
    time.sleep(PAUSE)
    return np.ones(size, dtype)


def engine_alone(options, parts, engine, k):
    from bartizan.partitioned.workers import workers_of

    workers, share = workers_of(engine, parts, 60), options.clients // options.workers
    workers.map(wait_and_return, dict.fromkeys(range(workers.n_parts), (share * k, "float64")))
    workers.get(workers.sum(wait_and_return, dict.fromkeys(range(workers.n_parts), (options.dim, "float32"))))


def measure(options, parts, engine, is_caller=True):
    from numba import config

    import bartizan as bz
    from bartizan import partitioned

    def one_thread_a_worker(rule):
        # A rank computes in this process; the workers of other engines do not.
        config.NUMBA_NUM_THREADS = 1 if options.engine == "torch" else options.workers
        try:
            return partitioned.aggregate(parts, rule, sketch=sketch, seed=1, engine=engine)
        finally:
            config.NUMBA_NUM_THREADS = options.workers

    if is_caller:
        x = updates_of(0, options.clients, options.dim)
    sketch, f = bz.Rotated(k=4096), options.clients // 5
    for rule in (bz.Mean(), bz.Krum(f), bz.GeometricMedian(), bz.NNM(f) >> bz.GeometricMedian()):
        calls = {
            "flat": lambda rule=rule: bz.aggregate(x, rule, sketch=sketch, seed=1),
            "partitioned": lambda rule=rule: one_thread_a_worker(rule),
        }
        if options.engine in ("dask", "ray"):
            k = sketch.k if rule.needs_distances else 1
            calls["engine alone"] = lambda k=k: engine_alone(options, parts, engine, k)
        if not is_caller:
            calls.pop("flat")
        best = dict.fromkeys(calls, np.inf)
        for _ in range(options.repeats):
            results = {}
            for name, call in calls.items():
                start = time.perf_counter()
                results[name] = call()
                best[name] = min(best[name], time.perf_counter() - start)
        if not is_caller:
            continue
        assert np.array_equal(results["flat"].weights, results["partitioned"].weights)
        flat, own = best["flat"], best["partitioned"]
        least = f", engine alone {1000 * (best['engine alone'] - 2 * PAUSE):.0f} ms" if "engine alone" in best else ""
        stages = {stage: round(1000 * seconds) for stage, seconds in results["partitioned"].seconds.items()}
        print(
            f"{rule!r}: flat {1000 * flat:.0f} ms, {options.engine} {1000 * own:.0f} ms, {own / flat:.2f}{least}; "
            f"{stages} ms, load {os.getloadavg()[0]:.1f}"
        )


def main():
    options = parser.parse_args()
    cuts = np.linspace(0, options.clients, options.workers + 1).astype(int).tolist()
    shares = [(first, last, options.dim) for first, last in pairwise(cuts)]
    os.environ["NUMBA_NUM_THREADS"] = "1"  # of the workers, which inherit it
    if options.engine == "dask":
        from dask.distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=options.workers, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster, direct_to_workers=True) as client:
            os.environ["NUMBA_NUM_THREADS"] = str(options.workers)
            measure(options, [client.submit(updates_of, *share) for share in shares], client)
    elif options.engine == "none":
        os.environ["NUMBA_NUM_THREADS"] = str(options.workers)
        measure(options, [updates_of(*share) for share in shares], None)
    elif options.engine == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        os.environ["NUMBA_NUM_THREADS"] = str(1 if rank else options.workers)
        measure(options, updates_of(*shares[rank]), dist.group.WORLD, is_caller=not rank)
        dist.destroy_process_group()
    else:
        import ray

        ray.init(num_cpus=options.workers, include_dashboard=False, log_to_driver=False)
        os.environ["NUMBA_NUM_THREADS"] = str(options.workers)
        remote = ray.remote(updates_of)
        measure(options, [remote.remote(*share) for share in shares], "ray")


if __name__ == "__main__":
    main()
