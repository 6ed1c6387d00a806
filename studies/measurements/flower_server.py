"""RobustStrategy beside Flower's own strategies on the same replies: choice of client, time, memory."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as theirs
from flwr.supercore.task_identity import TaskIdentity

import bartizan as bz
from bartizan.flower import RobustStrategy
from studies.options import command
from studies.rows import write_json
from studies.speed.peak_memory import of_process

OURS = {
    "bartizan Mean": bz.Mean,
    "bartizan Krum": bz.Krum,
    "bartizan MultiKrum": bz.MultiKrum,
    "bartizan GeometricMedian": bz.GeometricMedian,
}
SPILLED = {f"{name}, spilled": rule for name, rule in OURS.items() if "Krum" in name}
NAMES = ("Flower FedAvg", "Flower Krum", *OURS, *SPILLED)


class Nodes:
    """The part of a grid that `configure_train` needs: the ids of the nodes."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


def flower_server(
    *,
    clients: int = 50,
    dim: int = 1_000_000,
    byzantine: int = 10,
    repeats: int = 3,
    seeds: Annotated[int, "of the check that runs first"] = 20,
    only: Annotated[list[str], "a strategy (default all)"] = [],  # noqa: B006 - not changed
    scratch: Annotated[Path | None, "a folder for the replies, and for what is spilled"] = None,
    out: Path | None = None,
) -> None:
    """Check first how often Krum picks an attacker when nodes send whole weights that hardly differ; then time.

    Each strategy runs in a process of its own, so that its peak is its own. Replies lie in files, and are read one
    after the other, as they would be pulled; Flower's strategies keep them all before they begin. "On all cores" is
    processor time.
    """
    M, p, f, names = clients, dim, byzantine, only or NAMES
    quiet_flower()
    checked = check(seeds)
    print(f"{M} replies of {p:,} float32 numbers ({4e-6 * M * p:,.0f} MB), {f} of them wild; median of {repeats}")
    print(f"{'':32s} {'after the last':>15s} {'server in all':>15s} {'on all cores':>15s} {'memory':>12s}")
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        written(folder, M, p, f)
        for _ in range(repeats):  # in turns, so that what else the machine does hits all alike
            for name in names:
                rows[name].append(_alone(name, folder, M, p, f, False))
        found = {}
        for name in names:
            found[name] = {key: float(np.median([row[key] for row in rows[name]])) for key in rows[name][0]}
            found[name] |= _alone(name, folder, M, p, f, True)
            after, server, cpu, peak = (found[name][key] for key in ("after", "server", "cpu", "peak"))
            print(f"{name:32s} {after:13.3f} s {server:13.3f} s {cpu:13.3f} s {peak:9.0f} MB", flush=True)
    about = {"clients": M, "dim": p, "byzantine": f, "repeat": repeats, "seeds": seeds}
    write_json(out, {**about, "attackers_picked": checked, "strategies": found, "runs": rows})


add_to = command(flower_server)


