"""What one node can do to the ServerApp's memory and time before its reply is a message."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'bartizan[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from bartizan.flower import limits
from bartizan.flower.arriving import UNREADABLE, Arriving

MIB = 2**20


@pytest.fixture(autouse=True)
def server(monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Packed:
    """A reply as it lies at the SuperLink: objects by their hashes, whatever they say."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def add(self, kind: str, children: list[str], body: bytes) -> str:
        content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body
        key = hashlib.sha256(content).hexdigest()
        self.objects[key] = content
        return key

    def message(self, question: Message, arrays: dict[str, str]) -> tuple[Message, ObjectTree]:
        record = self.add("ArrayRecord", list(dict.fromkeys(arrays.values())), json.dumps(arrays).encode())
        content = self.add("RecordDict", [record], json.dumps({"arrays": record}).encode())
        bare = Message(RecordDict(), reply_to=question)
        self.head = self.add("Message", [content], bare.deflate().partition(b"\0")[2])
        return bare, ObjectTree(object_id=self.head, children=[ObjectTree(object_id=key) for key in self.objects])


class Link:
    """The SuperLink's answers to a ServerApp that pulls one reply."""

    def __init__(self, reply: Message, tree: ObjectTree, objects: dict[str, bytes]) -> None:
        self.reply, self.tree, self.objects = reply, tree, objects
        self.bytes_pulled = 0

    def PullMessages(self, request):
        proto = message_to_proto(self.reply)
        proto.metadata.message_id = self.tree.object_id
        return PullAppMessagesResponse(messages_list=[proto], message_object_trees=[self.tree])

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        self.bytes_pulled += len(content or b"")
        return PullObjectResponse(
            object_found=True, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request): ...


def grid_of(link: Link) -> HttpGrid:
    grid = HttpGrid(token="a token", insecure=True)
    grid._run, grid._client = SimpleNamespace(run_id=1), link
    return grid


def question() -> Message:
    message = Message(RecordDict(), 7, "train")
    message.metadata.__dict__["_message_id"] = "question"
    return message


def pulled(link: Link, most: int, end: float | None = None) -> Message:
    reply = Arriving(grid_of(link), most)._pulled("question", question(), end)
    assert reply is not None
    return reply


def repeating(times: int, arrays: int = 1) -> tuple[Packed, Link]:
    """One chunk of a mebibyte that each array repeats so often."""
    packed = Packed()
    chunk = packed.add("ArrayChunk", [], bytes(MIB))
    about = {"dtype": "float32", "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}
    keys = {f"w{n}": packed.add("Array", [chunk], json.dumps({**about, "shape": [n]}).encode()) for n in range(arrays)}
    return packed, Link(*packed.message(question(), keys), packed.objects)


def peak_of(do) -> tuple[int, object]:
    tracemalloc.start()
    try:
        done = do()
        return tracemalloc.get_traced_memory()[1], done
    finally:
        tracemalloc.stop()


def test_an_honest_reply_comes_through_the_limit():
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.arange(3.0)), "z": Array(np.zeros(4 * MIB))})})
    content["metrics"] = MetricRecord({"num-examples": 3})
    sent = Message(content, reply_to=question())
    objects = {key: one.deflate() for key, one in get_all_nested_objects(sent).items()}
    size = sum(len(array.data) for array in content["arrays"].values())
    reply = pulled(Link(sent, get_object_tree(sent), objects), size + 4096)
    np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), np.arange(3.0))
    assert reply.content["arrays"]["z"].numpy().shape == (4 * MIB,)
    assert inflatable_utils.inflatable_class_registry["Array"] is Array


def test_flowers_decoder_alone_makes_of_a_reply_as_much_as_it_says():
    packed, link = repeating(100)
    assert sum(map(len, packed.objects.values())) < 1.1 * MIB
    peak, _ = peak_of(lambda: list(grid_of(link).pull_messages(["question"])))
    assert peak > 100 * MIB


@pytest.mark.parametrize(("times", "arrays"), [(1_000_000, 1), (3, 100)], ids=["one array", "many arrays"])
def test_chunks_that_are_repeated_are_counted_before_they_are_put_together(times, arrays):
    """A terabyte in one array; arrays that are small each and large together."""
    _, link = repeating(times, arrays)
    peak, reply = peak_of(lambda: pulled(link, most=8 * MIB))
    assert reply.error.code == UNREADABLE
    assert "its arrays would have more than 8,388,608 bytes" in reply.error.reason
    assert reply.metadata.src_node_id == 7
    assert peak < 60 * MIB


def test_what_comes_is_counted_as_it_comes():
    packed = Packed()
    chunks = [packed.add("ArrayChunk", [], bytes([n]) * MIB) for n in range(64)]
    about = {"dtype": "float32", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": list(range(64))}
    keys = {"w": packed.add("Array", chunks, json.dumps(about).encode())}
    link = Link(*packed.message(question(), keys), packed.objects)
    reply = pulled(link, most=8 * MIB)
    assert "it has more than 8,388,608 bytes" in reply.error.reason
    assert link.bytes_pulled < 12 * MIB


def test_objects_that_never_come_cost_no_more_than_the_rounds_time():
    packed, link = repeating(1)
    link.objects = {key: content for key, content in packed.objects.items() if not content.startswith(b"ArrayChunk")}
    begin = time.monotonic()
    reply = pulled(link, 8 * MIB, end=begin)
    assert reply.has_error()
    assert reply.error.code != UNREADABLE  # a node whose upload broke is absent, not guilty
    assert reply.metadata.src_node_id == 7


def test_a_flower_that_is_built_otherwise_is_said(monkeypatch, caplog):
    monkeypatch.setattr(limits, "KNOWN", False)
    Arriving(grid_of(None), 1)
    assert "a reply's size is not limited" in caplog.text
