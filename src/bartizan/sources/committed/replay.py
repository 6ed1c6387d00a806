"""Replay the rounds of a record: recompute seeds, audits and weights, and compare files with what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from bartizan._util.text import quoted, short
from bartizan.judge.judge import judge
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import PROBABILITY_OF_ERROR
from bartizan.sources.committed.committed_updates import CommittedUpdates, too_many_lost
from bartizan.sources.committed.record import FIRST_HEAD, RecordError, entries
from bartizan.sources.committed.round_messages import Closing, Opening, Result, SecondDraw
from bartizan.sources.committed.transcript import SECOND, Transcript, rule_from
from bartizan.sources.committed.update_bytes import SLACK, leaf_hashes, root_of
from bartizan.sources.committed.wire import require
from bartizan.sources.witness import Witness, rounding_of_sum

WEIGHT_ROUNDING = 1e-6  # of the lengths in the sum: what weights computed on another machine may move it by


@dataclass(frozen=True, eq=False)
class ReplayedRound:
    """One round of a record, which was replayed without a contradiction, and the head of the record after it."""

    transcript: Transcript
    head: bytes

    @property
    def number(self) -> int:
        return self.transcript.opening.round

    @property
    def problem(self) -> str:
        """The reason for which the round has no result; empty where it has one."""
        return "" if self.transcript.closing is None else self.transcript.closing.problem

    def check_result(self, update: Any, reference: Any = None) -> None:
        """Raise RecordError unless this is the sum of the updates that clients committed to, by the round's weights."""
        state, origin = self.transcript, self._origin(reference)
        result, shown, pieces = state.stages[Result], state.replies[SecondDraw], state.form.pieces(update)
        if state.form.root(update) != result.root:
            raise RecordError(f"the result is not the one of round {self.number}: its root is another one")
        chosen = [(client, weight) for client, weight in result.weights if weight > 0]
        rows, weights = tuple(range(len(chosen))), np.array([weight for _, weight in chosen])
        norms = np.array([state.sketched[client].squared_norm for client, _ in chosen])
        sketches = np.array([shown[client].sketch for client, _ in chosen]).reshape(len(rows), SECOND.k)
        measured = Measurements(rows, norms, sketches, sketch=SECOND, seed=state.stages[SecondDraw].seed)
        own, (_, length) = state.form.updates(pieces, origin), state.form.measured(pieces, None, SECOND, 0)
        # Twice of it counts: as the server admits of each client, so that none makes an honest result look false.
        slack = SLACK / 2 * float(weights @ np.sqrt(norms)) + rounding_of_sum(own, float(np.sqrt(length)))
        found = SECOND.measure(own, measured.seed)
        if not Witness(SECOND, measured).agrees(rows, weights, found, slack, own.layout):
            off = "its second sketch is not the weighted sum of the clients'"
            raise RecordError(f"the result of round {self.number} is not made of what was committed: {off}")

    def check_update(self, client: str, update: Any, reference: Any = None) -> None:
        """Raise RecordError unless this is the update that the client committed to, and its sketch is true."""
        state, pieces = self.transcript, self.transcript.form.pieces(update)
        sent, whose = state.sketched.get(client), f"{quoted(client, 60)} in round {self.number}"
        if sent is None:
            raise RecordError(f"there is no sketch of {whose}: {state.failed().get(client, 'it was not asked')}")
        if root_of(leaf_hashes(pieces, sent.salt), state.form.n_bytes) != sent.root:
            raise RecordError(f"this is not the update of {whose}, who committed to another one")
        if problem := state.mismatch(sent, pieces, self._origin(reference)):
            raise RecordError(f"{whose}: {problem}")

    def _origin(self, reference: Any) -> Any:
        """Return the bytes of the reference, which must be the round's."""
        form = self.transcript.form
        if form.root(reference) != self.transcript.opening.reference:
            given = "none was given" if reference is None else "another one was given"
            raise ValueError(f"Updates of round {self.number} are measured from its reference, and {given}.")
        return None if reference is None else form.pieces(reference)


def replayed(file: BinaryIO) -> Iterator[ReplayedRound]:
    """Yield the rounds of a record as they are replayed; RecordError names the first entry that contradicts others."""
    state: Transcript | None = None
    n_rounds, before = 0, FIRST_HEAD
    for number, (message, head) in enumerate(entries(file), 1):
        try:
            if isinstance(message, Opening):
                require(state is None, "the round before was not closed")
                n_rounds += 1
                require(message.round == n_rounds, f"it opens round {message.round}, and {n_rounds} is next")
                state = Transcript(message)
            else:
                require(state is not None, "no round is open")
                assert state is not None
                state.add(message)
            if isinstance(message, (Opening, Closing)):
                require(message.head == before, "it does not name the head before it")
            if isinstance(message, Closing):
                if not message.problem:
                    check_decision(state)
                yield ReplayedRound(state, head)
                state = None
        except ValueError as wrong:
            raise RecordError(f"entry {number} ({type(message).__name__}): {short(wrong)}") from None
        before = head
    if state is not None:
        raise RecordError(f"round {n_rounds} was not closed: the record ends within it")


def check_decision(state: Transcript) -> None:
    """Judge a round anew from its sketches; ProtocolError where weights, quarantines or second sketches are others."""
    require(SecondDraw in state.stages, "the round was closed without a result that was proven")
    rule, result = rule_from(state.opening.rule), state.stages[Result]
    require(not too_many_lost(rule, state), f"the round should have been refused: {too_many_lost(rule, state)}")
    source = CommittedUpdates(state, rule, lambda weights, judgement: NotImplemented)
    sketch, seed = source.settle(rule, "auto", None)
    judgement = judge(source, source.measure(sketch, seed), rule, history=tuple(state.opening.history.tolist()))
    found = zip(judgement.clients, judgement.decision.weights.tolist(), strict=True)
    weights, given = {source.ids[client]: weight for client, weight in found}, dict(result.weights)
    require(weights.keys() == given.keys(), "other clients were judged than the sketches say")
    out = {source.ids[client] for client in judgement.quarantined}
    require(out == {client for client, _ in result.quarantined}, "other clients are quarantined than the sketches say")
    lengths = {client: float(np.sqrt(state.sketched[client].squared_norm)) for client in weights}
    length = sum(weight * lengths[client] for client, weight in weights.items())
    moved = {client: abs(weight - given[client]) * max(lengths[client], length) for client, weight in weights.items()}
    worst, low = max(moved, key=lambda client: moved[client]), min(given.values())
    off = f"the weight of {quoted(worst, 60)} is {given[worst]:.6g}, and the sketches give {weights[worst]:.6g}"
    require(low >= 0 and sum(moved.values()) <= WEIGHT_ROUNDING * length, off)
    low, high = SECOND.norm_ratio_range(PROBABILITY_OF_ERROR)
    for client in [client for client, weight in given.items() if weight > 0]:
        whose = f"of {quoted(client, 60)}"
        sent: Any = state.replies[SecondDraw].get(client)
        require(sent is not None, f"there is no second sketch {whose}, who has weight")
        shown, norm = float(np.square(sent.sketch).sum()), state.sketched[client].squared_norm
        true = 0.99 * low * norm <= shown <= 1.01 * high * norm
        require(true, f"the second sketch {whose} shows a squared norm of {shown:.3g} for {norm:.3g}")
