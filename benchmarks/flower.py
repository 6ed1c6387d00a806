"""RobustStrategy beside Flower's own Krum and FedAvg on the same replies: time after the last arrival, peak memory.

Run with Flower installed:  python benchmarks/flower.py --clients 50 --dim 1M
Each strategy runs in a process of its own, so that its peak is its own. Replies are made one after the other, as they
would be pulled, and handed over by a generator; Flower's strategies keep them all before they begin.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import resource
import time
from collections.abc import Iterator

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as theirs
from flwr.supercore.task_identity import TaskIdentity

import bartizan as bz
from bartizan.arguments import number
from bartizan.flower import RobustStrategy


class Nodes:
    """What `configure_train` asks of a grid: who is there."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


def strategy_of(name: str, M: int, f: int):
    given = {"min_train_nodes": M, "min_available_nodes": M, "fraction_evaluate": 0.0}
    if name == "Flower FedAvg":
        return theirs.FedAvg(**given)
    if name == "Flower Krum":
        return theirs.Krum(num_malicious_nodes=f, **given)
    rule = {"bartizan Mean": bz.Mean(), "bartizan Krum": bz.Krum(f), "bartizan MultiKrum": bz.MultiKrum(f)}[name]
    return RobustStrategy(rule, **given)


def measured(name: str, M: int, p: int, f: int) -> dict[str, float]:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for one in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, one, 1)
    rng = np.random.default_rng(0)
    model = rng.normal(size=p).astype(np.float32)
    sent = ArrayRecord({"w": Array(model)})
    strategy = strategy_of(name, M, f)
    _warm(strategy_of(name, 9, 2))
    questions = list(strategy.configure_train(1, sent, ConfigRecord(), Nodes(M)))
    marks = {}

    def replies() -> Iterator[Message]:
        for n, question in enumerate(sorted(questions, key=lambda q: q.metadata.dst_node_id)):
            question.metadata.__dict__["_message_id"] = str(n)
            step = rng.standard_normal(p, dtype=np.float32) * np.float32(1e-3 if n >= f else 1e-2)
            content = RecordDict(
                {"arrays": ArrayRecord({"w": Array(model + step)}), "m": MetricRecord({"num-examples": 1})}
            )
            yield Message(content, reply_to=question)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    waited = 0.0

    def timed() -> Iterator[Message]:
        nonlocal waited
        source, start = replies(), time.perf_counter()
        for reply in source:
            marks["last"] = time.perf_counter()
            waited += marks["last"] - start
            yield reply
            del reply
            start = time.perf_counter()
        waited += time.perf_counter() - start

    begin = time.perf_counter()
    strategy.aggregate_train(1, timed())
    end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"after": end - marks["last"], "server": end - begin - waited, "peak": (peak - before) / 1024}


def _warm(strategy) -> None:
    """Compile what there is to compile on a round of nothing much."""
    sent = ArrayRecord({"w": Array(np.zeros(5000, np.float32))})
    rng = np.random.default_rng(1)
    questions = list(strategy.configure_train(1, sent, ConfigRecord(), Nodes(9)))
    replies = []
    for n, question in enumerate(questions):
        question.metadata.__dict__["_message_id"] = str(n)
        arrays = ArrayRecord({"w": Array(rng.normal(size=5000).astype(np.float32))})
        replies.append(Message(RecordDict({"a": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=question))
    strategy.aggregate_train(1, replies)


NAMES = ("Flower FedAvg", "bartizan Mean", "Flower Krum", "bartizan Krum", "bartizan MultiKrum")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=number, default=50)
    parser.add_argument("--dim", type=number, default=1_000_000)
    parser.add_argument("--byzantine", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=NAMES, nargs="+", default=NAMES, help="these strategies")
    parser.add_argument("--json", help="where to write the numbers")
    asked = parser.parse_args()
    M, p, f = asked.clients, asked.dim, asked.byzantine
    print(f"{M} replies of {p:,} float32 numbers ({4e-6 * M * p:,.0f} MB), {f} of them wild; best of {asked.repeat}")
    print(f"{'':20s} {'after the last':>15s} {'server in all':>15s} {'extra peak':>12s}")
    found = {}
    for name in asked.only:
        rows = []
        for _ in range(asked.repeat):
            with multiprocessing.get_context("spawn").Pool(1) as own:
                rows.append(own.apply(measured, (name, M, p, f)))
        found[name] = {key: min(row[key] for row in rows) for key in rows[0]}
        print(
            f"{name:20s} {found[name]['after']:13.3f} s {found[name]['server']:13.3f} s {found[name]['peak']:9.0f} MB",
            flush=True,
        )
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(
                {"clients": M, "dim": p, "byzantine": f, "repeat": asked.repeat, "strategies": found}, file, indent=1
            )


if __name__ == "__main__":
    main()
