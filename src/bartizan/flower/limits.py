"""How much Flower may unpack of one reply: its own decoder knows no limit.

A node decides how often an array repeats a chunk of bytes, so a few megabytes that it sends can become terabytes in the
ServerApp; and it may announce objects that never come, for which Flower waits up to two hours. While a reply is pulled,
objects and bytes are counted as they come and before they are put together, and the wait ends when the round does.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.app import Array

_pulling: Any
_unpacking: Any
try:  # inside Flower, so it may move
    from flwr.supercore.inflatable import inflatable_utils as _unpacking
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_children_ids_from_object_content
    from flwr.superlink.grid import http_grid as _pulling

    KNOWN = _unpacking.inflatable_class_registry["Array"] is Array and callable(_pulling.pull_objects)
except (ImportError, AttributeError, KeyError):
    KNOWN = False

LONGEST = 7200.0
"""Seconds that Flower waits for an object."""
SLACK = 2**24
"""Bytes for metrics, headers and names, besides twice the model."""
LEAST = 2**10
"""Bytes that an object counts for at least: each is a request of its own."""
FEW = 500
"""Objects besides those of the model's arrays: records, and the message itself."""
CHUNK = 2**20
"""Bytes; Flower's own chunks of an array have five times as many, and a node may be set to send smaller ones."""
log = logging.getLogger("flwr")


class TooLargeError(ValueError):
    """A reply that would take more memory than one of the model can."""


class LateError(Exception):
    """A reply that was still coming when the round's time was over."""


@dataclass(frozen=True)
class Limits:
    """What one reply may have."""

    bytes: int
    objects: int

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Limits:
        """Twice the model that was sent and some room, in as many objects as its arrays need."""
        objects = FEW + sum(2 + len(array.data) // CHUNK for array in model.values())
        return cls(2 * sum(len(array.data) for array in model.values()) + SLACK + LEAST * objects, objects)


class _Here(threading.local):
    """What holds in this thread: two strategies may pull at once. None where nobody asked for a limit."""

    pull: _Pull | None = None


@dataclass
class _Pull:
    """One reply on its way."""

    limits: Limits
    end: float | None
    deadline: float | None
    unpacked: int = 0


_here = _Here()
_lock = threading.Lock()
_users = 0
_plain_pull: Any = None


@contextmanager
def limited(limits: Limits, end: float | None, deadline: float | None = None) -> Iterator[None]:
    """Let Flower pull one reply within limits; times are of the monotonic clock.

    Objects that are not there are waited for until `end`, and those that keep coming are taken until `deadline`, or
    until `end` if there is none.
    """
    if not KNOWN:
        yield
        return
    before, _here.pull = _here.pull, _Pull(limits, end, end if deadline is None else deadline)
    _count_users(1)
    try:
        yield
    finally:
        _count_users(-1)
        _here.pull = before


def warn_if_unknown() -> None:
    if not KNOWN:
        log.warning("This Flower is built otherwise than 1.41: a reply's size is not limited before it is unpacked.")


def _count_users(step: int) -> None:
    """Put the counting functions into Flower with the first user, and take them out with the last."""
    global _users, _plain_pull
    registry: dict[str, Any] = _unpacking.inflatable_class_registry
    with _lock:
        if _users == 0:
            _plain_pull = _pulling.pull_objects
            registry["Array"], _pulling.pull_objects = _Unpacked, _counted
        _users += step
        if _users == 0:
            registry["Array"], _pulling.pull_objects = Array, _plain_pull


def _counted(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **given: Any) -> dict[str, bytes]:
    """In the place of Flower's function that pulls a reply's objects."""
    pull = _here.pull
    if pull is not None:
        object_ids = list(dict.fromkeys(object_ids))  # a tree can name one object a million times
        if len(object_ids) > pull.limits.objects:
            raise TooLargeError(f"it has {len(object_ids):,} objects, and one of the model needs fewer")
        if pull.end is not None:
            given["max_time"] = min(given.get("max_time") or LONGEST, max(0.0, pull.end - time.monotonic()))
        pull_object_fn = _Counted(pull_object_fn, pull)
    found: dict[str, bytes] = _plain_pull(object_ids, pull_object_fn, **given)
    return found


class _Counted:
    """Pulls objects, which come in several threads, until they are too many bytes or too late."""

    def __init__(self, pull_object: Callable[[str], bytes], pull: _Pull) -> None:
        self.pull_object, self.most, self.deadline = pull_object, pull.limits.bytes, pull.deadline
        self.left, self.lock = self.most, threading.Lock()

    def __call__(self, object_id: str) -> bytes:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise LateError("it was still coming when the round's time was over")
        content = self.pull_object(object_id)
        with self.lock:
            self.left -= max(len(content), LEAST)
            if self.left < 0:
                raise TooLargeError(f"it has more than {self.most:,} bytes")
        return content


class _Unpacked:
    """In the place of Flower's class of arrays: unpacks them if all of one reply's are small enough together."""

    @staticmethod
    def inflate(content: bytes, children: dict[str, Any] | None = None) -> Array:
        pull = _here.pull
        if pull is not None:
            ids = get_object_children_ids_from_object_content(content)
            sizes = [len((children or {})[one].data) for one in ids]
            pull.unpacked += sum(sizes[i] for i in json.loads(get_object_body(content, Array))["arraychunk_ids"])
            if pull.unpacked > pull.limits.bytes:
                raise TooLargeError(f"its arrays would have more than {pull.limits.bytes:,} bytes")
        return Array.inflate(content, children=children)
