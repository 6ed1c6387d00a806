"""What robustness costs when nobody attacks: RobustStrategy beside Flower's FedAvg, a real training in one process.

Run with Flower and torch installed:  python benchmarks/flower_accuracy.py
The task is that of examples/flower: ten nodes with unlike parts of Fashion-MNIST. With one seed all strategies start
from the same model, and a node draws the same batches in the same round.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import bartizan as bz
from bartizan.flower import RobustStrategy

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flower_nodes import LocalGrid
from garments import task

NODES = 10
STRATEGIES = {
    "Flower FedAvg": lambda given: FedAvg(**given),
    "Mean, sizes reported": lambda given: RobustStrategy(bz.Mean(), sizes="reported", size_cap=10_000, **given),
    "Mean": lambda given: RobustStrategy(bz.Mean(), **given),
    "GeometricMedian": lambda given: RobustStrategy(bz.GeometricMedian(), **given),
    "MultiKrum(3)": lambda given: RobustStrategy(bz.MultiKrum(3), **given),
    "Krum(3)": lambda given: RobustStrategy(bz.Krum(3), **given),
}


@cache
def examples(part: int | None = None) -> task.Examples:
    return task.examples(part, NODES)


class Nodes(LocalGrid):
    """Nodes that train in this process, when their reply is pulled."""

    def __init__(self, seed: int) -> None:
        super().__init__(dict.fromkeys(range(NODES), partial(trained, seed)))

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for key in self.push_messages(messages) for reply in self.pull_messages([key])]


def trained(seed: int, message: Message) -> Message:
    node, server_round = message.metadata.dst_node_id, message.content["config"]["server-round"]
    torch.manual_seed(1_000_000 * seed + 1000 * server_round + node)
    model = task.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = examples(node)
    loss = task.train(model, (images, labels))
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def accuracies(name: str, seed: int, rounds: int) -> list[float]:
    torch.manual_seed(seed)
    model = task.network()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.test(model, examples())[0]})

    given = {"min_train_nodes": NODES, "min_available_nodes": NODES, "fraction_evaluate": 0.0}
    result = STRATEGIES[name](given).start(
        Nodes(seed), ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=evaluate
    )
    return [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=STRATEGIES, nargs="+", default=list(STRATEGIES), help="these strategies")
    parser.add_argument("--json", help="where to write the numbers")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for one in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, one, 1)
    torch.set_num_threads(1)
    print(f"Accuracy after {given.rounds} rounds of {NODES} honest nodes, {given.seeds} seeds")
    found: dict[str, list[list[float]]] = {}
    for name in given.only:
        found[name] = []
        for seed in range(given.seeds):
            found[name].append(accuracies(name, seed, given.rounds))
            ends = [run[-1] for run in found[name]]
            print(f"\r{name:22s} {np.mean(ends):.4f}  ({', '.join(f'{end:.4f}' for end in ends)})", end="", flush=True)
        print()
    if given.json:
        told = {"rounds": given.rounds, "nodes": NODES, "accuracies": found}
        Path(given.json).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
