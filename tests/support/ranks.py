"""Real processes with a FileStore between them: one pool, in which many rounds are run."""

from __future__ import annotations

import datetime
import errno
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import bartizan as bz
from bartizan._util.seeds import fresh_seed
from bartizan.distributed import ShardedAggregator
from bartizan.rules import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sources.sharded import sharded_updates
from bartizan.updates import Updates

PATIENCE = 200  # seconds until a rank that hangs is a failed test: with cold caches all of them compile first
POINTS = ("reference", "trusted")
# How (M, p) is placed, and how one update is.
PLACEMENTS = {
    "columns": lambda S, R: ([S(1)], [S(0)]),
    "one per client": lambda S, R: (None, [S(0)]),
    "copies of one per client": lambda S, R: (None, [R(), S(0)]),
    "copies of one per client, over the other axis": lambda S, R: (None, [S(0), R()]),
    "one row": lambda S, R: ([S(0)], [S(0)]),
    "rows": lambda S, R: ([S(0)], [S(0)]),
    "copies": lambda S, R: ([R()], [S(0)]),
    "copies of columns": lambda S, R: ([R(), S(1)], [R(), S(0)]),
    "columns of copies of them": lambda S, R: ([S(1), R()], [S(0), R()]),
    "shards of shards, no copies of them": lambda S, R: ([S(1), S(1)], [S(0), S(0)]),
}
COLLECTIVES = {"all_gather": 1, "broadcast": 0, "reduce": 0}  # which argument holds what a rank gives away


@dataclass(frozen=True)
class Answer:
    """What one rank got, without its tensors."""

    update: object
    weights: object
    scores: object
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

    error: type = ZeroDivisionError

    def weigh(self, geometry):
        raise self.error("no rule at all")


class Plain(Rule):
    """Has no repr of its own, and remembers what it computed."""

    def __init__(self, power=1):
        self.power = power

    @cached_property
    def rounds(self):
        return []

    def weigh(self, geometry):
        self.rounds.append(geometry.n_clients)
        return geometry.shares**self.power / (geometry.shares**self.power).sum()


@dataclass(frozen=True)
class Sore(CoordinateWise):
    """Fails on the rank whose columns hold a 7."""

    def reduce(self, columns, sizes):
        if (columns == 7).any():
            raise MemoryError("no room to combine")
        return np.mean(columns, axis=0)


@dataclass(frozen=True)
class Blind(bz.Rotated):
    """Fails on the ranks that do not hold the first columns."""

    def add(self, rows, origin, start, seed, out, norms):
        if start:
            raise MemoryError("no room for a look")
        super().add(rows, origin, start, seed, out, norms)


@dataclass(frozen=True)
class Unexplained(bz.Rotated):
    """On the ranks that do not hold the first columns, what is wrong with a client can't be found out, once."""

    def add(self, rows, origin, start, seed, out, norms):
        super().add(rows, origin, start, seed, out, norms)
        fault = Updates.fault

        def failing(updates, row):
            Updates.fault = fault
            raise OSError(errno.EMFILE, "no descriptors")

        Updates.fault = failing if start else fault


class Ranks:
    """Rank processes that wait for rounds to take part in."""

    def __init__(self, size, folder, backend="gloo", device="cpu"):
        context = multiprocessing.get_context("spawn")
        self.orders = [context.Queue() for _ in range(size)]
        self.answers = context.Queue()
        self.turns = itertools.count()
        settings = (size, str(folder / "store"), backend, device)
        arguments = [(rank, *settings, self.orders[rank], self.answers) for rank in range(size)]
        self.processes = [context.Process(target=serve, args=a, daemon=True) for a in arguments]
        for process in self.processes:
            process.start()

    def __call__(self, calls):
        """One call a rank: (ShardedAggregator's arguments, the call's); an Answer or (error, message) each."""
        turn, answers = next(self.turns), {}
        for orders, call in zip(self.orders, calls, strict=False):
            orders.put((turn, len(calls), *call))
        while len(answers) < len(calls):
            of, rank, answer = self.answers.get(timeout=PATIENCE)
            if of == turn:  # and not of one that was given up
                answers[rank] = answer
        return [answers[rank] for rank in range(len(calls))]

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


