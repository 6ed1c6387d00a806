"""The messages of one round: each is checked against those before it, by servers and by verifiers."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from bartizan import measure, rules
from bartizan._util.text import quoted
from bartizan._util.types import Array, Floats
from bartizan.measure import Projection, Rotated
from bartizan.measure.client_sizes import SIZE_RANGE, is_size
from bartizan.measure.sketches import PROBABILITY_OF_ERROR
from bartizan.rules import coordinatewise, preaggregators
from bartizan.rules.base import Rule
from bartizan.sources.committed import round_messages as messages
from bartizan.sources.committed.round_messages import (
    Closing,
    Draw,
    Fault,
    Listing,
    Opening,
    Result,
    SecondDraw,
    Sketched,
)
from bartizan.sources.committed.update_bytes import LEAF, SLACK, WINDOW, UpdateForm, root_of
from bartizan.sources.committed.wire import Message, floats, hash_of, require

FOLLOWS: dict[type[Message], type[Message]] = {Listing: Opening, Draw: Listing, Result: Draw, SecondDraw: Result}
ANSWERS: dict[type[Message], type[Message]] = {
    **{Opening: messages.Committed, Listing: messages.Nonce, Draw: Sketched},
    **{Result: messages.Nonce, SecondDraw: messages.SecondSketch},
}
SECOND = Rotated()
TINY_SQUARE = 1e-290  # squares have too few digits to be compared
MODULES = measure, rules, coordinatewise, preaggregators
KINDS_OF_PARTS: dict[str, Any] = {
    name: kind for module in MODULES for name, kind in vars(module).items() if is_dataclass(kind)
}


def rule_from(text: str) -> Rule:
    """Return the rule with this repr; ValueError if it is none of the package's own.

    >>> rule_from("ARC(n_byzantine=2) >> CAF(n_byzantine=2)")
    ARC(n_byzantine=2) >> CAF(n_byzantine=2)
    """
    return _built(text, Rule)


def projection_from(text: str) -> Projection:
    """Return the projection with this repr; ValueError if it is none of the package's own, or too large."""
    sketch = _built(text, Projection)
    if sketch.k > messages.MAX_DIMENSIONS:
        raise ValueError(f"wanted a projection to at most {messages.MAX_DIMENSIONS:,} dimensions, got {quoted(text)}")
    return sketch


def _built(text: str, wanted: type[Any]) -> Any:
    def part(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift):
            return part(node.left) >> part(node.right)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
            raise TypeError("wanted names with settings")
        return KINDS_OF_PARTS[node.func.id](**{str(one.arg): ast.literal_eval(one.value) for one in node.keywords})

    try:
        found = part(ast.parse(text, mode="eval").body)
    except (ValueError, TypeError, SyntaxError, KeyError, ArithmeticError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, wanted) or repr(found) != text:
        raise ValueError(f"wanted a {wanted.__name__.lower()} of bartizan's own by its repr, got {quoted(text)}")
    return found


def next_nonce(nonce: bytes) -> bytes:
    """Return the hash of a nonce: the one that is opened before it, or the anchor that is committed to."""
    return hash_of(b"bcr nonce", nonce)


def nonces_of(secret: bytes, count: int) -> list[bytes]:
    """Return an anchor and the nonces that are opened after it, in their order; the last is the secret."""
    found = [secret]
    for _ in range(count):
        found.append(next_nonce(found[-1]))
    return found[::-1]


def seal_of(opening: bytes, sent: Sketched) -> bytes:
    """Return the hash that a client commits to: this round, itself, data size, squared norm, salt and root."""
    about = messages.NAME.write(sent.client) + floats().write(sent.size) + floats().write(sent.squared_norm)
    return hash_of(b"bcr seal", opening, about, sent.salt, sent.root)


