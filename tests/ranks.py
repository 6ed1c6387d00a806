"""Real processes with gloo and a FileStore between them: one pool, in which many rounds are run."""

from __future__ import annotations

import datetime
import multiprocessing
from dataclasses import dataclass

import torch
import torch.distributed as dist

import bartizan as bz
from bartizan.distributed import ShardedAggregator
from bartizan.rules import Rule

PATIENCE = 40  # seconds until a rank that hangs is a failed test
COLLECTIVES = {"all_gather": 1, "broadcast": 0, "reduce": 0}  # which argument holds what a rank gives away


@dataclass(frozen=True)
class Answer:
    """What one rank got, without its tensors."""

    update: object
    weights: object
    quarantined: dict
    seed: int
    history: tuple
    sketch: object
    seconds: dict
    traffic: dict
    form: str


@dataclass(frozen=True)
class Broken(Rule):
    """Fails on the rank that decides."""

    def weigh(self, geometry):
        raise ZeroDivisionError("no rule at all")


@dataclass(frozen=True)
class Blind(bz.Rotated):
    """Fails on the ranks that do not hold the first columns."""

    def add(self, rows, origin, start, seed, out, norms):
        if start:
            raise MemoryError("no room for a look")
        super().add(rows, origin, start, seed, out, norms)


class Ranks:
    """Rank processes that wait for rounds to take part in."""

    def __init__(self, size, folder):
        context = multiprocessing.get_context("spawn")
        self.orders = [context.Queue() for _ in range(size)]
        self.answers = context.Queue()
        arguments = [(rank, size, str(folder / "store"), self.orders[rank], self.answers) for rank in range(size)]
        self.processes = [context.Process(target=serve, args=a, daemon=True) for a in arguments]
        for process in self.processes:
            process.start()

    def __call__(self, calls):
        """One call a rank: (ShardedAggregator's arguments, the call's); an Answer or (error, message) each."""
        for orders, call in zip(self.orders, calls, strict=False):
            orders.put((len(calls), *call))
        answers = dict(self.answers.get(timeout=PATIENCE) for _ in calls)
        return [answers[rank] for rank in range(len(calls))]

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


def serve(rank, size, store, orders, answers):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timeout)
    groups = {n: dist.new_group(range(n)) for n in range(1, size + 1)}
    traffic = counted()
    while True:
        n, arguments, form, call = orders.get()
        traffic.clear()
        try:
            answers.put((rank, answered(n, groups, arguments, form, dict(call), traffic)))
        except Exception as raised:
            answers.put((rank, (type(raised).__name__, str(raised))))


def answered(n, groups, arguments, form, call, traffic):
    shard = call.pop("shard")
    if form == "dtensor":
        shard, call = as_dtensors(n, shard, call)
    elif form in ("float32", "bfloat16"):
        shard = torch.from_numpy(shard).to(getattr(torch, form))
        call["group"] = groups[n]
    else:
        call["group"] = groups[n]
    out = ShardedAggregator(*arguments)(shard, **call)
    update, kind = out.update, type(out.update).__name__
    if form == "dtensor":
        update = update.full_tensor()
    if isinstance(update, torch.Tensor):
        update = update.float().numpy()
    return Answer(
        update, out.weights, out.quarantined, out.seed, out.history, out.sketch, out.seconds, dict(traffic), kind
    )


def as_dtensors(n, whole, call):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh("cpu", list(range(n)))
    placement = call.pop("placement", "columns")
    placements = {"columns": [Shard(1)], "rows": [Shard(0)], "copies": [Replicate()]}
    if placement == "one a client":
        shard = [distribute_tensor(row, mesh, [Shard(0)]) for row in torch.from_numpy(whole)]
    else:
        shard = distribute_tensor(torch.from_numpy(whole), mesh, placements[placement])
    points = {
        name: distribute_tensor(torch.from_numpy(call.pop(name)), mesh, [Shard(0)])
        for name in ("reference", "trusted")
        if name in call
    }
    return shard, call | points


def counted():
    """Count the bytes that this rank gives to collectives, by their names."""
    traffic = {}

    def counting(name, own, at):
        def call(*arguments, **settings):
            traffic[name] = traffic.get(name, 0) + arguments[at].nbytes
            return own(*arguments, **settings)

        return call

    for name, at in COLLECTIVES.items():
        setattr(dist, name, counting(name, getattr(dist, name), at))
    return traffic
