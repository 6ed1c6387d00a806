"""Bytes that each rank of `ShardedAggregator` gives to collectives, counted in four gloo processes.

Run as `python benchmarks/traffic.py`; it prints the table of docs/guides/distributed.md.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch.distributed as dist
import torch.multiprocessing as processes

import bartizan as bz
from bartizan.distributed import ShardedAggregator
from bartizan.rules.coordinatewise import Median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from ranks import counted

RANKS, SEED = 4, 2**100 + 7
CASES = [
    (50, 100_000, bz.GeometricMedian(), bz.Rotated(4096)),
    (50, 1_000_000, bz.GeometricMedian(), bz.Rotated(4096)),
    (50, 100_000, bz.GeometricMedian(), bz.Exact()),
    (50, 1_000_000, bz.GeometricMedian(), bz.Exact()),
    (1_000, 10_000, bz.GeometricMedian(), bz.Rotated(4096)),
    (50, 1_000_000, Median(), bz.Exact()),
]


def rank_of(rank, store):
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    traffic = counted()
    if rank == 0:
        print("| M | p | sketch | summed | broadcast or gathered |\n|---|---|---|---|---|", flush=True)
    for M, p, rule, sketch in CASES:
        traffic.clear()
        shard = np.random.default_rng([M, rank]).standard_normal((M, p // RANKS), dtype=np.float32)
        ShardedAggregator(rule, sketch)(shard, offset=rank * (p // RANKS), seed=SEED)
        if rank == 0:
            own = f"`{type(sketch).__name__}({getattr(sketch, 'k', '')})`"
            name = "norms only" if isinstance(rule, Median) else own
            other = traffic["all_gather"] + traffic["broadcast"]
            print(f"| {M:,} | {p:,} | {name} | {traffic['reduce']:,} | {other:,} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(rank_of, (f"{folder}/store",), nprocs=RANKS)
