"""The client's side of committed rounds, whatever the transport."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

from bartizan._util.text import quoted
from bartizan._util.types import Array
from bartizan.measure.client_sizes import SIZE_RANGE, is_size
from bartizan.measure.sketches import Norms
from bartizan.sources.committed import round_messages as messages
from bartizan.sources.committed.record import head_after
from bartizan.sources.committed.round_messages import Draw, Fetch, Listing, Opening, Result, SecondDraw, Sketched
from bartizan.sources.committed.transcript import FOLLOWS, SECOND, next_nonce, nonces_of, projection_from, seal_of
from bartizan.sources.committed.update_bytes import UpdateForm, leaf_hashes, part, root_of
from bartizan.sources.committed.wire import Message, ProtocolError, WireError, require

__all__ = ["Client", "Commitment", "Opening", "ProtocolError", "WireError"]
MAX_WINDOW = 32  # leaves that are sent at a time


class Commitment:
    """One client's update in one committed round; its arrays must not be written to before the round is closed.

    A server that does not keep to the protocol gets a ProtocolError that says what it did instead of an answer.
    """

    def __init__(
        self,
        opening: Opening,
        client: str,
        form: UpdateForm,
        pieces: list[Array],
        size: float,
        origin: Any,
        secret: bytes | None,
    ) -> None:
        self.client, self.size, self._form, self._pieces, self._origin = client, size, form, pieces, origin
        self._projection = projection_from(opening.sketch)
        self.squared_norm = form.measured(pieces, origin, Norms(), 0)[1]
        if not math.isfinite(self.squared_norm):
            raise ValueError("The update holds NaN or Inf, or its squares overflow: it can't take part.")
        self.secret = secrets.token_bytes(64) if secret is None else secret
        self._salt = self.secret[:32]
        self._nonces = nonces_of(self.secret[32:], len(opening.clients) + 2)
        self._leaves = leaf_hashes(pieces, self._salt)
        self._root = root_of(self._leaves, form.n_bytes)
        self.stages: dict[type[Message], Any] = {Opening: opening}
        """The last message of each kind that the server published."""
        self.n_results = 0
        """The results that were answered, each by another nonce."""
        seal = seal_of(opening.digest, self._sketched(bytes(32), []))
        self.message = messages.Committed(opening.digest, client, seal, self._nonces[0])
        """The answer to the opening, which shows nothing of the update."""

    @classmethod
    def of(
        cls,
        update: Any,
        opening: bytes | Opening,
        client: str,
        *,
        size: float = 1,
        reference: Any = None,
        secret: bytes | None = None,
    ) -> Commitment:
        """Commit to an update: arrays of NumPy or torch in any container of the round's layout.

        `reference` is the model that updates are measured from; the opening says which one, if any. `secret` is that of
        the same commitment before its process ended: then `follow` its `stages` too, and set `n_results`.
        """
        opening = opening if isinstance(opening, Opening) else Opening.decode(opening)
        if not is_size(size):
            raise ValueError(f"size must be {SIZE_RANGE}, got {quoted(size, 60)}.")
        require(client in opening.clients, f"the server did not ask {quoted(client, 60)}")
        form = UpdateForm.from_entries(opening.entries)
        same = form.root(reference) == opening.reference
        require(same, "the reference is not the one that the server opened the round with")
        origin = None if reference is None else form.pieces(reference)
        return cls(opening, client, form, form.pieces(update), float(size), origin, secret)

    def nonce(self, asked: Listing | Result) -> messages.Nonce:
        """Open the first nonce where the list holds one's own commitment, or the next one after a result."""
        self.follow(asked)
        if isinstance(asked, Listing):
            rows = [row for row in asked.rows if row[0] == self.client]
            own = (self.client, self.message.seal, self.message.anchor)
            require(rows == [own], "the server dropped or changed this client's commitment in its list")
        else:
            same = next_nonce(asked.nonce) == self.stages[Draw].nonce
            require(same, "the server opened another second nonce than it committed to")
        return messages.Nonce(asked.digest, self.client, self._nonces[self.n_results + 1])

    def sketch(self, seed: Draw) -> Sketched | messages.SecondSketch:
        """Sketch the update by a seed, which must come of the list, or of the result, and of all nonces."""
        self.follow(seed)
        second, names = isinstance(seed, SecondDraw), [client for client, _ in seed.rows]
        own = (self.client, self._nonces[self.n_results + 1 if second else 1])
        require(own in seed.rows, "the server left this client's nonce out of the seed")
        require(names == sorted({*names}), "the server put the nonces of the seed into an order of its choice")
        anchor = self.stages[Draw].nonce if second else self.stages[Opening].anchor
        same = next_nonce(seed.nonce) == anchor
        require(same, "the server opened another nonce than it committed to when the round opened")
        if not second:
            anchors = {client: anchor for client, _, anchor in self.stages[Listing].rows}
            sound = all(next_nonce(nonce) == anchors.get(client) for client, nonce in seed.rows)
            require(sound, "the server drew the seed by a nonce that its client did not commit to")
        sketch, _ = self._form.measured(self._pieces, self._origin, SECOND if second else self._projection, seed.seed)
        return (
            messages.SecondSketch(seed.digest, self.client, sketch) if second else self._sketched(seed.digest, sketch)
        )

    def reveal(self, ranges: Fetch) -> messages.Leaves:
        """Send the bytes of some leaves of the update, after the sketch."""
        require(Draw in self.stages, "the server asked for the update before it drew a seed")
        require(ranges.root == self._root, "the server asked for another client's update")
        return messages.Leaves(
            self._root, ranges.first, part(self._pieces, ranges.first, min(ranges.count, MAX_WINDOW))
        )

    def answer(self, message: Message) -> bytes:
        """Return the reply to a message of the server, empty at the close."""
        if isinstance(message, Opening):
            return self.message.encoded
        if isinstance(message, (Listing, Result)):
            return self.nonce(message).encoded
        if isinstance(message, Draw):
            return self.sketch(message).encoded
        if isinstance(message, Fetch):
            return self.reveal(message).encoded
        require(isinstance(message, messages.Closing), f"a server sends no {type(message).__name__}")
        same = getattr(message, "after", b"") == self.stages[Opening].digest
        require(same, "the server's Closing is not of this round")
        return b""

    def follow(self, message: Any) -> None:
        """Accept a message that follows the last one; a second of its kind only after a result."""
        kind, name = type(message), type(message).__name__
        before, known = self.stages.get(FOLLOWS[kind]), self.stages.get(kind)
        require(before is not None and message.after == before.digest, f"the server's {name} is not of this round")
        if known is not None and known.digest == message.digest:
            return
        require(known is None or kind is Result, f"the server sent a second {name} in one round")
        if kind is Result:  # each shows k more linear functions of the update
            most = len(self._nonces) - 2
            require(self.n_results < most, f"the server published more than {most} results in one round")
            self.n_results += 1
            self.stages.pop(SecondDraw, None)
        self.stages[kind] = message

    def _sketched(self, draw: bytes, sketch: Any) -> Sketched:
        return Sketched(draw, self.client, self.size, self.squared_norm, self._salt, self._root, self._leaves, sketch)


