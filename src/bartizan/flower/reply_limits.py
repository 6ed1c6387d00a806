"""Limit the bytes, objects and seconds that Flower spends on unpacking one reply.

Flower's decoder has no limit. An array states how often it repeats a chunk of bytes, so that a few megabytes can become
terabytes in the ServerApp; and a node may announce objects that it never sends, for which Flower waits up to two hours.
While a reply is pulled, objects and bytes are counted before they are assembled, and the wait ends when the round does.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array

_unpacking: Any
_pulling: Any
try:  # these are private to Flower and may move
    from flwr.supercore.inflatable import inflatable_utils as _unpacking
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_children_ids_from_object_content
    from flwr.superlink.grid import http_grid as _pulling

    _flower_pull_objects: Any = _pulling.pull_objects
    SUPPORTED = _unpacking.inflatable_class_registry["Array"] is Array
except (ImportError, AttributeError, KeyError):
    SUPPORTED = False

FLOWERS_WAIT_S = 7200.0  # for an object that was announced
EXTRA_BYTES = 2**24  # for metrics, headers and names, besides twice the model
MIN_OBJECT_BYTES = 2**10  # that an object counts for, since each is a request of its own
EXTRA_OBJECTS = 500  # besides those of the model's arrays: records, and the message itself
CHUNK_BYTES = 2**20  # of an array; Flower's chunks are five times as large, and a node may use smaller ones
log = logging.getLogger("flwr")


class TooLargeError(ValueError):
    """A reply would take more memory than a reply of the model can."""


class LateError(Exception):
    """A reply was still arriving when the round's time was over."""


@dataclass(frozen=True)
class Limits:
    """The largest numbers of bytes and objects that one reply may have."""

    bytes: int
    objects: int

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Limits:
        """Allow twice the bytes of the model and a constant, in as many objects as its arrays need."""
        objects = EXTRA_OBJECTS + sum(2 + len(array.data) // CHUNK_BYTES for array in model.values())
        size = 2 * sum(len(array.data) for array in model.values())
        return cls(size + EXTRA_BYTES + MIN_OBJECT_BYTES * objects, objects)


@dataclass
class _Pull:
    """The reply that this thread is pulling, and how much of it has come."""

    limits: Limits
    end: float
    deadline: float
    pulled: int = 0
    unpacked: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def fetch(self, pull_object: Callable[[str], bytes], object_id: str) -> bytes:
        """Pull one object and count it; Flower calls this in several threads."""
        if time.monotonic() > self.deadline:
            raise LateError("it was still arriving when the round's time was over")
        content = pull_object(object_id)
        with self.lock:
            self.pulled += max(len(content), MIN_OBJECT_BYTES)
            if self.pulled > self.limits.bytes:
                raise TooLargeError(f"it has more than {self.limits.bytes:,} bytes")
        return content


class _ThisThread(threading.local):
    pull: _Pull | None = None


_here = _ThisThread()  # two strategies may pull at once


def install() -> None:
    """Replace two of Flower's functions; outside of `limited` they do what Flower's do."""
    if SUPPORTED:
        _unpacking.inflatable_class_registry["Array"], _pulling.pull_objects = _LimitedArray, _pull_objects
    else:
        log.warning("Expected Flower 1.41 or 1.42: with this one, replies are unpacked without a limit on their size.")


@contextmanager
def limited(limits: Limits, end: float, deadline: float) -> Iterator[None]:
    """Limit the reply that this thread pulls inside the block; times are those of the monotonic clock.

    Missing objects are waited for until `end`; objects that keep arriving are taken until `deadline`.
    """
    _here.pull = _Pull(limits, end, deadline)
    try:
        yield
    finally:
        _here.pull = None


def _pull_objects(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
    """Pull the objects of a reply within the limits, in place of Flower's function."""
    pull, pull_one = _here.pull, pull_object_fn
    if pull is not None:
        object_ids = list(dict.fromkeys(object_ids))  # a tree can name one object a million times
        if len(object_ids) > pull.limits.objects:
            raise TooLargeError(f"it has {len(object_ids):,} objects, and one of the model needs fewer")
        options["max_time"] = min(options.get("max_time") or FLOWERS_WAIT_S, max(0.0, pull.end - time.monotonic()))

        def pull_one(object_id: str) -> bytes:
            return pull.fetch(pull_object_fn, object_id)

    objects: dict[str, bytes] = _flower_pull_objects(object_ids, pull_one, **options)
    return objects


class _LimitedArray:
    """A class in place of Flower's arrays: unpacks them if all arrays of the reply are small enough together."""

    @staticmethod
    def inflate(content: bytes, children: dict[str, Any] | None = None) -> Array:
        pull = _here.pull
        if pull is not None:
            ids = get_object_children_ids_from_object_content(content)
            sizes = [len((children or {})[child].data) for child in ids]
            pull.unpacked += sum(sizes[i] for i in json.loads(get_object_body(content, Array))["arraychunk_ids"])
            if pull.unpacked > pull.limits.bytes:
                raise TooLargeError(f"its arrays would have more than {pull.limits.bytes:,} bytes")
        return Array.inflate(content, children=children)
