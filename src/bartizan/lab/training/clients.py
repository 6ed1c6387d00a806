"""The clients of a run: what each of them sends in a round, many computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bartizan._util.types import Array
from bartizan.lab.training import gradients as passes
from bartizan.lab.training import random_streams as draws
from bartizan.lab.training.flat_model import Flat
from bartizan.lab.training.local_work import Local, OneGradient, Work, batches
from bartizan.lab.training.torch_import import Tensor, nn, torch

if TYPE_CHECKING:
    from bartizan.lab.data.device_images import OnDevice


class Sent(NamedTuple):
    """What m clients send, a row each, and their mean training losses."""

    updates: Tensor  # (m, size)
    losses: Tensor  # (m,)


class _Cohort(NamedTuple):
    """Clients that are computed at once, and the examples of their steps, (steps, batch) each; the longest first."""

    clients: list[int]
    drawn: list[Array]
    round: int


class Clients:
    """Clients with a part of the images each.

    A poisoned client has a part like the others: its poisoned copies stand among the images, behind the true ones.
    """

    def __init__(
        self,
        model: nn.Module,
        images: OnDevice,
        parts: Sequence[Tensor],
        *,
        batch: int = 32,
        work: Work = OneGradient(),
        seed: int = 0,
        augment: bool = False,
        at_once: int | None = None,
        compiled: bool = False,
        precision: str = "float32",
    ) -> None:
        """Compute `at_once` clients together; by default as many as fit into the cache or the GPU.

        On a GPU their passes can be compiled, and run in bfloat16.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}.")
        empty = [m for m, part in enumerate(parts) if not len(part)]
        if empty:
            raise ValueError(f"Every client needs at least one example, client {empty[0]} has none.")
        self.model, self.images, self.flat = model, images, Flat.of(model)
        self.parts = [part.cpu().numpy() for part in parts]
        self.batch, self.work, self.seed, self.augment = batch, work, seed, augment
        device = images.labels.device
        self.shared, self.own = passes.chosen(model, device, compiled=compiled, precision=precision)
        self.at_once = at_once or passes.at_once(model, batch, images.shape, device)

    def updates(self, weights: Tensor, clients: Sequence[int], round: int) -> Sent:
        """What these clients send when the server's vector is `weights`; to be subtracted from it."""
        drawn = [batches(self.parts[c], self.batch, self.work, self._rng("batches", round, c)) for c in clients]
        # Those with the most steps first: whoever still has some is then in front.
        order = sorted(range(len(clients)), key=lambda i: -len(drawn[i]))
        sent = Sent(weights.new_empty(len(clients), self.flat.size), weights.new_empty(len(clients)))
        for start in range(0, len(clients), self.at_once):
            some = order[start : start + self.at_once]
            rows = slice(start, start + len(some))
            cohort = _Cohort([clients[i] for i in some], [drawn[i] for i in some], round)
            sent.losses[rows] = self._work(weights, cohort, sent.updates[rows])
        if order == sorted(order):
            return sent
        back = torch.tensor(np.argsort(order), device=weights.device)
        return Sent(sent.updates[back], sent.losses[back])

    def _work(self, weights: Tensor, cohort: _Cohort, out: Tensor) -> Tensor:
        """Let a cohort work, write what it sends to `out`, and give its losses."""
        n, work = self.flat.n_parameters, self.work
        augments = [self._augment(cohort.round, client) for client in cohort.clients] if self.augment else []
        first = self.shared(weights, *self._batch(cohort, 0, augments), out=out)
        if not isinstance(work, Local):
            torch.sub(weights[n:], out[:, n:], out=out[:, n:])
            return first.losses
        steps = np.array([len(drawn) for drawn in cohort.drawn])
        velocity, losses = out[:, :n].clone(), first.losses
        here = torch.cat([torch.add(weights[:n], velocity, alpha=-work.step_size), out[:, n:]], dim=1)
        for step in range(1, steps[0]):
            m = int((steps > step).sum())
            got = self.own(here[:m], *self._batch(cohort, step, augments), out=out[:m])
            torch.add(got.rows[:, :n], velocity[:m], alpha=work.momentum, out=velocity[:m])
            here[:m, :n].sub_(velocity[:m], alpha=work.step_size)
            here[:m, n:] = got.rows[:, n:]
            losses[:m] += got.losses
        torch.sub(weights, here, out=out)
        return losses / torch.from_numpy(steps).to(losses)

    def _batch(self, cohort: _Cohort, step: int, augments: list[torch.Generator]) -> tuple[Tensor, Tensor]:
        """The images and labels of those that have such a step."""
        indices = np.stack([drawn[step] for drawn in cohort.drawn if len(drawn) > step])
        where = torch.from_numpy(indices).to(self.images.labels.device)
        if not augments:
            return self.images.batch(where), self.images.labels[where]
        rows = [self.images.batch(row, augment=rng) for row, rng in zip(where, augments, strict=False)]
        return torch.stack(rows), self.images.labels[where]

    def _rng(self, purpose: str, round: int, client: int) -> np.random.Generator:
        return draws.generator(self.seed, purpose, round, client)

    def _augment(self, round: int, client: int) -> torch.Generator:
        return draws.on_device(self.images.labels.device, self.seed, "augment", round, client)
