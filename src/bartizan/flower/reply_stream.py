"""A grid that hands replies over as they arrive, one at a time, where Flower's own waits for the last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from bartizan._util.text import short
from bartizan.flower.limits import LateError, Limits, limited, warn_if_unknown

SHORTEST, LONGEST = 0.05, 2.0  # seconds between two looks
GRACE = 10.0
"""Seconds, or a tenth of the timeout if that is more, for a reply that waited behind others at the round's end."""
TRIES = 3
"""How often a reply is asked for whose connection breaks, while the SuperLink answers other questions."""
ABSENT = 0
"""Flower's code for an error that it has no other for."""


class Unusable(Error):
    """A reply that is the fault of its node. A class of our own, for a node may send any code."""

    def __init__(self, reason: str) -> None:
        super().__init__(ABSENT, short(reason))


class Arriving(Grid):
    """Another grid, whose `send_and_receive` yields each reply once, under the id of the node that was asked.

    A reply that Flower fails to unpack, that goes beyond the limits, or that names another sender, becomes an error of
    the node that was asked, and so does one that the SuperLink can't hand out. What is wrong with the network itself is
    raised. `tell` is called with the messages that are about to be sent.
    """

    def __init__(self, grid: Grid, limits: Limits, tell: Callable[[list[Message]], None] | None = None) -> None:
        self._grid, self._limits, self._tell = grid, limits, tell
        self._tries: dict[str, int] = {}
        warn_if_unknown()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Push now; what is yielded comes when it comes."""
        sent = list(messages)
        if self._tell is not None:
            self._tell(sent)
        self._tries = {}
        return self._replies(self._pushed(sent), timeout)

    def _pushed(self, sent: list[Message]) -> dict[str, Message]:
        """The messages by the ids that their replies are asked for; a node that could not be sent to is absent."""
        ids = list(self._grid.push_messages(sent)) if sent else []
        if len(ids) == len(sent):  # None where a message could not be sent
            return {key: message for key, message in zip(ids, sent, strict=True) if key}
        if not ids:  # all at once were too large for one request
            return {key: message for message in sent for key in self._grid.push_messages([message]) if key}
        # The simulation's grid leaves out those that could not be sent, and says nothing of which.
        known = {message.metadata.message_id: message for message in sent}
        return {key: known[key] for key in ids if key in known}

    def _replies(self, asked: dict[str, Message], timeout: float | None) -> Iterator[Message]:
        end = None if timeout is None else time.monotonic() + timeout
        grace = 0.0 if timeout is None else max(GRACE, timeout / 10)
        wait = SHORTEST
        while asked:
            # Who replied while one reply kept all others waiting is asked once more, though the time be over.
            last = end is not None and time.monotonic() >= end
            before = len(asked)
            for key in list(asked):
                # One by one: those that wait at the SuperLink are not all in our memory at once.
                reply = self._pulled(key, asked[key], end, grace)
                if reply is not None:
                    del asked[key]
                    yield reply
                    del reply
            if last:
                return
            wait = SHORTEST if len(asked) < before else min(1.5 * wait, LONGEST)
            if asked:
                time.sleep(wait if end is None else max(0.0, min(wait, end - time.monotonic())))

    def _pulled(self, key: str, question: Message, end: float | None, grace: float = 0.0) -> Message | None:
        deadline = None if end is None else max(end, time.monotonic() + grace)
        try:
            with limited(self._limits, end, deadline):
                replies = list(self._grid.pull_messages([key]))
        except Exception as broken:  # whatever a stranger's bytes make of Flower's decoder
            return self._answer_for(key, question, broken)
        if not replies:
            return None
        reply = replies[0]
        if reply.metadata.src_node_id == question.metadata.dst_node_id:
            return reply
        if reply.has_error():  # the SuperLink's own word, that nothing will come
            return _failed(reply.error.reason, question)
        return Message(Unusable("the reply came under another node's id"), reply_to=question)

    def _answer_for(self, key: str, question: Message, broken: Exception) -> Message | None:
        """What an exception says of a node; None to ask again, and raised where the network is broken."""
        said = f"{type(broken).__name__}: {broken}"
        if isinstance(broken, LateError) or _of_this_machine(broken):
            return _failed(said, question)
        if not _of_network(broken):
            return Message(Unusable(f"the reply can't be unpacked: {said}"), reply_to=question)
        try:
            list(self._grid.get_node_ids())
        except Exception:
            raise broken from None
        # The SuperLink answers other questions, so this reply is the trouble: a node can name its objects so that the
        # SuperLink fails on them. It may also be the SuperLink's own trouble, so the node is absent and not guilty.
        self._tries[key] = self._tries.get(key, 0) + 1
        if _refused(broken) or self._tries[key] >= TRIES:
            return _failed(f"the SuperLink does not hand out its reply: {said}", question)
        return None

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


def _failed(reason: str | None, question: Message) -> Message:
    return Message(Error(ABSENT, short(reason)), reply_to=question)


def _of_network(broken: Exception) -> bool:
    module = type(broken).__module__.partition(".")[0]
    return isinstance(broken, OSError) or module in ("httpx", "httpcore", "grpc")


def _of_this_machine(broken: Exception) -> bool:
    """Memory or threads ran out here, which is no node's fault."""
    return isinstance(broken, MemoryError) or (type(broken) is RuntimeError and "start new thread" in str(broken))


def _refused(broken: Exception) -> bool:
    """Whether the SuperLink itself said that it can't."""
    return getattr(getattr(broken, "response", None), "status_code", 0) >= 400
