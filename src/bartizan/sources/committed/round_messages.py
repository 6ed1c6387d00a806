"""The messages of a committed round, in the order of the protocol (`docs/explanation/committed.md`).

`after` is the digest of the server's message that one answers or follows.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from bartizan.sources.committed.wire import MAX_MESSAGE_BYTES, Message, floats, octets, several, text, whole

MAX_CLIENTS, MAX_LEAVES, MAX_NUMBERS, MAX_DIMENSIONS = 10_000, 2**20, 2**20, 2**16
DIGEST, NAME, REASON = octets(0, 32), text(200), text(2000)
Digest: TypeAlias = Annotated[bytes, DIGEST]
Name: TypeAlias = Annotated[str, NAME]
Words: TypeAlias = Annotated[str, REASON]
Real: TypeAlias = Annotated[float, floats()]
Numbers: TypeAlias = Annotated[Any, floats(MAX_NUMBERS)]
ENTRY = text(1000), text(20), several(32, whole())


class Opening(Message):
    """The server's first message: what the round is about, before anybody commits."""

    round: Annotated[int, whole()]
    head: Digest
    """The head of the record before this round."""
    clients: Annotated[tuple[str, ...], several(MAX_CLIENTS, NAME)]
    entries: Annotated[tuple[tuple[str, str, tuple[int, ...]], ...], several(100_000, *ENTRY)]
    """Path (JSON), dtype and shape of each array of an update, in the order in which bytes and coordinates count."""
    reference: Digest
    """Root of the model that updates are measured from; zeros if it is zero."""
    rule: Words
    sketch: Words
    audit: Real
    """Probability that a client without weight is fetched and checked too."""
    history: Numbers
    anchor: Digest
    """The hash of the hash of the server's secret nonce."""


class Committed(Message):
    """The seal of a client's update, data size and squared norm, and the anchor of its nonce."""

    after: Digest
    client: Name
    seal: Digest
    anchor: Digest


class Listing(Message):
    """All commitments, published by the server. No other update can enter this round."""

    after: Digest
    rows: Annotated[tuple[tuple[str, bytes, bytes], ...], several(MAX_CLIENTS, NAME, DIGEST, DIGEST)]


class Nonce(Message):
    """The next nonce of a client, after the list or a result: the one before is its hash."""

    after: Digest
    client: Name
    nonce: Digest


class Draw(Message):
    """The server's nonce and all that clients opened. The seed is the first half of this message's digest."""

    after: Digest
    nonce: Digest
    rows: Annotated[tuple[tuple[str, bytes], ...], several(MAX_CLIENTS, NAME, DIGEST)]

    @property
    def seed(self) -> int:
        return int.from_bytes(self.digest[:16], "little")


class Sketched(Message):
    """A client's sketch, and all that its seal is made of."""

    after: Digest
    client: Name
    size: Real
    squared_norm: Real
    salt: Digest
    root: Digest
    leaves: Annotated[tuple[bytes, ...], several(MAX_LEAVES, DIGEST)]
    sketch: Numbers


class Fetch(Message):
    """The leaves of its update that the server asks a client for."""

    root: Digest
    first: Annotated[int, whole(MAX_LEAVES)]
    count: Annotated[int, whole(MAX_LEAVES)]


class Leaves(Message):
    """The bytes of some leaves in a row, at most as many as were asked for."""

    root: Digest
    first: Annotated[int, whole(MAX_LEAVES)]
    data: Annotated[bytes, octets(MAX_MESSAGE_BYTES)]


class Result(Message):
    """The weights, and the root of the update that they make, published before the second seed is known."""

    after: Digest
    nonce: Digest
    """The server's secret, by which the audits were drawn."""
    root: Digest
    weights: Annotated[tuple[tuple[str, float], ...], several(MAX_CLIENTS, NAME, floats())]
    quarantined: Annotated[tuple[tuple[str, str], ...], several(MAX_CLIENTS, NAME, REASON)]


class SecondDraw(Draw):
    """The second seed, drawn from the root of the result and the clients' nonces."""


class SecondSketch(Message):
    """The sketch of the committed update of a client with weight, by the second seed."""

    after: Digest
    client: Name
    sketch: Numbers


class Fault(Message):
    """A client that is out, and why; only in the record."""

    client: Name
    reason: Words


class Closing(Message):
    """The end of a round: the head of the record before it, and why there is no result (empty if there is)."""

    after: Digest
    """The digest of the opening."""
    head: Digest
    problem: Words


def decoded(data: bytes) -> Message:
    """Decode a message of any kind; raise WireError if the bytes are not one."""
    return Message.KINDS.get(data[4] if len(data) > 4 else 0, Opening).decode(data)