def bytes_sent(weights: Sequence[float] | Floats, n_bytes: int, k: int) -> int:
    """Return the bytes that clients send in a committed round of these weights, but for audits and the ids' length.

    >>> bytes_sent([0.5, 0.5, 0], 4 * 10**6, 4096), 3 * 4 * 10**6
    (8165568, 12000000)
    """
    leaves = -(-n_bytes // LEAF)
    proven = n_bytes + 57 * -(-leaves // WINDOW) + 45 + 8 * SECOND.k  # updates in Leaves, and SecondSketch
    return len(weights) * (380 + 32 * leaves + 8 * k) + sum(weight > 0 for weight in weights) * proven


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
        self.nonces: dict[str, bytes] = {}
        """The last that each client opened, or its anchor."""
        self._n_lost = -1  # when the last result was published
        self.closing: Closing | None = None

    @property
    def sketched(self) -> dict[str, Sketched]:
        return self.replies[Draw]

    @property
    def seed(self) -> int:
        seed: int = self.stages[Draw].seed
        return seed

    def failed(self) -> dict[str, str]:
        """Return the clients that sent no sketch, with the reasons."""
        return {c: self.out.get(c, "it sent nothing") for c in self.opening.clients if c not in self.sketched}

    def lost(self) -> dict[str, str]:
        """Return who sent a sketch and is out nevertheless, and why."""
        return {client: reason for client, reason in self.out.items() if client in self.sketched}

    def audited(self, nonce: bytes) -> list[str]:
        """Return the clients that are drawn for an audit, by the server's nonce and all sketches."""
        drawn = hash_of(b"bcr audit", nonce, *(self.sketched[client].digest for client in sorted(self.sketched)))
        chances = {c: int.from_bytes(hash_of(b"bcr audited", drawn, c.encode())[:6], "little") for c in self.sketched}
        return sorted(c for c, chance in chances.items() if chance < self.opening.audit * 2**48)

    def rows(self, stage: type[Message]) -> tuple[tuple[Any, ...], ...]:
        """Return the replies that the next stage publishes, sorted: whoever chose their order could choose the seed."""
        names = ("client", "seal", "anchor") if stage is Opening else ("client", "nonce")
        return tuple(sorted(tuple(getattr(reply, n) for n in names) for reply in self.replies[stage].values()))

    def mismatch(self, sent: Sketched, pieces: Sequence[Array], origin: Sequence[Array] | None) -> str:
        """Return what of an update is not as its client sent it; empty if all is."""
        sketch, norm = self.form.measured(pieces, origin, self.sketch, self.seed)
        if not abs(norm - sent.squared_norm) <= SLACK * norm:  # True for NaN
            return f"its squared norm is {norm:.6g}, and it committed to {sent.squared_norm:.6g}"
        off = float(np.linalg.norm(sketch - sent.sketch))
        return "" if off <= SLACK * np.sqrt(norm) else f"its sketch is not of its update: they are {off:.3g} apart"

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
            require(message.after == self.opening.digest, "it closes another round")
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
            same = message.rows == self.rows(FOLLOWS[kind])
            require(same, f"the {name} does not hold what the clients sent: one was dropped or changed")
        if kind is not Listing:
            anchor = self.opening.anchor if kind is Draw else self.stages[Draw].nonce
            same = next_nonce(message.nonce) == anchor
            require(same, "the server's nonce is not the one that it committed to when the round opened")
        if isinstance(message, Result):
            known = [client for client, _ in message.weights if client in self.sketched]
            require(len({*known}) == len(message.weights), "it weighs clients that sent no sketch")
            require(self._n_lost < len(self.lost()), "no client was lost since the last result")
            self._n_lost = len(self.lost())
            self.stages.pop(SecondDraw, None)
            self.replies[Result], self.replies[SecondDraw] = {}, {}
        self.stages[kind] = self.asking = message

    def _add_reply(self, message: Any) -> None:
        stage, client = type(self.asking), getattr(message, "client", "")
        wanted = ANSWERS[stage]
        require(type(message) is wanted, f"a {type(message).__name__} came where a {wanted.__name__} was wanted")
        require(client in self.opening.clients, f"{quoted(client, 60)} was not asked")
        fits = message.after == self.asking.digest
        require(fits, f"it answers another {stage.__name__}, of another round or an old one")
        require(client not in self.replies[stage], "it sent this before: each counts once")
        require(client not in self.out, f"it is out: {self.out.get(client)}")
        before: Any = self.replies.get(FOLLOWS.get(stage, stage), {}).get(client)
        require(stage is Opening or before is not None, "it did not answer what was asked before")
        if stage is Opening:
            self.nonces[client] = message.anchor
        elif wanted is messages.Nonce:
            own = next_nonce(message.nonce) == self.nonces[client]
            require(own, "its nonce is not the one that it committed to")
            self.nonces[client] = message.nonce
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
        with np.errstate(over="ignore"):  # above the range no rule could count; below it is quarantined as in any round
            most = 1.01 * self.sketch.norm_ratio_range(PROBABILITY_OF_ERROR)[1] * sent.squared_norm + TINY_SQUARE
            own = sent.squared_norm >= 0 and float(np.square(sent.sketch).sum()) <= most
        require(own, f"its sketch is longer than one of an update with a squared norm of {sent.squared_norm:.3g}")
