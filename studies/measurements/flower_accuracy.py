"""The cost of robustness when nobody attacks: RobustStrategy beside Flower's FedAvg, a real training in one process."""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import bartizan as bz
from bartizan.flower import RobustStrategy
from studies.measurements.flower_server import quiet_flower
from studies.options import command
from studies.rows import write_json

sys.path[:0] = [
    str(Path(__file__).parents[2] / "examples" / "flower"),
    str(Path(__file__).parents[2] / "tests" / "support"),
]
from flower_nodes import LocalGrid  # noqa: E402
from garments import task  # noqa: E402

NODES = 10
STRATEGIES = {
    "Flower FedAvg": lambda given: FedAvg(**given),
    "Mean, sizes reported": lambda given: RobustStrategy(bz.Mean(), sizes="reported", size_cap=10_000, **given),
    "Mean": lambda given: RobustStrategy(bz.Mean(), **given),
    "GeometricMedian": lambda given: RobustStrategy(bz.GeometricMedian(), **given),
    "MultiKrum(3)": lambda given: RobustStrategy(bz.MultiKrum(3), **given),
    "Krum(3)": lambda given: RobustStrategy(bz.Krum(3), **given),
}


def flower_accuracy(
    *,
    rounds: int = 8,
    seeds: int = 3,
    only: Annotated[list[str], "a strategy (default all)"] = [],  # noqa: B006 - not changed
    out: Path | None = None,
) -> None:
    """Train as examples/flower does: ten nodes with unlike parts of Fashion-MNIST, no attacker.

    With one seed all strategies start from the same model, and a node draws the same batches in the same round.
    """
    quiet_flower()
    torch.set_num_threads(1)
    print(f"Accuracy after {rounds} rounds of {NODES} honest nodes, {seeds} seeds")
    found: dict[str, list[list[float]]] = {}
    for name in only or STRATEGIES:
        found[name] = [accuracies(name, seed, rounds) for seed in range(seeds)]
        ends = [run[-1] for run in found[name]]
        print(f"{name:22s} {np.mean(ends):.4f}  ({', '.join(f'{end:.4f}' for end in ends)})", flush=True)
    write_json(out, {"rounds": rounds, "nodes": NODES, "accuracies": found})


add_to = command(flower_accuracy)


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