def on_this_machine():
    """Whatever the machine is called and however it is connected: ranks meet on the loopback."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), names[0]) if names else {}


def ended_with_the_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def serve(rank, size, store, backend, device, orders, answers):
    threading.Thread(target=ended_with_the_parent, daemon=True).start()
    os.environ.update(on_this_machine())
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    timeout = datetime.timedelta(seconds=PATIENCE)
    dist.init_process_group(backend, store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timeout)
    # By all ranks in one order, also those that are not in them: groups are numbered, and the numbers must agree.
    groups = {n: dist.new_group(range(n)) for n in range(1, size + 1)}
    meshes = {n: mesh_of(n, groups[n], device, rank) for n in groups}
    if size == 4 and device == "cpu":
        meshes["2 x 2"] = DeviceMesh(device, [[0, 1], [2, 3]])
    traffic = counted()
    while True:
        turn, n, arguments, form, call = orders.get()
        traffic.clear()
        try:
            answers.put((turn, rank, answered(n, groups, meshes, arguments, form, device, dict(call), traffic)))
        except Exception as raised:
            answers.put((turn, rank, (type(raised).__name__, str(raised))))


def answered(n, groups, meshes, arguments, form, device, call, traffic):
    if form == "another call":
        return said_otherwise(groups[n], n, **call)
    if form == "arriving":
        return when_it_happened(groups[n], arguments, **call)
    shard = call.pop("shard")
    if form == "dtensor":
        mesh = meshes["2 x 2" if "copies of" in call.get("placement", "") else n]
        shard, call = as_dtensors(mesh, shard, call, device)
    elif form == "states":
        mesh = meshes["2 x 2" if call.pop("copies", False) else n]
        shard, call = as_states(mesh, shard, call)
    else:
        call["group"] = groups[n]
        if form != "numpy":
            name, _, with_gradients = form.partition(" ")
            shard = tensors(shard, getattr(torch, name), device)
            shard = shard.requires_grad_() if with_gradients else shard
            call |= {name: tensors(call[name], torch.float32, device) for name in POINTS if name in call}
    out = ShardedAggregator(*arguments)(shard, **call)
    update, kind = out.update, type(out.update).__name__
    if form == "states":
        kind = {name: str(getattr(leaf, "placements", "plain")) for name, leaf in update.items()}
        update = {
            name: np.asarray(getattr(leaf, "full_tensor", lambda leaf=leaf: leaf)()) for name, leaf in update.items()
        }
    if form == "dtensor" and hasattr(update, "placements"):
        kind += f" {[str(how) for how in update.placements]}"
        update = update.to_local()
    if isinstance(update, torch.Tensor):
        assert update.device.type == device
        update = update.cpu().double().numpy()
    judged = out.weights, out.scores, out.quarantined
    return Answer(update, *judged, out.seed, out.history, out.sketch, out.seconds, dict(traffic), kind)


def when_it_happened(group, arguments, shard, late, **call):
    """When the last update arrived here and when a seed was drawn here, by the clock that all processes share."""
    happened = {"arrived": None, "drawn": None}

    def arriving():
        for client, update in enumerate(shard):
            if client == len(shard) - 1:
                time.sleep(late)
            happened["arrived"] = time.monotonic_ns()
            yield update

    def drawn():
        happened["drawn"] = time.monotonic_ns()
        return fresh_seed()

    sharded_updates.fresh_seed = drawn
    try:
        out = ShardedAggregator(*arguments)(arriving(), group=group, **call)
    finally:
        sharded_updates.fresh_seed = fresh_seed
    return *happened.values(), out.seed


def said_otherwise(group, n, said=None):
    """As an own all_gather of a count and of as many bytes would be, or as other numbers of such calls."""
    if said is not None:
        dist.all_gather_object([None] * n, said, group=group)
        return "said"
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(n)]
    dist.all_gather(counts, torch.tensor([0]), group=group)
    parts = [torch.empty(int(max(counts)), dtype=torch.uint8) for _ in range(n)]
    dist.all_gather(parts, torch.zeros(int(max(counts)), dtype=torch.uint8), group=group)
    return "said"


def tensors(given, dtype, device):
    if isinstance(given, list):
        return [tensors(each, dtype, device) for each in given]
    if isinstance(given, dict):
        return {name: tensors(each, dtype, device) for name, each in given.items()}
    if isinstance(given, np.ndarray) and given.dtype.kind == "i":
        return torch.from_numpy(given).to(device)
    return torch.from_numpy(given).to(device, dtype) if isinstance(given, np.ndarray) else given


def mesh_of(n, group, device, rank):
    if device == "cpu":
        return DeviceMesh(device, list(range(n)))
    # By itself it would make a group with nccl, which refuses ranks that share a GPU.
    return DeviceMesh.from_group(group, device) if rank < n else None


def as_dtensors(mesh, whole, call, device):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    columns, one = PLACEMENTS[call.pop("placement", "columns")](Shard, Replicate)
    _, points = PLACEMENTS[call.pop("points", "columns")](Shard, Replicate) if "points" in call else (None, one)
    odd = call.pop("odd", {})  # clients that send something else: a placement, or what it says

    def shared_out(x, placements):
        x = torch.from_numpy(x).to(device)
        if device == "cpu":
            return distribute_tensor(x, mesh, placements)
        # By hand: gloo does not scatter what lies on a GPU.
        chunks = x.chunk(mesh.size(), dim=x.ndim - 1)
        mine = chunks[dist.get_rank()] if dist.get_rank() < len(chunks) else x[..., :0]
        return DTensor.from_local(mine, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())

    def of_client(client, row):
        other = odd.get(client, one)
        if isinstance(other, str) and other in PLACEMENTS:
            other = PLACEMENTS[other](Shard, Replicate)[1]
        return shared_out(row, other) if isinstance(other, list) else other

    if columns is None:
        shard = [of_client(client, row) for client, row in enumerate(whole)]
    else:
        shard = shared_out(whole, columns)
    return shard, call | {name: shared_out(call.pop(name), points) for name in POINTS if name in call}


def as_states(mesh, states, call):
    """State dicts whose entries are placed by their names; a client's own `odd` placements, "plain" for a tensor."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placements, odd = call.pop("placements"), call.pop("odd", {})
    made = {"R": [Replicate()], "S(0)": [Shard(0)], "S(1)": [Shard(1)]}

    def placed(state, how):
        if not isinstance(state, dict):
            return state
        tensors = {name: torch.from_numpy(x) for name, x in state.items()}
        copies = [Replicate()] * (mesh.ndim - 1)
        return {
            name: x if how[name] == "plain" else distribute_tensor(x, mesh, [*copies, *made[how[name]]])
            for name, x in tensors.items()
        }

    shard = [placed(state, placements | odd.get(client, {})) for client, state in enumerate(states)]
    return shard, call | {name: placed(call[name], placements) for name in POINTS if name in call}


def run_to_the_end(command, timeout):
    """As subprocess.run, and if it takes too long its children end with it."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, env=os.environ | on_this_machine(), **settings)
    try:
        said, complained = process.communicate(timeout=timeout)
        return process.returncode, said, complained
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def counted():
    """Count the bytes that this rank gives to collectives, by their names."""
    traffic = {}

    def counting(name, own, at):
        def call(*arguments, **settings):
            traffic[name] = traffic.get(name, 0) + arguments[at].nbytes
            return own(*arguments, **settings)

        return call

    for name, at in COLLECTIVES.items():
        own = counting(name, getattr(dist, name), at)
        for module in (dist, dist.distributed_c10d):  # torch's object collectives call those of the second
            setattr(module, name, own)
    return traffic