def quiet_flower() -> None:
    """Let strategies run outside Flower's processes, and print nothing of their own."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for one in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, one, 1)


def strategy_of(name: str, M: int, f: int, spill: str | None = None):
    given = {"min_train_nodes": M, "min_available_nodes": M, "fraction_evaluate": 0.0}
    if name == "Flower FedAvg":
        return theirs.FedAvg(**given)
    if name == "Flower Krum":
        return theirs.Krum(num_malicious_nodes=f, **given)
    rule = (OURS | SPILLED)[name]
    return RobustStrategy(rule(f) if "Krum" in name else rule(), spill=spill if name in SPILLED else None, **given)


def asked(strategy, sent: ArrayRecord, M: int) -> list[Message]:
    questions = sorted(
        strategy.configure_train(1, sent, ConfigRecord(), Nodes(M)), key=lambda one: one.metadata.dst_node_id
    )
    for n, question in enumerate(questions):
        question.metadata.__dict__["_message_id"] = str(n)
    return questions


def answer(question: Message, array: Array) -> Message:
    content = {"arrays": ArrayRecord({"w": array}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=question)


def picked(name: str, ratio: float, seed: int, M: int = 20, f: int = 4, p: int = 20_000) -> int:
    """Return the node that Krum picks if steps are `ratio` of the weights and the first f nodes reverse theirs."""
    rng = np.random.default_rng(seed)
    model = (1 + rng.normal(size=p)).astype(np.float32)
    steps = rng.normal(size=p) * np.where(np.arange(M) < f, -1, 1)[:, None] + 0.3 * rng.normal(size=(M, p))
    sent = (model + ratio * steps).astype(np.float32)
    strategy = strategy_of(name, M, f)
    questions = asked(strategy, ArrayRecord({"w": Array(model)}), M)
    replies = [answer(question, Array(row)) for question, row in zip(questions, sent, strict=True)]
    found = strategy.aggregate_train(1, replies)[0]["w"].numpy().astype(np.float64)
    return int(np.argmin(np.linalg.norm(sent - found, axis=1)))


def check(seeds: int) -> dict[str, dict[str, int]]:
    """Count the seeds in which each strategy picks an attacker; exit if ours ever does."""
    print(f"Whole weights, 20 nodes of which 4 step the other way: an attacker picked, of {seeds} seeds")
    found: dict[str, dict[str, int]] = {}
    for name in ("Flower Krum", "bartizan Krum"):
        found[name] = {
            str(ratio): sum(picked(name, ratio, seed) < 4 for seed in range(seeds)) for ratio in (1e-3, 1e-4, 1e-5)
        }
        told = ", ".join(f"{count} at update/weight {ratio}" for ratio, count in found[name].items())
        print(f"{name:32s} {told}", flush=True)
    if any(found["bartizan Krum"].values()):
        raise SystemExit("RobustStrategy picked an attacker: no times are told of wrong answers.")
    return found


def written(folder: str, M: int, p: int, f: int) -> None:
    """Write the model and the replies to files, in the bytes that Flower would send."""
    rng = np.random.default_rng(0)
    model = rng.standard_normal(p, dtype=np.float32)
    Path(folder, "model").write_bytes(Array(model).data)
    for n in range(M):
        step = rng.standard_normal(p, dtype=np.float32) * np.float32(1e-3 if n >= f else 1e-2)
        Path(folder, str(n)).write_bytes(Array(model + step).data)


def array_of(folder: str, name: str, p: int) -> Array:
    return Array("float32", (p,), "numpy.ndarray", Path(folder, name).read_bytes())


class Peak(threading.Thread):
    """Sample the peak of this process's own memory, without mapped files, which the system may drop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.001):
            self.most = max(self.most, of_process("RssAnon:"))

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *gone: object) -> None:
        self.over.set()
        self.join()


def measured(name: str, folder: str, M: int, p: int, f: int, watched: bool) -> dict[str, float]:
    quiet_flower()
    sent = ArrayRecord({"w": array_of(folder, "model", p)})
    _warm(strategy_of(name, 9, 2))
    strategy = strategy_of(name, M, f, spill=folder)
    questions = asked(strategy, sent, M)
    waited, reading, last = 0.0, 0.0, 0.0

    def replies() -> Iterator[Message]:
        nonlocal waited, reading, last
        for n, question in enumerate(questions):
            start, before = time.perf_counter(), time.process_time()
            reply = answer(question, array_of(folder, str(n), p))
            last = time.perf_counter()
            waited, reading = waited + last - start, reading + time.process_time() - before
            yield reply
            del reply

    if watched:  # by itself, for it costs time
        before = of_process("RssAnon:")
        with Peak() as peak:
            strategy.aggregate_train(1, replies())
        return {"peak": (peak.most - before) / 1e6}
    begin, worked = time.perf_counter(), time.process_time()
    strategy.aggregate_train(1, replies())
    end, working = time.perf_counter(), time.process_time() - worked
    return {"after": end - last, "server": end - begin - waited, "cpu": working - reading}


def _warm(strategy) -> None:
    """Compile the kernels on a small round."""
    rng = np.random.default_rng(1)
    questions = asked(strategy, ArrayRecord({"w": Array(np.zeros(5000, np.float32))}), 9)
    strategy.aggregate_train(1, [answer(one, Array(rng.normal(size=5000).astype(np.float32))) for one in questions])


def _alone(*given) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as own:
        return own.apply(measured, given)
