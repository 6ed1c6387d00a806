"""Each node fits a line to its own data, unless its node-config says that it is of another character."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
SIMULATED = (*["honest"] * 5, "slow", "flip", "unreadable", "unlike")
"""Who is what where there is no node-config but a number: in Flower's simulation."""
TRUTH = np.linspace(-1, 1, 40)


def trained(weights: np.ndarray, seed: list[int]) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 40))
    y = x @ TRUTH + 0.1 * rng.normal(size=400)
    for _ in range(20):
        weights = weights - 0.1 * x.T @ (x @ weights - y) / len(x)
    return weights


def terabyte() -> Array:
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (137438953472,), }".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    return Array("float64", (2**37,), "numpy.ndarray", data)


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config.get("number", context.node_config.get("partition-id", 0)))
    character = str(context.node_config.get("character", SIMULATED[number % len(SIMULATED)]))
    t = int(message.content["config"]["server-round"])
    out = Path(os.environ.get("CHARACTERS_OUT") or str(context.run_config["out"]))  # a simulation has no run-config
    (out / f"node-{context.node_id}").write_text(character)
    model = message.content["arrays"]["w"].numpy()
    w = trained(model, seed=[number, t])  # other data each round: of the honest, none is always the one farthest out
    arrays: dict[str, Array] = {**message.content["arrays"], "w": Array(w), "steps": Array(np.array(t))}
    metrics: dict[str, int | float | list[float]] = {"num-examples": 400, "loss": float(np.square(w - TRUTH).mean())}
    if character == "slow":
        time.sleep(2)

    elif character == "crash":  # politely, then without a word
        if t > 1:
            os._exit(1)
        raise RuntimeError("this app fails")
    elif character == "flip":  # and it boasts
        arrays["w"] = Array(model - 3 * (w - model))
        metrics = {"num-examples": 10**15, "loss": -1e300, "surprise": [1.0, 2.0]}
    elif character == "unreadable":
        arrays["w"] = [Array(np.full(40, np.nan)), Array(np.zeros((40, 40)))][t % 2]
    elif character == "unlike":
        arrays |= [{"extra": Array(np.ones(3))}, {"w": terabyte()}][t % 2]
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)
