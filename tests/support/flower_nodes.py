"""Nodes of Flower that are functions in this process, honest and hostile, and a grid that calls them."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import contextmanager

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

import bartizan as bz
from bartizan.flower import RobustStrategy
from bartizan.flower.replies import Model


def arrays(value: float = 0.0) -> dict[str, np.ndarray]:
    return {
        "w": np.full((3, 4), value, np.float32),
        "b": np.full(5, value, np.float64),
        "steps": np.array(7),
        "none": np.zeros((0, 2), np.float32),
    }


def as_record(update: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in update.items()})


MODEL = Model.of(as_record(arrays()))


class LocalGrid(Grid):
    """A grid whose nodes are functions in this process: message -> reply, or None for never."""

    def __init__(self, nodes: dict) -> None:
        self.nodes, self.waiting, self.pulled = nodes, {}, []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            key = f"message {len(self.waiting)}"
            message.metadata.__dict__["_message_id"] = key
            self.waiting[key] = message
            ids.append(key)
        return ids

    def pull_messages(self, message_ids):
        (key,) = message_ids
        message = self.waiting[key]
        reply = self.nodes[message.metadata.dst_node_id](message)
        self.pulled += [] if reply is None else [message.metadata.dst_node_id]
        return [] if reply is None else [reply]

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the strategy pulls by itself")

    def set_run(self, run): ...
    def create_message(self, *given, **named): ...
    @property
    def run(self): ...


def sends(update: dict[str, np.ndarray] | ArrayRecord, examples: object = 10, **metrics: float):
    content = update if isinstance(update, ArrayRecord) else as_record(update)

    def reply(message: Message) -> Message:
        told = MetricRecord({"num-examples": examples, **metrics})
        return Message(RecordDict({"arrays": content, "metrics": told}), reply_to=message)

    return reply


@contextmanager
def traced_memory():
    """Without a collector that would hide who holds what."""
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def fails(message: Message) -> Message:
    return Message(Error(code=2, reason="the app crashed"), reply_to=message)


def honest(count: int = 7, **metrics: float) -> dict:
    rng = np.random.default_rng(0)
    return {
        2**63 + n: sends({**arrays(1.0), "w": rng.normal(1, 0.01, (3, 4)).astype(np.float32)}, **metrics)
        for n in range(count)
    }


def run(nodes: dict, rounds: int = 1, rule=None, *, grid=LocalGrid, model=None, evaluate_fn=None, **settings):
    """Return the strategy and the result of a run that asks all these nodes."""
    if "n_byzantine" not in settings:
        rule = rule or bz.MultiKrum(n_byzantine=2)
    strategy = RobustStrategy(rule, **{"fraction_evaluate": 0.0, **settings})
    strategy.min_train_nodes = strategy.min_available_nodes = len(nodes)
    start = as_record(arrays() if model is None else model)
    result = strategy.start(grid(nodes), start, num_rounds=rounds, timeout=0.2, evaluate_fn=evaluate_fn)
    return strategy, result


def questions(strategy: RobustStrategy, nodes: dict, model: dict[str, np.ndarray]) -> list[Message]:
    """Return what a strategy asks these nodes in its first round, in their order, as a grid would send it."""
    asked = list(strategy.configure_train(1, as_record(model), ConfigRecord(), LocalGrid(nodes)))
    for number, message in enumerate(asked):
        message.metadata.__dict__["_message_id"] = str(number)
    return sorted(asked, key=lambda message: message.metadata.dst_node_id)


def with_header(text: bytes, body: bytes = b"", version: bytes = b"\x01\x00", length: int | None = None) -> Array:
    size = (len(text) if length is None else length).to_bytes(2, "little")
    return Array("float32", (3, 4), "numpy.ndarray", b"\x93NUMPY" + version + size + text + body)


VALID_HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n"


HOSTILE_ARRAYS = {
    "empty": Array("float32", (3, 4), "numpy.ndarray", b""),
    "no file": Array("float32", (3, 4), "numpy.ndarray", bytes(200)),
    "another serialisation": Array("float32", (3, 4), "pickle", Array(arrays()["w"]).data),
    "cut": Array("float32", (3, 4), "numpy.ndarray", Array(arrays()["w"]).data[:-1]),
    "too long": Array("float32", (3, 4), "numpy.ndarray", Array(arrays()["w"]).data + b"x"),
    "a terabyte": with_header(VALID_HEADER.replace(b"(3, 4)", b"(1099511627776,)")),
    "an overflow": with_header(VALID_HEADER.replace(b"(3, 4)", b"(9999999999999999999, 9999999999999999999)")),
    "a negative size": with_header(VALID_HEADER.replace(b"(3, 4)", b"(-3, -4)"), bytes(48)),
    "objects": with_header(VALID_HEADER.replace(b"<f4", b"|O"), bytes(48)),
    "integers": Array(np.zeros((3, 4), np.int32)),
    "the other byte order": Array(np.zeros((3, 4), ">f4")),
    "doubles that claim to be floats": Array("float32", (3, 4), "numpy.ndarray", Array(np.zeros((3, 4))).data),
    "another shape that claims to be right": Array("float32", (3, 4), "numpy.ndarray", Array(np.zeros(12, "f4")).data),
    "code": with_header(b"__import__('os').abort()\n", bytes(48)),
    "a long header": with_header(VALID_HEADER[:-1] + b" " * 60000 + b"\n", bytes(48)),
    "a header longer than the file": with_header(VALID_HEADER, length=65535),
    "version 3": with_header(VALID_HEADER, bytes(48), version=b"\x03\x00"),
    "digits without end": with_header(VALID_HEADER.replace(b"3, 4", b"1" * 3000 + b"!"), bytes(48)),
    "a record": with_header(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (12,), }\n", bytes(48)),
}


ATTACKERS = {
    "NaN": sends({**arrays(), "w": np.full((3, 4), np.nan, np.float32)}),
    "another shape": sends({**arrays(), "w": np.zeros((4, 3), np.float32)}),
    "an extra name": sends({**arrays(), "extra": np.ones(3)}),
    "a missing name": sends({"w": arrays()["w"]}),
    "no arrays": lambda message: Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message),
    "two records": lambda message: Message(
        RecordDict({"a": as_record(arrays()), "b": as_record(arrays())}), reply_to=message
    ),
    "nothing": lambda message: Message(RecordDict(), reply_to=message),
    "a terabyte": sends(ArrayRecord({**as_record(arrays()), "w": HOSTILE_ARRAYS["a terabyte"]})),
}


def steps_by_one(message: Message) -> Message:
    """About a step of 1 from wherever the model is: what a resumed run sends depends on what it was given."""
    t, node = message.content["config"]["server-round"], message.metadata.dst_node_id
    rng = np.random.default_rng([t, node])
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    return sends(
        {
            name: (array + 1 + 0.01 * rng.normal(size=array.shape)).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in model.items()
        }
    )(message)


def evaluates(accuracy: float, train=None):
    """A node that reports this accuracy wherever it is asked to evaluate."""

    def node(message):
        if message.metadata.message_type == "evaluate":
            told = MetricRecord({"num-examples": 1, "accuracy": accuracy})
            return Message(RecordDict({"metrics": told}), reply_to=message)
        return (train or steps_by_one)(message)

    return node


def train_message(node: int = 1) -> Message:
    message = Message(RecordDict(), node, "train")
    message.metadata.__dict__["_message_id"] = "question"
    return message


def raises(error: Exception):
    def node(message: Message) -> Message:
        raise error

    return node
