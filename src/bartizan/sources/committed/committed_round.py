"""A committed round on the server: it asks clients in phases, judges their sketches, and fetches those with weight."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bartizan._util.text import quoted, short, text
from bartizan.aggregate import Aggregator, run
from bartizan.errors import LostClients, NamedErrors, TooFewClientsError
from bartizan.measure import Projection
from bartizan.source import Aggregation, Combined, Judgement
from bartizan.sources.committed import round_messages as messages
from bartizan.sources.committed.committed_updates import CommittedUpdates, refusal
from bartizan.sources.committed.record import Record
from bartizan.sources.committed.round_messages import Closing, Draw, Fault, Listing, Opening, Result, SecondDraw
from bartizan.sources.committed.transcript import SECOND, Transcript, nonces_of, projection_from, rule_from
from bartizan.sources.committed.update_bytes import SLACK, FetchedUpdate, UpdateForm
from bartizan.sources.committed.wire import Message, ProtocolError, require
from bartizan.updates import combine, parse_updates
from bartizan.updates.layout import on_gpu, plain_and_leaves, rebuild

Exchange = Callable[[Mapping[str, bytes], float, int], Mapping[str, bytes]]
"""Sends each client its request; returns the replies, of at most so many bytes, that came within so many seconds."""
REPLY_BYTES = 2**12  # of a reply without a sketch or leaves
CHARACTERS = 300  # of a reason in the record


@dataclass(frozen=True, eq=False, repr=False)
class CommittedAggregation(Aggregation[Any]):
    """The result of a committed round; `bartizan verify` repeats it from the record."""

    head: bytes = b""
    """The head of the record after this round: publish it, so that others can pin it."""
    audited: tuple[str, ...] = ()
    """Clients without weight whose updates were fetched and checked."""
    fetched_bytes: int = 0


class CommittedRound:
    """One round in which clients commit to their updates and send sketches; only those with weight send the rest.

    See `docs/explanation/committed.md` for the protocol, and what it promises.

    Args:
        aggregator: The rule, and a projection or "auto".
        like: An update, or the model: the names, shapes and dtypes that clients must send, in this order.
        expected: The ids of the clients, strings of at most 200 bytes.
        deadline: Seconds for each exchange of messages. A client that does not answer in time has failed.
        reference: The origin of distances and norms, which clients hold too: the last global model where updates are
            whole weights.
        audit: Probability that the update of a client without weight is fetched and checked too.
        history: The `history` of the last round's result, for the rules that have a memory.
        record: A `Record`, or the path of one, which is continued; in memory if not given.
        spill: A folder for the updates that are fetched; in memory if not given.
        fetch_budget: The most bytes to fetch; those of all expected clients' updates if not given.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        like: Any,
        *,
        expected: Iterable[str],
        deadline: float = 60.0,
        reference: Any = None,
        audit: float = 0.05,
        history: tuple[float, ...] = (),
        record: Record | str | os.PathLike[str] | None = None,
        spill: str | os.PathLike[str] | None = None,
        fetch_budget: int | None = None,
    ) -> None:
        rule, sketch = aggregator.rule, aggregator.sketch
        if problem := refusal(rule, sketch):
            raise ValueError(problem)
        sketch = sketch if isinstance(sketch, Projection) else SECOND
        if not (0 <= audit <= 1 and deadline > 0):
            wanted = "audit must be a probability, and deadline a positive number of seconds"
            raise ValueError(f"{wanted}; got {quoted(audit)} and {quoted(deadline)}.")
        rule_from(repr(rule)), projection_from(repr(sketch))  # who replays the round makes them of these texts
        self.aggregator, self.deadline, self.history = Aggregator(rule, sketch), float(deadline), history
        plain, _ = plain_and_leaves(like)
        self._like = rebuild(plain, lambda path, leaf: leaf.cpu() if on_gpu(leaf) else leaf)
        form = UpdateForm.of(like)
        clients = tuple(sorted(_checked(expected)))
        self._reference, self._origin = reference, None if reference is None else form.pieces(reference)
        self._folder = None if spill is None else Path(spill)
        self._budget = len(clients) * form.n_bytes if fetch_budget is None else fetch_budget
        anchor, *self._nonces = nonces_of(secrets.token_bytes(32), 2)
        self._n_fetched, self._updates = 0, dict[str, FetchedUpdate]()
        self._closes_record = not isinstance(record, Record)
        self.record = record if isinstance(record, Record) else Record(record)
        about = form.entries, form.root(reference), repr(rule), repr(sketch), audit, np.array(history), anchor
        self.opening = Opening(self.record.n_rounds + 1, self.record.head, clients, *about)
        self.transcript = Transcript(self.opening)
        self.record.append(self.opening)

    def run(self, exchange: Exchange) -> CommittedAggregation:
        """Run the round over a transport: no reply of a client raises, and whatever ends the round is in its record."""
        if self.transcript.closing is not None:
            raise RuntimeError("This round is closed. Open another one.")
        self._exchange = exchange
        try:
            return self._run()
        except Exception as wrong:
            self._close(short(wrong, CHARACTERS) or type(wrong).__name__)
            raise

    def _run(self) -> CommittedAggregation:
        state, opening = self.transcript, self.opening
        self._ask(opening, opening.clients, messages.Committed)
        self._add(listing := Listing(opening.digest, state.rows(Opening)))
        self._ask(listing, self._present(), messages.Nonce)
        self._add(draw := Draw(listing.digest, self._nonces[0], state.rows(Listing)))
        most = REPLY_BYTES + 8 * state.sketch.k + 32 * state.form.n_leaves
        self._ask(draw, self._present(), messages.Sketched, most)
        for client in state.sharing_a_root():
            self._add(Fault(client, "another client opened the same root, which has a secret salt: they share it"))
        source = CommittedUpdates(state, self.aggregator.rule, self._combined)
        with NamedErrors(source.ids, state.failed()):
            found: Any = run(source, self.aggregator, history=self.history, result=CommittedAggregation)
        return found

    def _combined(self, weights: dict[str, float], judgement: Judgement) -> Combined:
        """Fetch and check the clients with weight and those drawn for an audit; return the sum, and prove it."""
        state = self.transcript
        chosen = [client for client, weight in weights.items() if weight > 0]
        audited = tuple(one for one in state.audited(self._nonces[1]) if weights.get(one) == 0)
        self._fetch([*chosen, *audited])
        pieces = [state.form.split(self._updates[client].data) for client in chosen]
        pieces = pieces or [state.form.split(np.zeros(state.form.n_bytes, np.uint8))]
        containers = [state.form.container(one, self._like) for one in pieces]
        given = np.array([weights[client] for client in chosen] or [0.0])
        update = combine(parse_updates(containers, reference=self._reference), given)
        ids = sorted(state.sketched)
        out = tuple((ids[client], short(reason, CHARACTERS)) for client, reason in judgement.quarantined.items())
        draw = state.stages[Draw]
        self._add(result := Result(draw.digest, self._nonces[1], state.form.root(update), (*weights.items(),), out))
        self._prove(result, chosen)
        self._close("")
        return Combined(update, {"head": self.record.head, "audited": audited, "fetched_bytes": self._n_fetched})

    def _prove(self, result: Result, chosen: Sequence[str]) -> None:
        """Compare the sketch of the result with clients' second sketches; raise LostClients for false ones."""
        state, lost = self.transcript, {}
        self._ask(result, self._present(), messages.Nonce, required=False)
        self._add(draw := SecondDraw(result.digest, self._nonces[1], state.rows(Result)))
        self._ask(draw, chosen, messages.SecondSketch, REPLY_BYTES + 8 * SECOND.k, required=False)
        for client in chosen:
            sent = state.replies[SecondDraw].get(client)
            pieces = state.form.split(self._updates[client].data)
            own, norm = state.form.measured(pieces, self._origin, SECOND, draw.seed)
            if sent is None:
                lost[client] = "it sent no second sketch of the update that it committed to"
            elif not np.linalg.norm(own - sent.sketch) <= SLACK * np.sqrt(norm):
                lost[client] = "its second sketch is not of the update that it committed to"
        self._lose(lost)

    def _fetch(self, clients: Sequence[str]) -> None:
        """Fetch and check these clients' updates; LostClients for those that do not deliver what they committed to."""
        state, lost, own = self.transcript, dict[str, str](), self._updates
        own |= {c: FetchedUpdate(state.sketched[c], state.form.n_bytes, self._folder) for c in clients if c not in own}
        while pending := [client for client in clients if client not in lost and not own[client].complete]:
            if self._n_fetched + sum(own[client].n_asked for client in pending) > self._budget:
                spent = f"{self._n_fetched:,} of {self._budget:,} bytes are fetched, {len(pending)} clients are left"
                raise TooFewClientsError(f"The fetch budget is spent: {spent}. Raise fetch_budget.")
            requests = {client: own[client].request().encoded for client in pending}
            most = REPLY_BYTES + max(own[client].n_asked for client in pending)
            replies = self._exchange(requests, self.deadline, most)
            for client in pending:
                try:
                    reply = None if client not in replies else messages.Leaves.decode(replies[client], most)
                    self._n_fetched += own[client].add(reply)
                except ProtocolError as wrong:
                    lost[client] = short(wrong, CHARACTERS)
        for client in clients:
            if client not in lost and not own[client].checked:
                try:
                    pieces = state.form.split(own[client].data)
                    require(not (problem := state.mismatch(own[client].sent, pieces, self._origin)), problem)
                except ValueError as wrong:
                    lost[client] = short(wrong, CHARACTERS)
                own[client].checked = True
        self._lose(lost)

    def _ask(
        self, request: Message, clients: Iterable[str], kind: Any, most: int = REPLY_BYTES, *, required: bool = True
    ) -> None:
        """Send a request, and take the replies into transcript and record; who does not answer well is out."""
        requests = dict.fromkeys(clients, request.encoded)
        replies = self._exchange(requests, self.deadline, most) if requests else {}
        for client in requests:
            try:
                require(client in replies, f"it sent no {kind.__name__} in time")
                message = kind.decode(replies[client], most)
                require(message.client == client, f"it sent a message of {quoted(message.client, 60)}")
                self._add(message)
            except ProtocolError as wrong:
                if required:
                    self._add(Fault(client, short(wrong, CHARACTERS)))

    def _add(self, message: Message) -> None:
        self.transcript.add(message)
        self.record.append(message)

    def _close(self, problem: str) -> None:
        self._add(closing := Closing(self.opening.digest, self.record.head, problem))
        if self._closes_record:
            self.record.close()
        with suppress(Exception):  # of the transport: the result, or the reason, is there
            self._exchange(dict.fromkeys(self._present(), closing.encoded), self.deadline, REPLY_BYTES)

    def _lose(self, lost: Mapping[str, str]) -> None:
        for client, reason in lost.items():
            self._add(Fault(client, reason))
        if lost:
            ids = sorted(self.transcript.sketched)
            raise LostClients({ids.index(client): reason for client, reason in lost.items()})

    def _present(self) -> list[str]:
        return [client for client in self.opening.clients if client not in self.transcript.out]


def _checked(expected: Iterable[str]) -> list[str]:
    """Return the clients' ids; raise ValueError unless they are distinct texts that fit into a message."""
    clients = [] if isinstance(expected, (str, bytes)) else list(expected)
    if not 0 < len(clients) <= messages.MAX_CLIENTS or len({*clients}) < len(clients):
        raise ValueError(
            f"expected must be 1 to {messages.MAX_CLIENTS:,} clients' ids, each once; got {quoted(expected)}."
        )
    for one in clients:
        if not isinstance(one, str) or text(one) != one or not 0 < len(one.encode()) <= 200:
            raise ValueError(f"A client's id must be a printable text of 1 to 200 bytes, got {quoted(one, 60)}.")
    return clients
