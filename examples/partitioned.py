"""A robust round over clients whose whole updates are on many workers: only sketches and sums travel.

    python examples/partitioned.py --engine dask
    python examples/partitioned.py --engine ray --workers 4
    torchrun --standalone --nproc-per-node 3 examples/partitioned.py --engine torch

Each worker makes the updates of its clients itself, here from seeds, as it would open them from its disk or a store.
Every fifth client attacks and one is broken. `--check` compares with one call that holds all updates.
"""

import argparse
import os
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

import bartizan as bz
from bartizan import partitioned


def update_of(client, dim):
    """What the worker calls to open one client's update."""
    if client % 5 == 0:
        return np.full(dim, -50, np.float32)
    update = np.random.Generator(np.random.SFC64(client)).standard_normal(dim, dtype=np.float32) + 1
    if client == 4:
        update[7] = np.nan
    return update


class Costs:
    """The most memory that this process and all that it started have used together, sampled; and what loopback moved.

    Traffic of other programs counts too, unless this one runs by itself: `unshare -n sh -c "ip link set lo up; ..."`.
    """

    def __enter__(self):
        self.most, self.done, self.before = 0, threading.Event(), self._moved()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *raised):
        self.done.set()
        self.moved = self._moved() - self.before

    def _moved(self):
        return int(Path("/proc/net/dev").read_text().partition("lo:")[2].split()[0])

    def _watch(self):
        while not self.done.wait(0.25):
            parents, used = {}, {}
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    rollup = (folder / "smaps_rollup").read_text()
                    used[int(folder.name)] = int(rollup.partition("\nPss:")[2].split()[0]) * 1024
                except (OSError, ValueError, IndexError):
                    continue  # it has ended, or is not ours
            family = {os.getpid()}
            while more := {pid for pid, parent in parents.items() if parent in family} - family:
                family |= more
            self.most = max(self.most, sum(used.get(pid, 0) for pid in family))


def with_dask(parts, workers, **call):
    from dask.distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, direct_to_workers=True) as client,
    ):
        return partitioned.aggregate(parts, engine=client, **call)


def with_ray(parts, workers, **call):
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    try:
        return partitioned.aggregate(parts, engine="ray", **call)
    finally:
        ray.shutdown()


def with_torch(parts, workers, **call):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        return partitioned.aggregate(parts[dist.get_rank()], engine=dist.group.WORLD, **call)
    finally:
        dist.destroy_process_group()


def one_after_another(parts, workers, **call):
    return partitioned.aggregate(parts, **call)


ENGINES = {"dask": with_dask, "ray": with_ray, "torch": with_torch, "none": one_after_another}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="dask")
    parser.add_argument("--workers", type=int, default=3, help="processes; torchrun has its own --nproc-per-node")
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--dim", type=int, default=100_000)
    parser.add_argument("--rule", default="nnm >> geometric-median")
    parser.add_argument("--check", action="store_true", help="compare with one call, which holds all updates")
    options = parser.parse_args()

    M, workers = options.clients, int(os.environ.get("WORLD_SIZE", options.workers))
    f = len(range(0, M, 5)) + 1
    rule = bz.NNM(f) >> bz.GeometricMedian() if options.rule.startswith("nnm") else bz.rule(options.rule, n_byzantine=f)
    parts = [[partial(update_of, client, options.dim) for client in own] for own in np.array_split(range(M), workers)]
    start = time.perf_counter()
    with Costs() as costs:
        out = ENGINES[options.engine](parts, workers, rule=rule, sketch=bz.Rotated(k=4096))
    if out.update is None:  # not the first rank
        return
    print(f"{M:,} clients of {options.dim:,} numbers on {workers} workers: {time.perf_counter() - start:.1f} s, {out}")
    print(f"weight of the attackers {out.weights[::5].sum():.4f}; mean of the update {out.update.mean():.3f}")
    print(f"quarantined {out.quarantined}")
    print(f"at most {costs.most / 2**30:.2f} GiB of memory in all; {costs.moved / 2**20:,.1f} MiB over loopback")
    if options.check:
        flat = bz.aggregate([part() for own in parts for part in own], rule, sketch=out.sketch, seed=out.seed)
        assert np.array_equal(flat.weights, out.weights), "the weights are not those of one call"
        np.testing.assert_allclose(out.update, flat.update, rtol=1e-6, atol=1e-6)
        print("as from one call")


if __name__ == "__main__":
    main()
