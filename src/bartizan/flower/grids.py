"""Flower grids: one that yields replies one by one as they arrive, and one that waits for nodes for a limited time."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from bartizan._util.text import short
from bartizan.flower import reply_limits
from bartizan.flower.reply_limits import LateError, Limits, limited

MIN_WAIT_S, MAX_WAIT_S = 0.05, 2.0  # between two requests
MIN_GRACE_S = 10.0
"""For a reply that waited behind others at the round's end; a tenth of the timeout if that is more."""
NETWORK_LIBRARIES = ("httpx", "httpcore", "grpc")
MAX_TRIES = 3  # requests for a reply whose connection breaks while the SuperLink answers other requests
UNKNOWN = 0  # Flower's code for an unknown error
log = logging.getLogger("flwr")


class UnusableReply(Error):
    """A reply that is unusable by the fault of its node; a class, since a node may send any error code."""

    def __init__(self, reason: str) -> None:
        super().__init__(UNKNOWN, short(reason))


class WrappedGrid:
    """A grid that leaves everything it does not define to another one."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


Grid.register(WrappedGrid)


class StreamingGrid(WrappedGrid):
    """A grid whose `send_and_receive` yields each reply when it arrives, under the id of the node that was asked.

    A reply that Flower can't unpack, that exceeds the limits, or that names another sender becomes an error of the node
    that was asked; so does one that the SuperLink can't deliver, a message that can't be sent, and a reply that is not
    there in time. So every node that is asked answers once. A broken network raises. `on_send` is called with the
    messages before they are sent.
    """

    def __init__(self, grid: Grid, limits: Limits, on_send: Callable[[list[Message]], None] | None = None) -> None:
        super().__init__(grid)
        self._limits, self._on_send = limits, on_send
        self._tries: dict[str, int] = {}
        reply_limits.install()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send now; the returned iterator waits for the replies."""
        sent = list(messages)
        if self._on_send is not None:
            self._on_send(sent)
        self._tries = {}
        pushed = self._pushed(sent)
        reached = {id(message) for message in pushed.values()}
        lost = [message for message in sent if id(message) not in reached]
        replies = self._replies(pushed, math.inf if timeout is None else timeout)
        return chain((_failed("it could not be reached", one) for one in lost), replies)

    def _pushed(self, sent: list[Message]) -> dict[str, Message]:
        """Send messages and return them by the ids of their replies, without those that could not be sent."""
        ids = list(self._grid.push_messages(sent)) if sent else []
        if len(ids) == len(sent):  # None where a message could not be sent
            return {key: message for key, message in zip(ids, sent, strict=True) if key}
        if not ids:  # together they were too large for one request
            return {key: message for message in sent for key in self._grid.push_messages([message]) if key}
        # The simulation's grid leaves out the ids of messages that could not be sent.
        known = {message.metadata.message_id: message for message in sent}
        return {key: known[key] for key in ids if key in known}

    def _replies(self, asked: dict[str, Message], timeout: float) -> Iterator[Message]:
        end, grace, wait = time.monotonic() + timeout, max(MIN_GRACE_S, timeout / 10), MIN_WAIT_S
        while asked:
            # After the end every node is asked once more: its reply may have waited behind a large one.
            last = time.monotonic() >= end
            before = len(asked)
            for key in list(asked):
                # One request for each, so that replies at the SuperLink are not in memory all at once.
                reply = self._pulled(key, asked[key], end, grace)
                if reply is not None:
                    del asked[key]
                    yield reply
                    del reply
            if last:
                yield from (_failed(f"no reply within {timeout:g} s", question) for question in asked.values())
                return
            wait = MIN_WAIT_S if len(asked) < before else min(1.5 * wait, MAX_WAIT_S)
            if asked:
                time.sleep(max(0.0, min(wait, end - time.monotonic())))

    def _pulled(self, key: str, question: Message, end: float, grace: float = 0.0) -> Message | None:
        try:
            with limited(self._limits, end, max(end, time.monotonic() + grace)):
                replies = list(self._grid.pull_messages([key]))
        except Exception as broken:  # hostile bytes can raise anything in Flower's decoder
            return self._reply_for(key, question, broken)
        if not replies:
            return None
        reply = replies[0]
        if reply.metadata.src_node_id == question.metadata.dst_node_id:
            return reply
        if reply.has_error():  # the SuperLink reports that there will be no reply
            return _failed(reply.error.reason, question)
        return Message(UnusableReply("the reply came under another node's id"), reply_to=question)

    def _reply_for(self, key: str, question: Message, broken: Exception) -> Message | None:
        """Return the error of a node for an exception, or None to ask again; raise it if the network is broken."""
        reason = f"{type(broken).__name__}: {broken}"
        no_thread = type(broken) is RuntimeError and "start new thread" in str(broken)
        if isinstance(broken, (LateError, MemoryError)) or no_thread:  # this machine's fault, or nobody's
            return _failed(reason, question)
        if not (isinstance(broken, OSError) or type(broken).__module__.partition(".")[0] in NETWORK_LIBRARIES):
            return Message(UnusableReply(f"the reply can't be unpacked: {reason}"), reply_to=question)
        try:
            list(self._grid.get_node_ids())
        except Exception:
            raise broken from None
        # The SuperLink answers other requests, so this reply is the cause: a node can name its objects so that the
        # SuperLink fails on them. The SuperLink itself may be the cause, too, so the node is absent, not quarantined.
        self._tries[key] = self._tries.get(key, 0) + 1
        refused = getattr(getattr(broken, "response", None), "status_code", 0) >= 400
        if refused or self._tries[key] >= MAX_TRIES:
            return _failed(f"the SuperLink does not deliver its reply: {reason}", question)
        return None


