"""Clients of committed rounds in this process, of whom some cheat, and records that a server rewrites."""

from __future__ import annotations

import io

import numpy as np

from bartizan.client import Client
from bartizan.sources.committed.record import Record, entries
from bartizan.sources.committed.round_messages import Committed, Opening, decoded
from bartizan.sources.committed.transcript import seal_of

M, P, F = 9, 300_000, 2
NAMES = [f"c{m}" for m in range(M)]
CHEAT = NAMES[-1]


def honest(p=P, seed=0):
    x = np.random.default_rng(seed).normal(1, 1, size=(M, p)).astype(np.float32)
    return dict(zip(NAMES, x, strict=True))


class Loopback:
    """An exchange whose clients answer at once; `cheats` map a client to what it makes of its honest answer.

    A cheat is called with the client, the request and the honest reply, and returns a reply, or None to send nothing.
    """

    def __init__(self, updates, cheats=(), sizes=(), **clients):
        self.cheats, sizes = dict(cheats), dict(sizes)
        self.clients = {
            name: Client(name, lambda opening, name=name: (updates[name], sizes.get(name, 1.0)), **clients)
            for name in updates
        }
        self.requests, self.replies, self.n_bytes = [], [], 0

    def __call__(self, requests, timeout, most):
        assert 0 < timeout < np.inf
        found = {}
        for name, request in requests.items():
            self.requests.append((name, request))
            try:
                reply = self.clients[name].answer(request)
            except ValueError:  # an honest client says so, and sends nothing
                if name not in self.cheats:
                    raise
                reply = b""
            if name in self.cheats:
                reply = self.cheats[name](self.clients[name], decoded(request), reply)
            if reply is not None:
                found[name] = reply
                self.n_bytes += len(request) + len(reply)
                self.replies.append((name, reply))
        return found


def reseal(client, **changed):
    """Commit to something else: set attributes of the client's commitment, and return its new message."""
    own = client.commitment
    for name, value in changed.items():
        setattr(own, name, value)
    opening = own.stages[Opening].digest
    seal = seal_of(opening, own._sketched(bytes(32), []))
    own.message = Committed(opening, own.client, seal, own._nonces[0])
    return own.message.encoded


def rewritten(record, change):
    """Return a record of other messages, chained anew: `change` returns a message, or None to leave it out."""
    new = Record()
    for message, _ in entries(io.BytesIO(record)):
        changed = change(message)
        if changed is not None:
            if hasattr(changed, "head"):
                changed = type(changed)(**{**vars_of(changed), "head": new.head})
            new.append(changed)
    return new.read()


def vars_of(message):
    return {name: getattr(message, name) for name, _ in message.forms()}


def with_fields(message, **fields):
    return type(message)(**{**vars_of(message), **fields})
