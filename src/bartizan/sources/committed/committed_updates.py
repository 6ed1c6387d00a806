"""The source of a committed round: it measures by what clients sent, and combines what it fetches and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bartizan.errors import LostClients, TooFewClientsError
from bartizan.judge.judge import distorted_norms
from bartizan.measure import Projection, Rotated, Sketch
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import Norms, settled
from bartizan.source import WHOLE, AnyRule, Combined, Judgement, Reading, Roster
from bartizan.sources.committed.transcript import Transcript

TOO_FEW_DIGITS = (
    "The updates have too few digits for a committed round: they lie far from the origin, or are tiny, and would have "
    "to be measured again by their clients. Pass reference=, the model that they differ little from."
)
Deliver = Callable[[dict[str, float], Judgement], Combined]
"""Fetches the clients with weight, and returns their sum; LostClients by place in the roster."""


class CommittedUpdates:
    """Updates whose sketches are here, as clients sent them, and whose numbers are not."""

    def __init__(self, transcript: Transcript, rule: AnyRule, deliver: Deliver) -> None:
        self.transcript, self.rule, self.deliver = transcript, rule, deliver
        self.ids = sorted(transcript.sketched)
        sent, layout = [transcript.sketched[client] for client in self.ids], transcript.form.layout
        if not sent:
            raise TooFewClientsError("No client sent a sketch.", failed=transcript.failed())
        self.norms, self.sketches = np.array([one.squared_norm for one in sent]), np.array([one.sketch for one in sent])
        sizes, failed = np.array([one.size for one in sent]), transcript.failed()
        roster = Roster(len(sent), layout.dim, layout.widest, ids=self.ids, sizes=sizes, failed=failed)
        lost = transcript.lost()
        self.roster = roster.without({at: lost[client] for at, client in enumerate(self.ids) if client in lost})
        if not rule.needs_distances:  # then `judge` sees the norms alone
            every = self.measure(transcript.sketch, transcript.seed).on_host()
            self.roster = self.roster.without(distorted_norms(self, every))

    def refuses(self, rule: AnyRule, sketch: Sketch) -> str | None:
        return refusal(rule, sketch)

    def settle(self, rule: AnyRule, sketch: Sketch | str, seed: int | None) -> tuple[Sketch, int]:
        own = self.transcript
        return settled(own.sketch, rule.needs_distances, lambda: False), own.seed

    def measure(self, sketch: Sketch, seed: int, reading: Reading = WHOLE) -> Measurements:
        if reading.about is not None or reading.scale is not None:
            raise ValueError(TOO_FEW_DIGITS)
        own = range(self.roster.n_sent) if reading.clients is None else reading.clients
        rows = [client for client in own if client not in self.roster.quarantined]
        sketches = self.sketches[rows, :0] if isinstance(sketch, Norms) else self.sketches[rows]
        layout, centred = self.transcript.form.layout, any(self.transcript.opening.reference)
        short_of = self.transcript.sketch.short_of_digits(layout, centred=centred)
        return Measurements(tuple(rows), self.norms[rows], sketches, None, None, short_of, None, sketch, seed)

    def explain(self, clients: Sequence[int]) -> dict[int, str]:
        limit = f"too large: squares of such updates overflow {self.roster.dtype}"
        return {client: f"its squared norm of {self.norms[client]:.3g} is {limit}" for client in clients}

    def combine(self, judgement: Judgement) -> Combined:
        if judgement.decision.noise:
            raise ValueError("A committed round adds no noise, which nobody could check: take noise=0.")
        weights = zip(judgement.clients, judgement.decision.weights.tolist(), strict=True)
        try:
            return self.deliver({self.ids[client]: weight for client, weight in weights}, judgement)
        except LostClients as lost:
            if problem := too_many_lost(self.rule, self.transcript):
                raise TooFewClientsError(problem, self.roster.without(lost.reasons).quarantined) from None
            raise


def too_many_lost(rule: AnyRule, transcript: Transcript) -> str:
    """Return why the round is refused where more clients than f were lost after they had sketched; empty otherwise."""
    f, out = rule.max_byzantine(), len(transcript.lost())
    if f is None or out <= f:
        return ""
    return f"{out} clients withheld or changed what they committed to, more than n_byzantine={f}."


def refusal(rule: AnyRule, sketch: Sketch | str) -> str | None:
    """Return why a committed round can't have this rule and sketch; None if it can."""
    if rule.needs_trusted:
        return f"{rule!r} needs an update that the server trusts, and clients could not check which."
    if rule.ends_coordinate_wise():
        return f"{rule!r} needs every coordinate of all clients, and here only those with weight send theirs."
    if isinstance(sketch, (Projection, Norms, str)):
        return None
    return f"A committed round needs a projection such as {Rotated()!r}, which clients compute alone; got {sketch!r}."