class NonstopGrid(StreamingGrid):
    """A grid without a barrier: `send_and_receive` also yields replies to earlier messages, and asks whoever is free.

    As many nodes work at a time as messages are passed, of whom the first gives the content. A node is asked and heard
    once per call, so that one that answers at once is not sent the model again and again. The iterator ends after
    `deadline` seconds, or when no node works and none is free; its caller may leave it earlier. Nodes that still work
    then are heard in the next call. A node that takes longer than `timeout` has failed.
    """

    def __init__(
        self, grid: Grid, limits: Limits, on_send: Callable[[list[Message]], None] | None, deadline: float
    ) -> None:
        super().__init__(grid, limits, on_send)
        self._deadline = deadline
        self._working: dict[str, tuple[Message, float]] = {}  # by the id of the reply: the message, and its last second
        self._random = random.SystemRandom()  # no node may foresee who is asked

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Return the replies as they arrive; messages are sent while they are waited for."""
        sent = list(messages)
        return self._arriving(sent, math.inf if timeout is None else timeout) if sent else iter(())

    def _arriving(self, sent: list[Message], timeout: float) -> Iterator[Message]:
        until, wait, asked = time.monotonic() + self._deadline, MIN_WAIT_S, set[int]()
        while True:
            busy = {question.metadata.dst_node_id for question, _ in self._working.values()}
            free = [node for node in self._grid.get_node_ids() if node not in busy and node not in asked]
            chosen = self._random.sample(free, min(len(free), max(0, len(sent) - len(busy))))
            questions = [
                Message(sent[0].content, node, sent[0].metadata.message_type, group_id=sent[0].metadata.group_id)
                for node in chosen
            ]
            asked.update(chosen)
            if questions and self._on_send is not None:
                self._on_send(questions)
            pushed, end = self._pushed(questions), time.monotonic() + timeout
            self._working |= {key: (question, end) for key, question in pushed.items()}
            reached = {id(question) for question in pushed.values()}
            lost = [question for question in questions if id(question) not in reached]
            yield from (_failed("it could not be reached", question) for question in lost)
            before = len(self._working)
            for key, (question, end) in list(self._working.items()):
                late = time.monotonic() >= end
                reply = self._pulled(key, question, end, max(MIN_GRACE_S, min(timeout, self._deadline) / 10))
                if reply is None and late:
                    reply = _failed(f"no reply within {timeout:g} s", question)
                if reply is not None:
                    del self._working[key]
                    asked.add(question.metadata.dst_node_id)
                    yield reply
                    del reply
            now = time.monotonic()
            if now >= until or not (self._working or len(free) > len(chosen)):
                return
            wait = MIN_WAIT_S if len(self._working) < before else min(1.5 * wait, MAX_WAIT_S)
            time.sleep(max(0.0, min(wait, until - now)))


class ConnectedNodes(WrappedGrid):
    """A grid with the nodes that were connected at one moment, on which Flower's sampling need not wait.

    Flower's sampling waits without end until enough nodes are connected; this grid has enough, also if some leave.
    """

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        super().__init__(grid)
        self._nodes = nodes

    def get_node_ids(self) -> list[int]:
        return self._nodes


class MissingNodesError(Exception):
    """Fewer nodes are connected than are wanted, and the time to wait for them is over."""


def wait_for_nodes(grid: Grid, fraction: float, n_least: int, timeout: float) -> ConnectedNodes:
    """Wait until `n_least` nodes are connected, and as many as `fraction` asks for, for `timeout` seconds at most."""
    until, wait, n_before = time.monotonic() + timeout, MIN_WAIT_S, -1
    while True:
        nodes = list(grid.get_node_ids())
        wanted = max(n_least, int(len(nodes) * fraction))
        if len(nodes) >= wanted:
            return ConnectedNodes(grid, nodes)
        left = until - time.monotonic()
        if left <= 0:
            raise MissingNodesError(f"{len(nodes)} nodes were connected after {timeout:g} s, and {wanted} are wanted.")
        if len(nodes) != n_before:
            log.info("Waiting for nodes to connect: %d of %d, %.0f s more at most.", len(nodes), wanted, left)
            n_before = len(nodes)
        wait = min(2 * wait, MAX_WAIT_S / 2)
        time.sleep(min(wait, left))


def _failed(reason: str | None, question: Message) -> Message:
    return Message(Error(UNKNOWN, short(reason)), reply_to=question)