class Client:
    """Answers a server's requests in any number of rounds, one after another; the transport is the caller's.

    Args:
        name: The client's id, as the server knows it.
        train: Called with each `Opening`; returns the update and the data size.
        reference: Called with each `Opening`; returns the model that updates are measured from, where there is one.
    """

    def __init__(
        self,
        name: str,
        train: Callable[[Opening], tuple[Any, float]],
        reference: Callable[[Opening], Any] = lambda opening: None,
    ) -> None:
        self.name, self._train, self._reference = name, train, reference
        self.commitment: Commitment | None = None
        self.head = b""
        """The head of the record after the last round: pin it, and `bartizan verify --head` finds what was changed."""

    def answer(self, request: bytes) -> bytes:
        """Return the reply to a request, empty at the close; raise ValueError where the server breaks the protocol."""
        message, own = messages.decoded(request), self.commitment
        twice = own is not None and own.stages[Opening].digest == message.digest
        if isinstance(message, Opening) and not twice:
            update, size = self._train(message)
            own = Commitment.of(update, message, self.name, size=size, reference=self._reference(message))
            self.commitment = own
        require(own is not None, "the server sent a request before it opened a round")
        assert own is not None
        reply = own.answer(message)
        if isinstance(message, messages.Closing):
            self.head, self.commitment = head_after(message.head, message), None
        return reply
