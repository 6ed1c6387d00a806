"""How much Flower may unpack of one reply: its own decoder knows no limit.

A node decides how often an array repeats a chunk of bytes, so a few megabytes that it sends can become terabytes in the
ServerApp; and it may announce objects that never come, for which Flower waits up to two hours. While a reply is pulled,
bytes are counted as they come and before they are put together, and the wait ends when the round does.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
log = logging.getLogger("flwr")


class TooLargeError(ValueError):
    """A reply that would take more memory than one of the model can."""


@contextmanager
def limited(most: int, end: float | None) -> Iterator[None]:
    """Let Flower pull replies of `most` bytes each, up to this time of the monotonic clock."""
    if not KNOWN:
        yield
        return
    pull = _pulling.pull_objects

    def counted(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **given: Any) -> dict[str, bytes]:
        if end is not None:
            given["max_time"] = min(given.get("max_time") or LONGEST, max(0.0, end - time.monotonic()))
        return pull(object_ids, _Counted(pull_object_fn, most), **given)

    registry: dict[str, Any] = _unpacking.inflatable_class_registry
    registry["Array"], _pulling.pull_objects = _Unpacked(most), counted
    try:
        yield
    finally:
        registry["Array"], _pulling.pull_objects = Array, pull


def warn_if_unknown() -> None:
    if not KNOWN:
        log.warning("This Flower is built otherwise than 1.41: a reply's size is not limited before it is unpacked.")


class _Counted:
    """Pulls objects, which come in several threads, until they are too many bytes."""

    def __init__(self, pull: Callable[[str], bytes], most: int) -> None:
        self.pull, self.most, self.left, self.lock = pull, most, most, threading.Lock()

    def __call__(self, object_id: str) -> bytes:
        content = self.pull(object_id)
        with self.lock:
            self.left -= len(content)
            if self.left < 0:
                raise TooLargeError(f"it has more than {self.most:,} bytes")
        return content


class _Unpacked:
    """In the place of Flower's class of arrays: unpacks them if all of one reply's are small enough together."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def inflate(self, content: bytes, children: dict[str, Any] | None = None) -> Array:
        ids = get_object_children_ids_from_object_content(content)
        sizes = [len((children or {})[one].data) for one in ids]
        self.left -= sum(sizes[i] for i in json.loads(get_object_body(content, Array))["arraychunk_ids"])
        if self.left < 0:
            raise TooLargeError(f"its arrays would have more than {self.most:,} bytes")
        return Array.inflate(content, children=children)
