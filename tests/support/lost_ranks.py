"""Three ranks of which one is lost, in processes of their own, since their group is unusable afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

from ranks import PATIENCE, on_this_machine

RANK = """
import datetime, os, sys
import numpy as np, torch, torch.distributed as dist
import bartizan as bz
from bartizan.distributed import RankError, ShardedAggregator
from torch.distributed.distributed_c10d import _set_pg_timeout

rank, store, patience = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
settings = {"rank": rank, "world_size": 3, "timeout": datetime.timedelta(seconds=patience)}
dist.init_process_group("gloo", store=dist.FileStore(store, 3), **settings)
aggregate = ShardedAggregator(bz.Krum(1), bz.Rotated(64))
shard = torch.from_numpy(np.random.default_rng(rank).normal(size=(7, 50)))
aggregate(shard)
# Shortened when the group is there: with a short one from the start a slow rank would miss the first round.
_set_pg_timeout(datetime.timedelta(seconds=2), dist.group.WORLD)
print("one round", flush=True)
sys.stdin.readline()
try:
    aggregate(shard)
except RankError as error:
    print("RankError:", " ".join(str(error).split()), flush=True)
    os._exit(7)  # how torch takes a broken group apart is not what is tested
"""


def survivors_raise(folder, gone):
    """Kill or silence one of three ranks after a round, and require that the others raise and end."""
    stderrs = [(folder / f"rank{rank}").open("w+") for rank in range(3)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": os.environ | on_this_machine()}
    arguments = [str(folder / "store"), str(PATIENCE)]
    started = []
    try:
        for rank in range(3):
            command = [sys.executable, "-c", RANK, str(rank), *arguments]
            started.append(subprocess.Popen(command, stderr=stderrs[rank], **pipes))
        for rank, process in enumerate(started):
            assert process.stdout.readline() == "one round\n", (folder / f"rank{rank}").read_text()
        if gone == "dead":
            started[1].kill()
            started[1].wait()
        for process in (started[0], started[2]):
            process.stdin.write("go on\n")
            process.stdin.flush()
        for process in (started[0], started[2]):
            output, _ = process.communicate(timeout=PATIENCE)
            assert output.startswith("RankError: rank ")
            assert "another rank is dead, did not answer within the group's timeout" in output
            assert process.returncode == 7
    finally:
        for process in started:
            process.kill()
            process.communicate()
        for file in stderrs:
            file.close()
