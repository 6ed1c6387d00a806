"""Partitioned calls on a real local cluster: run as a program, so that workers get these functions by value.

    python partitioned_clusters.py dask|ray SCENARIO FOLDER
    python partitioned_clusters.py torch SCENARIO FOLDER RANK

Prints one line of JSON: what the call gave beside one flat call, or the error and how long it took.
"""

import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np

import bartizan as bz
from bartizan import partitioned

M, P, WORKERS, PATIENCE = 18, 20_000, 3, 60
SHARES = [(0, 7), (7, 8), (8, M)]
RULE = bz.NNM(3) >> bz.GeometricMedian()


def update_of(client):
    if client == 5:
        return {"other": np.zeros(3)}
    update = np.random.default_rng(client).normal(size=P).astype(np.float32)
    if client == 9:
        update[3] = np.nan
    return {"w": update[: P // 2].reshape(100, -1), "b": update[P // 2 :], "steps": np.array(client)}


def held(first, last):
    return [update_of(client) for client in range(first, last)]


def fatal(folder, client, reads):
    """The client's update; the worker that reads it for the `reads`-th time dies."""
    mark = Path(folder, f"{client}-{os.getpid()}")
    with mark.open("a") as file:
        file.write("x")
    before = sum(each.stat().st_size for each in Path(folder).glob(f"{client}-*"))
    if before == reads:
        os.kill(os.getpid(), signal.SIGKILL)
    return update_of(client)


def changing(folder, client):
    """The client's update; minus it from the second reading on."""
    with Path(folder, str(client)).open("a") as file:
        file.write("x")
    sign = 1 if Path(folder, str(client)).stat().st_size == 1 else -1
    return {name: sign * entry for name, entry in update_of(client).items()}


def tiny(client):
    return {"w": 1e-170 * update_of(client)["w"].astype(float)} if client not in (5, 9) else {}


def silent(client):
    time.sleep(90)
    return update_of(client)


def opened(opener):
    return [[partial(opener, client) for client in range(*share)] for share in SHARES]


def parts_of(scenario, folder):
    if scenario.startswith("killed"):
        parts = opened(update_of)
        parts[2][10 - SHARES[2][0]] = partial(fatal, folder, 10, 2 if scenario == "killed later" else 1)
        return parts
    if scenario == "changing":
        parts = opened(update_of)
        parts[2][10 - SHARES[2][0]] = partial(changing, folder, 10)
        return parts
    if scenario == "tiny":
        return [[tiny(client) for client in range(*share)] for share in SHARES]
    if scenario == "silent":
        return [held(*SHARES[0]), [partial(silent, 7)], held(*SHARES[2])]
    return opened(update_of) if scenario == "opened" else [held(*share) for share in SHARES]


def compared(out, made, given):
    updates = [made(client) for client in range(M)]
    flat = bz.aggregate(updates, RULE, sketch=out.sketch, seed=out.seed, **given)
    gap = max(float(np.abs(out.update[name] - flat.update[name]).max()) for name in flat.update)
    same = np.array_equal(np.array(out.weights), np.array(flat.weights)) and out.quarantined == flat.quarantined
    return {"same": bool(same), "gap": gap, "quarantined": sorted(out.quarantined), "names": list(out.update)}


def told(call):
    start = time.perf_counter()
    try:
        answer = call()
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer | {"seconds": time.perf_counter() - start}), flush=True)


def called(parts, scenario, engine):
    timeout = {"silent": 20, "stopped": 5}.get(scenario, PATIENCE)
    given = {"trusted": {"w": np.ones((100, P // 200))}} if scenario == "tiny" else {}
    out = partitioned.aggregate(parts, RULE, sketch=bz.Rotated(k=1024), engine=engine, timeout=timeout, **given)
    if scenario == "changing":
        return {"quarantined": out.quarantined}
    return compared(out, tiny if scenario == "tiny" else update_of, given)


def on_dask(scenario, folder):
    from dask.distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        parts = parts_of(scenario, folder)
        if scenario == "futures":
            parts = [client.submit(held, *SHARES[0]), client.map(update_of, range(*SHARES[1])), held(*SHARES[2])]
        if scenario == "lost":
            workers = list(client.scheduler_info()["workers"])
            parts[1] = client.scatter([parts[1]], workers=workers[:1])[0]
            os.kill(client.run(os.getpid, workers=workers[:1])[workers[0]], signal.SIGKILL)
            while parts[1].status == "finished":
                time.sleep(0.05)
        if scenario == "stopped":
            stopped = next(iter(client.run(os.getpid).values()))
            os.kill(stopped, signal.SIGSTOP)
            # An endless wait ends when the worker goes on; its result is then no error of that wait.
            threading.Timer(PATIENCE, os.kill, (stopped, signal.SIGCONT)).start()
        told(lambda: called(parts, scenario, client))
        if scenario == "stopped":
            os.kill(stopped, signal.SIGKILL)
            os._exit(0)


def on_ray(scenario, folder):
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    parts = parts_of(scenario, folder)
    if scenario == "futures":
        one, some = ray.remote(update_of), ray.remote(held)
        parts = [some.remote(*SHARES[0]), [one.remote(client) for client in range(*SHARES[1])], held(*SHARES[2])]
    told(lambda: called(parts, scenario, "ray"))


def on_torch(scenario, folder, rank):
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store", WORKERS)
    dist.init_process_group("gloo", rank=int(rank), world_size=WORKERS, store=store, timeout=timedelta(seconds=10))
    if scenario == "silent" and rank == "1":
        time.sleep(20)
        os._exit(0)

    def call():
        if scenario == "sizes":
            low, high = SHARES[int(rank)]
            sizes = np.ones(high - low + {"0": 1, "1": -1}.get(rank, 0))  # together as many as there are clients
            partitioned.aggregate(held(low, high), bz.Mean(), sizes=sizes, engine=dist.group.WORLD)
            return {"error": None}
        if rank == "0":
            return called(parts_of(scenario, folder)[int(rank)], scenario, dist.group.WORLD)
        given = {"trusted": {"w": np.ones((100, P // 200))}} if scenario == "tiny" else {}
        out = partitioned.aggregate(parts_of(scenario, folder)[int(rank)], RULE, engine=dist.group.WORLD, **given)
        return {"quarantined": sorted(out.quarantined), "has": out.update is not None}

    told(call)
    os._exit(0)  # a group that lost a rank does not end by itself


if __name__ == "__main__":
    {"dask": on_dask, "ray": on_ray, "torch": on_torch}[sys.argv[1]](*sys.argv[2:])
