"""Clients that never wait, in virtual time: a run whose server judges a buffer instead of rounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bartizan._util import machine
from bartizan.errors import TooFewClientsError
from bartizan.lab.config import build_parts
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.torch_import import Tensor, torch
from bartizan.lab.training.reproducible import generator, round_seed
from bartizan.lab.training.training_loop import Training


class Work(NamedTuple):
    """A client's work: when it ends, on which version it began, and its update and loss, None until it is trained."""

    end: float
    client: int
    version: int
    update: Tensor | None = None
    loss: float = float("nan")


class BufferedTraining(Training):
    """One experiment whose clients never wait: as many as take part work at a time, and whoever is done begins anew.

    With all clients taking part a client begins again at once, from the version of that moment; with fewer, an idle one
    is drawn. Attackers take the time of the fastest, divided by the setting `rate` of their attack, and decide what
    they send when the buffer is judged, so that they see the honest updates in it.
    """

    def __init__(self, experiment: Experiment, device: str) -> None:
        super().__init__(experiment, device)
        self.buffer, note = build_parts.buffer_of(experiment, round_seed(experiment.seed, "projection", 0))
        self.first_notes.append(note)
        self.now, self.groups = 0.0, 0
        self.working: list[Work] = []
        self.done: list[int] = []
        """Clients that have sent, and whose place was not taken yet."""
        self.kept: dict[int, tuple[Tensor, int, float]] = {}
        """The updates that the buffer remembers, with version and data size."""

    def state(self) -> tuple[dict[str, Any], tuple[float, ...], bool, dict[str, Any]]:
        server, history, diverged, clients = super().state()
        work = [tuple(one) for one in self.working]
        clients |= {
            "version": self.buffer.version,
            "now": self.now,
            "groups": self.groups,
            "done": self.done,
            "working": work,
            "kept": self.kept,
            "fingerprints": self.buffer.fingerprints,
        }
        return server, history, diverged, clients

    def restore(
        self, server: dict[str, Any], history: tuple[float, ...], diverged: bool, clients: dict[str, Any]
    ) -> None:
        super().restore(server, history, diverged, clients)
        self.now, self.groups = float(clients["now"]), int(clients["groups"])
        self.working = [Work(*one) for one in clients["working"]]
        self.kept, self.done = dict(clients["kept"]), list(clients["done"])
        self.buffer.restore(int(clients["version"]), self.kept, history, clients["fingerprints"])

    def round(self, t: int) -> dict[str, Any]:
        """Let time pass until the buffer is full and judge it; return the fields of the line."""
        (sent, loss), train = machine.timed(lambda: self._arrived(t), self.device)
        line: dict[str, Any] = {"round": t, "clients": sorted(sent), "weights": None, "quarantined": {}}
        line |= {"time": self.now, "seconds": {"train": train}, "loss": loss, "norm": None, "step": 0.0}
        notes = list(self.first_notes) if t == 1 else []
        sizes = self._sizes(list(range(len(self.population.parts))))
        size = dict.fromkeys(sent, 1.0) if sizes is None else {client: float(sizes[client]) for client in sent}
        for client, (update, version) in sorted(sent.items()):
            self.buffer.add(update, client, version=version, size=size[client])
        taken = {client: (*sent[client], size[client]) for client in self.buffer.clients}
        try:
            result, spent = machine.timed(self.buffer.aggregate, self.device)
        except TooFewClientsError as refused:
            self.server.skip()
            fingerprints = self.buffer.fingerprints
            self.buffer.restore(self.buffer.version, self.kept, self.history, fingerprints)  # without the entries
            line["quarantined"] = {str(client): why for client, why in refused.quarantined.items()}
            notes.append(f"The judgement was refused and the model kept: {refused.problem}")
        else:
            line |= {"clients": list(result.clients), "ages": list(result.ages), "seed": str(result.seed)}
            line["seconds"] |= result.seconds
            line["seconds"]["combine"] += spent - sum(result.seconds.values())
            line |= self._move(result, list(range(len(self.population.parts))))
            self.kept |= taken
            self.kept = {client: self.kept[client] for client in self.buffer.remembered}
        self.diverged = not bool(self.server.weights.isfinite().all())
        if t % self.experiment.evaluation.every == 0 or t == self.experiment.rounds:
            line |= self._evaluate()
        text = " ".join(note for note in notes if note)
        return line | ({"note": text} if text else {})

    def _arrived(self, t: int) -> tuple[dict[int, tuple[Tensor, int]], float | None]:
        """Return the update and version of each client that arrives before the buffer is judged, and the mean loss."""
        rng = generator(self.experiment.seed, "virtual time", t)
        arrived: dict[int, Work] = {}
        known = self.buffer.remembered.keys()
        rule = self.buffer.aggregator.rule
        while len(arrived) < self.buffer.size or not rule.admits(len(known | arrived.keys())):
            if not any(work.end == self.now for work in self.working):  # what ends together is judged first
                self._begin(rng)
            self._train()
            work = min(self.working, key=lambda one: (one.end, one.client))
            self.working.remove(work)
            self.now, arrived[work.client] = work.end, work
            self.done.append(work.client)
        updates = {work.client: work.update for work in (*self.working, *arrived.values()) if work.update is not None}
        sent = {client: (updates[client], work.version) for client, work in arrived.items() if work.update is not None}
        losses = [work.loss for client, work in arrived.items() if not self._attacks(client)]
        attackers = sorted(arrived.keys() - sent.keys())
        if attackers:
            seen = sorted(sent) or sorted(updates)
            honest = torch.stack([updates[client] for client in seen])
            made = self._attack(honest, seen, attackers, self.buffer.aggregator, t)
            sent |= {client: (row, arrived[client].version) for client, row in zip(attackers, made, strict=True)}
        return sent, float(np.mean(losses)) if losses else None

    def _begin(self, rng: np.random.Generator) -> None:
        """Let those that are done begin on the current version, or where fewer take part idle ones that are drawn."""
        given = self.experiment.clients
        if given.taking_part < given.count or not self.working:
            busy = {work.client for work in self.working}
            idle = [one for one in range(given.count) if one not in busy]
            self.done = sorted(rng.choice(idle, given.taking_part - len(busy), replace=False).tolist())
        times = self.now + self.population.durations[self.done]
        self.working += [Work(float(end), one, self.buffer.version) for end, one in zip(times, self.done, strict=True)]
        self.done = []

    def _train(self) -> None:
        """Train all clients that have begun, and are not trained yet, on the model of this moment."""
        waiting = [
            work for work in self.working if work.update is None and (self.poison or not self._attacks(work.client))
        ]
        if not waiting:
            return
        self.groups += 1
        computed = self.clients.updates(self.server.weights, [work.client for work in waiting], self.groups)
        for work, update, loss in zip(waiting, computed.updates, computed.losses.tolist(), strict=True):
            boost = self.poison.boost if self.poison and self._attacks(work.client) else 1.0
            done = work._replace(update=update.clone() if boost == 1 else boost * update, loss=loss)
            self.working[self.working.index(work)] = done

    def _warm_up(self) -> None:
        """Leave the kernels to the first judgement, whose time contains them."""

    def _attacks(self, client: int) -> bool:
        return client in self.population.byzantine
