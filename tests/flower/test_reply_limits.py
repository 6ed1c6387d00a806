"""What one node can do to the ServerApp's memory and time before its reply is a message."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from bartizan import Mean
from bartizan.flower import RobustStrategy, reply_limits
from bartizan.flower.grids import StreamingGrid, UnusableReply
from bartizan.flower.reply_limits import Limits

MIB = 2**20


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


def pulled(link: Link, most: int, end: float = math.inf) -> Message:
    reply = StreamingGrid(grid_of(link), Limits(most, 1000))._pulled("question", question(), end)
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


@pytest.mark.parametrize(("times", "arrays"), [(1_000_000, 1), (3, 100)], ids=["one array", "many arrays"])
def test_chunks_that_are_repeated_are_counted_before_they_are_put_together(times, arrays):
    """A terabyte in one array; arrays that are small each and large together."""
    _, link = repeating(times, arrays)
    peak, reply = peak_of(lambda: pulled(link, most=8 * MIB))
    assert isinstance(reply.error, UnusableReply)
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
    assert not isinstance(reply.error, UnusableReply)  # a node whose upload broke is absent, not guilty
    assert reply.metadata.src_node_id == 7


def many(count: int, repeated: int = 1) -> Link:
    """A reply of so many small objects, each named so often."""
    packed = Packed()
    reply, _ = packed.message(question(), {})
    keys = [*packed.objects, *(packed.add("MetricRecord", [], str(n).encode()) for n in range(count))]
    children = [ObjectTree(object_id=key) for key in keys for _ in range(repeated)]
    return Link(reply, ObjectTree(object_id=packed.head, children=children), packed.objects)


class Slow(Link):
    requests = 0

    def PullObject(self, request):
        self.requests += 1
        time.sleep(0.005)
        return super().PullObject(request)


def test_a_reply_of_far_more_objects_than_the_model_has_is_refused_unseen():
    link = many(5000)
    reply = pulled(link, 16 * MIB)
    assert isinstance(reply.error, UnusableReply)
    assert "5,003 objects" in reply.error.reason
    assert link.bytes_pulled == 0


def test_an_object_that_is_named_often_is_pulled_once():
    link = many(10, repeated=2000)
    link.__class__ = Slow
    assert not pulled(link, 16 * MIB).has_error()
    assert link.requests == 13


def test_small_objects_count_for_more_than_their_bytes():
    assert "it has more than 102,400 bytes" in pulled(many(900), 100 * 2**10).error.reason


def test_objects_that_keep_coming_end_with_the_rounds_time():
    link = many(900)
    link.__class__ = Slow
    reply = pulled(link, 16 * MIB, end=time.monotonic() + 0.1)
    assert "still arriving when the round's time was over" in reply.error.reason
    assert not isinstance(reply.error, UnusableReply)
    assert link.requests < 450


def test_a_reply_that_waited_behind_others_is_taken_after_the_end():
    link = many(10)
    reply = StreamingGrid(grid_of(link), Limits(MIB, 1000))._pulled(
        "question", question(), time.monotonic() - 1, grace=5.0
    )
    assert not reply.has_error()


def test_the_strategy_limits_replies_by_its_model():
    """Through `start`: 40 MiB that one node makes of one, where the model has 24 bytes."""
    _, link = repeating(40)
    grid = grid_of(link)
    grid.get_node_ids = lambda: [7]
    grid.push_messages = lambda messages: [_named(message) for message in messages]
    strategy = RobustStrategy(Mean(), fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    model = ArrayRecord({"w": Array(np.zeros(3))})
    peak, _ = peak_of(lambda: strategy.start(grid, model, num_rounds=1, timeout=5.0))
    assert "its arrays would have more than" in strategy.quarantined[7]
    assert peak < 30 * MIB


def _named(message: Message) -> str:
    message.metadata.__dict__["_message_id"] = "question"
    return "question"


def test_limits_hold_in_their_own_thread():
    reply_limits.install()
    inside, done = threading.Event(), threading.Event()

    def other():
        with reply_limits.limited(Limits(2**40, 1000), math.inf, math.inf):
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=other)
    with reply_limits.limited(Limits(8 * MIB, 1000), math.inf, math.inf):
        thread.start()
        inside.wait(20)
        _, link = repeating(9)
        with pytest.raises(reply_limits.TooLargeError):
            list(grid_of(link).pull_messages(["question"]))
    done.set()
    thread.join(20)


def test_a_flower_that_is_built_otherwise_is_said(monkeypatch, caplog):
    monkeypatch.setattr(reply_limits, "SUPPORTED", False)
    StreamingGrid(grid_of(None), Limits(1, 1))
    assert "replies are unpacked without a limit" in caplog.text
