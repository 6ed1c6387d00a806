"""The bytes that each rank of `ShardedAggregator` gives to collectives, counted in four gloo processes."""

import sys
import tempfile
from pathlib import Path

import numpy as np

import bartizan as bz
from bartizan.distributed import ShardedAggregator
from studies.options import command
from studies.rows import keep
from studies.tables import table_of

RANKS, SEED = 4, 2**100 + 7
MEDIAN = bz.GeometricMedian()
CASES = [
    (50, 100_000, MEDIAN, bz.Rotated(4096)),
    (50, 1_000_000, MEDIAN, bz.Rotated(4096)),
    (50, 100_000, MEDIAN, bz.Exact()),
    (50, 1_000_000, MEDIAN, bz.Exact()),
    (1_000, 10_000, MEDIAN, bz.Rotated(4096)),
    (50, 1_000_000, bz.Median(), bz.Exact()),
]


def traffic(*, out: Path | None = None) -> None:
    """Print the table of docs/guides/distributed.md."""
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(count_as_rank, (f"{folder}/store", out), nprocs=RANKS)


add_to = command(traffic)


def count_as_rank(rank: int, store: str, out: Path | None) -> None:
    """Aggregate every case as one rank; the first tells what it counted."""
    import torch.distributed as dist

    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
    from ranks import counted

    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    sent, rows = counted(), []
    for M, p, rule, sketch in CASES:
        sent.clear()
        shard = np.random.default_rng([M, rank]).standard_normal((M, p // RANKS), dtype=np.float32)
        ShardedAggregator(rule, sketch)(shard, offset=rank * (p // RANKS), seed=SEED)
        own = f"`{type(sketch).__name__}({getattr(sketch, 'k', '')})`"
        name = "norms only" if isinstance(rule, bz.Median) else own
        others = sent["all_gather"] + sent["broadcast"]
        rows.append({"M": M, "p": p, "sketch": name, "summed": sent["reduce"], "broadcast or gathered": others})
    if rank == 0:
        print(table_of(rows), flush=True)
        keep(out, rows)
    dist.destroy_process_group()
