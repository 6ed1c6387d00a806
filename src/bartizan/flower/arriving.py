"""A grid that hands replies over as they arrive, one at a time, where Flower's own waits for the last."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from bartizan.flower.limits import limited, warn_if_unknown

UNREADABLE = -1
"""Our error code for a reply that is the fault of its node; Flower's own codes count from 0."""
SHORTEST, LONGEST = 0.05, 2.0  # seconds between two looks


class Arriving(Grid):
    """Another grid, whose `send_and_receive` yields each reply once, under the id of the node that was asked.

    A reply that Flower fails to unpack, that would take more than `most` bytes, or that names another sender, becomes
    an error of the node that was asked. What is wrong with the network itself is raised.
    """

    def __init__(self, grid: Grid, most: int) -> None:
        self._grid, self._most = grid, most
        warn_if_unknown()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Push now; what is yielded comes when it comes."""
        sent = list(messages)
        ids = list(self._grid.push_messages(sent)) if sent else []
        # An id is None where a message could not be sent: its node is absent.
        asked = {key: message for key, message in zip(ids, sent, strict=False) if key}
        return self._replies(asked, timeout)

    def _replies(self, asked: dict[str, Message], timeout: float | None) -> Iterator[Message]:
        end = None if timeout is None else time.monotonic() + timeout
        wait = SHORTEST
        while asked:
            before = len(asked)
            for key in list(asked):
                # One by one: those that wait at the SuperLink are not all in our memory at once.
                reply = self._pulled(key, asked[key], end)
                if reply is not None:
                    del asked[key]
                    yield reply
                    del reply
            if end is not None and time.monotonic() >= end:
                return
            wait = SHORTEST if len(asked) < before else min(1.5 * wait, LONGEST)
            if asked:
                time.sleep(wait if end is None else max(0.0, min(wait, end - time.monotonic())))

    def _pulled(self, key: str, question: Message, end: float | None) -> Message | None:
        try:
            with limited(self._most, end):
                replies = list(self._grid.pull_messages([key]))
        except Exception as broken:  # whatever a stranger's bytes make of Flower's decoder
            if _of_network(broken):
                raise
            reason = f"the reply can't be unpacked: {type(broken).__name__}: {broken}"
            return Message(Error(code=UNREADABLE, reason=reason[:500]), reply_to=question)
        if not replies:
            return None
        reply = replies[0]
        if reply.metadata.src_node_id == question.metadata.dst_node_id:
            return reply
        if reply.has_error():  # the SuperLink's own word, that nothing will come
            return Message(reply.error, reply_to=question)
        return Message(Error(code=UNREADABLE, reason="the reply came under another node's id"), reply_to=question)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *given: Any, **named: Any) -> Message:
        return self._grid.create_message(*given, **named)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)


def _of_network(broken: Exception) -> bool:
    return isinstance(broken, OSError) or type(broken).__module__.partition(".")[0] in ("httpx", "httpcore", "grpc")
