"""The messages of one round: each is checked against those before it, by servers and by verifiers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bartizan._util.text import quoted
from bartizan.measure import Rotated
from bartizan.measure.client_sizes import SIZE_RANGE, is_size
from bartizan.sources.committed.named_parts import projection_from
from bartizan.sources.committed.round_messages import (
    NAME,
    Closing,
    Committed,
    Draw,
    Fault,
    Listing,
    Nonce,
    Opening,
    Result,
    SecondDraw,
    SecondSketch,
    Sketched,
)
from bartizan.sources.committed.update_bytes import UpdateForm, root_of
from bartizan.sources.committed.wire import Message, floats, hash_of

FOLLOWS: dict[type[Message], type[Message]] = {Listing: Opening, Draw: Listing, Result: Draw, SecondDraw: Result}
ANSWERS: dict[type[Message], type[Message]] = {
    **{Opening: Committed, Listing: Nonce, Draw: Sketched},
    **{Result: Nonce, SecondDraw: SecondSketch},
}
SECOND = Rotated()


class ProtocolError(ValueError):
    """A message that does not fit those before it."""


def require(sound: bool, problem: str) -> None:
    if not sound:
        raise ProtocolError(problem)


def next_nonce(nonce: bytes) -> bytes:
    """Return the hash of a nonce; the hash of its hash is its anchor, and the first to be opened is its hash."""
    return hash_of(b"bcr nonce", nonce)


def seal_of(opening: bytes, sent: Sketched) -> bytes:
    """Return the hash that a client commits to: this round, itself, data size, squared norm, salt and root."""
    about = NAME.write(sent.client) + floats().write(sent.size) + floats().write(sent.squared_norm)
    return hash_of(b"bcr seal", opening, about, sent.salt, sent.root)


class Transcript:
    """The messages of one round so far."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self.form = opening, UpdateForm.from_entries(opening.entries)
        self.sketch = projection_from(opening.sketch)
        require(len(set(opening.clients)) == len(opening.clients) > 0, "the opening names no client, or one twice")
        self.stages: dict[type[Message], Any] = {Opening: opening}
        self.asking: Message = opening
        self.replies: dict[type[Message], dict[str, Any]] = {kind: {} for kind in ANSWERS}
        self.out: dict[str, str] = {}
        self.closing: Closing | None = None

    @property
    def sketched(self) -> dict[str, Sketched]:
        return self.replies[Draw]

    @property
    def seed(self) -> int:
        seed: int = self.stages[Draw].seed
        return seed

    def failed(self) -> dict[str, str]:
        """Return who sent no sketch, and why."""
        return {c: self.out.get(c, "it sent nothing") for c in self.opening.clients if c not in self.sketched}

    def lost(self) -> dict[str, str]:
        """Return who sent a sketch and is out nevertheless, and why."""
        return {client: reason for client, reason in self.out.items() if client in self.sketched}

    def audited(self, nonce: bytes) -> list[str]:
        """Return the clients that are drawn for an audit, by the server's nonce and all sketches."""
        drawn = hash_of(b"bcr audit", nonce, *(self.sketched[client].digest for client in sorted(self.sketched)))
        chances = {c: int.from_bytes(hash_of(b"bcr audited", drawn, c.encode())[:6], "little") for c in self.sketched}
        return sorted(c for c, chance in chances.items() if chance < self.opening.audit * 2**48)

    def sharing_a_root(self) -> list[str]:
        """Return the clients that opened one root: each salts its own, so that none has it by chance."""
        counts = Counter(sent.root for sent in self.sketched.values())
        return [client for client, sent in self.sketched.items() if counts[sent.root] > 1]

    def add(self, message: Message) -> None:
        """Take the next message; ProtocolError if it does not fit, and then nothing changes."""
        kind = type(message)
        require(self.closing is None, "the round was closed before")
        if isinstance(message, Fault):
            require(message.client in self.opening.clients, "the client was not asked")
            self.out.setdefault(message.client, message.reason)
        elif isinstance(message, Closing):
            self.closing = message
        elif kind in FOLLOWS:
            self._add_stage(message)
        else:
            self._add_reply(message)

    def _add_stage(self, message: Any) -> None:
        kind, name = type(message), type(message).__name__
        before = self.stages.get(FOLLOWS[kind])
        require(before is not None and message.after == before.digest, f"the {name} follows another message")
        require(kind is Result or kind not in self.stages, f"this is the second {name} of one round")
        if not isinstance(message, Result):
            parts = ("client", "seal", "anchor") if isinstance(message, Listing) else ("client", "nonce")
            rows = tuple(tuple(getattr(r, p) for p in parts) for r in self.replies[FOLLOWS[kind]].values())
            require(message.rows == rows, f"the {name} does not hold what the clients sent: one was dropped or changed")
        anchors = {Draw: self.opening.anchor, Result: getattr(self.stages.get(Draw), "nonce", b"")}
        if kind in anchors:
            own = next_nonce(message.nonce) == anchors[kind]
            require(own, "the server's nonce is not the one that it committed to when the round opened")
        if isinstance(message, Result):
            known = [client for client, _ in message.weights if client in self.sketched]
            require(len({*known}) == len(message.weights), "it weighs clients that sent no sketch")
            self.stages.pop(SecondDraw, None)
            self.replies[SecondDraw] = {}
        self.stages[kind] = self.asking = message

    def _add_reply(self, message: Any) -> None:
        stage, client = type(self.asking), getattr(message, "client", "")
        wanted = ANSWERS[stage]
        require(type(message) is wanted, f"a {type(message).__name__} came where a {wanted.__name__} was wanted")
        require(client in self.opening.clients, f"{quoted(client, 60)} was not asked")
        require(
            message.after == self.asking.digest, f"it answers another {stage.__name__}, of another round or an old one"
        )
        require(client not in self.replies[stage], "it sent this before: each counts once")
        require(client not in self.out, f"it is out: {self.out.get(client)}")
        before: Any = self.replies.get(FOLLOWS.get(stage, stage), {}).get(client)
        require(stage is Opening or before is not None, "it did not answer what was asked before")
        if stage is Listing:
            require(next_nonce(message.nonce) == before.anchor, "its nonce is not the one that it committed to")
        elif stage is Result:
            first = self.replies[Listing][client].nonce
            require(next_nonce(message.nonce) == first, "its second nonce is not the one that it committed to")
        elif stage is Draw:
            self._check_sketch(message)
        elif stage is SecondDraw:
            require(message.sketch.size == SECOND.k, f"it has {message.sketch.size} numbers, not {SECOND.k}")
        self.replies[stage][client] = message

    def _check_sketch(self, sent: Sketched) -> None:
        seal, form = self.replies[Opening][sent.client].seal, self.form
        require(seal_of(self.opening.digest, sent) == seal, "it did not commit to this update, norm or data size")
        require(len(sent.leaves) == form.n_leaves, "its root is of an update of another size")
        require(root_of(sent.leaves, form.n_bytes) == sent.root, "its leaves do not have the root")
        require(sent.sketch.size == self.sketch.k, f"its sketch has {sent.sketch.size} numbers, not {self.sketch.k}")
        require(is_size(sent.size), f"its data size is {quoted(sent.size)}, not {SIZE_RANGE}")
        require(sent.squared_norm >= 0, "its squared norm is negative")
