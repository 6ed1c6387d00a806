"""A robust round over updates that no process holds whole: each rank has its own columns of all of them.

    torchrun --standalone --nproc-per-node 3 examples/torchrun_sharded.py

With GPUs, one a rank, add `--backend nccl`; over several machines use torchrun's `--nnodes` and `--rdzv-endpoint`.
"""

import argparse
import os

import torch
import torch.distributed as dist

import bartizan as bz
from bartizan.distributed import ShardedAggregator


def my_columns(rank, size, dim):
    """Even shares but for the last: any cut will do, as long as each column is held once."""
    each = dim // size
    return rank * each, dim if rank == size - 1 else (rank + 1) * each


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--dim", type=int, default=3_000_001)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)

    first, last = my_columns(rank, size, options.dim)
    generator = torch.Generator().manual_seed(rank)
    shard = torch.randn(options.clients, last - first, generator=generator).to(device) + 1
    shard[:4] = -50  # four attack ...
    if rank == size - 1:
        shard[4, -1] = torch.nan  # ... and one is broken, where only the last rank can see it

    robust = ShardedAggregator(bz.NNM(5) >> bz.GeometricMedian(), bz.Rotated(k=4096))
    out = robust(shard, offset=first)

    spent = ", ".join(f"{stage} {seconds:.3f} s" for stage, seconds in out.seconds.items())
    for turn in range(size):
        dist.barrier()
        if turn == rank:
            print(f"rank {rank}: columns {first:,} to {last:,}, mean {out.update.mean():.3f}; {spent}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"weight of the attackers {out.weights[:4].sum():.4f}; quarantined {out.quarantined}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
