"""Liars of one kind against one rule: the honest clients' noise and disagreement are known, as the theorems want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan import names
from bartizan.aggregate import Aggregator
from bartizan.attacks import needs, needs_aggregator
from bartizan.coordinatewise import CoordinateWise
from bartizan.rules import Rule
from bartizan.sketch import Sketch
from bartizan.types import Floats

TRIES = 6  # of the attacks that try their factors on the server's own rule
ATTACKS = tuple(name for name in names.ATTACKS if name != "none" and needs(names.attack(name)) <= {"aggregator"})
"""Those that know the honest updates and at most the rule; who aims at the sketch is tried in theory/adaptive.py."""
LIMITS = {"mda": {"max_nodes": 5000}}  # a search that would take minutes is a refusal here


@dataclass(frozen=True, eq=False)
class Clients:
    """M clients whose gradients are a common one, an offset of their own and fresh noise.

    The offsets sum to 0 and the longest is kappa; the noise has E|noise|^2 = sigma^2, on `noisy` coordinates.
    """

    offsets: Floats
    noisy: int
    sigma: float
    kappa: float

    @classmethod
    def draw(cls, n_clients: int, dim: int, noisy: int, sigma: float, kappa: float, seed: int = 0) -> Clients:
        offsets = np.random.default_rng(seed).normal(size=(n_clients, dim))
        offsets -= offsets.mean(axis=0)
        offsets *= kappa / np.linalg.norm(offsets, axis=1).max()
        return cls(offsets, noisy, sigma, kappa)

    def gradients(self, common: Floats, rng: np.random.Generator) -> Floats:
        return self._noisy(common + self.offsets, rng)

    def trusted(self, common: Floats, rng: np.random.Generator) -> Floats:
        """What a server finds that has data of its own, like everyone's: noise, and no offset."""
        return self._noisy(common[None].copy(), rng)[0]

    def _noisy(self, rows: Floats, rng: np.random.Generator) -> Floats:
        n, p = rows.shape
        rows[:, :: p // self.noisy] += rng.normal(size=(n, self.noisy)) * (self.sigma / np.sqrt(self.noisy))
        return rows

    def spread(self, n_byzantine: int) -> float:
        r"""The definition's :math:`\nu^2 = \max_{i,j} E\|g_i - g_j\|^2` of the honest, who come last."""
        x = self.offsets[n_byzantine:]
        squares = (x * x).sum(axis=1)
        return float(2 * self.sigma**2 + (squares[:, None] + squares - 2 * x @ x.T).max())


def rule_named(name: str, n_byzantine: int) -> Rule | CoordinateWise:
    """
    >>> rule_named("nnm >> mca", 3)
    NNM(n_byzantine=3) >> MCA(width=None, tolerance=1e-08, max_steps=1000)
    """
    settings: dict[str, Any] = LIMITS.get(name, {})
    try:
        return names.rule(name, n_byzantine=n_byzantine, **settings)
    except TypeError:  # it does not ask how many lie
        return names.rule(name, **settings)


@dataclass(frozen=True, eq=False)
class Server:
    """A rule behind a sketch, which is drawn afresh at every call; callable as the attacks that know it want it."""

    rule: Rule | CoordinateWise
    sketch: Sketch
    rng: np.random.Generator
    trusted: Floats | None = None

    def __call__(self, updates: Floats) -> Floats:
        trusted = self.trusted if self.rule.needs_trusted else None
        return Aggregator(self.rule, self.sketch)(updates, seed=int(self.rng.integers(2**63)), trusted=trusted).update


@dataclass(frozen=True)
class Attack:
    """By its name, and perhaps a setting: "ipm factor=1000"."""

    name: str

    @property
    def knows_the_rule(self) -> bool:
        return needs_aggregator(self._function())

    def lie(self, gradients: Floats, n_byzantine: int, server: Server) -> None:
        """Overwrite the rows of the first `n_byzantine` clients. Who knows the rule does not know the sketch's seed."""
        if not n_byzantine:
            return
        settings = {"aggregator": server, "tries": TRIES} if self.knows_the_rule else {}
        honest = gradients[n_byzantine:]
        gradients[:n_byzantine] = self._function()(honest, n_byzantine, server.rng, **settings)

    def _function(self) -> Any:
        name, _, setting = self.name.partition(" ")
        key, _, value = setting.partition("=")
        return names.attack(name, **({key: float(value)} if key else {}))
