"""One simulated round: honest clients of known noise and disagreement, an attack, and a server with a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from bartizan import attacks
from bartizan._util.types import Floats
from bartizan.aggregate import Aggregator
from bartizan.attacks import needs
from bartizan.rules import Rule
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch import Exact, Sketch, distortion

Result = dict[str, Any]
"""The measurements of one case; JSON has them as an object."""
TRIES = 16  # of the attacks that try their factors on the server's own rule
ATTACKS = tuple(
    name for name in attacks.ATTACKS.built_in if name != "none" and needs(attacks.attack(name)) <= {"aggregator"}
)
"""Attacks that know the honest updates and at most the rule; `projection_attacks` has those on the sketch."""
SIGMA = KAPPA = 1.0
DELTA = 0.05


class Setting:
    """The settings that cases have in common."""

    n_clients: int
    n_byzantine: int
    k: int

    @property
    def b(self) -> float:
        return self.n_byzantine / self.n_clients

    @property
    def eps(self) -> float:
        """The theorem's distortion of a Gaussian projection in one round."""
        return distortion(self.k, self.n_clients, DELTA)


@dataclass(frozen=True, eq=False)
class HonestClients:
    """M clients whose gradients are a common one plus an offset of their own plus fresh noise.

    The offsets sum to 0 and the longest is kappa; the noise has E|noise|^2 = sigma^2, on `noisy` coordinates.
    """

    offsets: Floats
    noisy: int
    sigma: float
    kappa: float

    @classmethod
    def draw(cls, n_clients: int, dim: int, noisy: int, sigma: float, kappa: float, seed: int = 0) -> HonestClients:
        # Another stream than the noise's: otherwise noise on all coordinates would equal the offsets.
        offsets = np.random.default_rng((seed, 2)).normal(size=(n_clients, dim))
        offsets -= offsets.mean(axis=0)
        offsets *= kappa / np.linalg.norm(offsets, axis=1).max()
        return cls(offsets, noisy, sigma, kappa)

    def gradients(self, common: Floats, rng: np.random.Generator) -> Floats:
        return self._noisy(common + self.offsets, rng)

    def trusted(self, common: Floats, rng: np.random.Generator) -> Floats:
        """Return the gradient of a server with representative data: noise, and no offset."""
        return self._noisy(common[None].copy(), rng)[0]

    def _noisy(self, rows: Floats, rng: np.random.Generator) -> Floats:
        n, p = rows.shape
        rows[:, :: p // self.noisy] += rng.normal(size=(n, self.noisy)) * (self.sigma / np.sqrt(self.noisy))
        return rows

    def spread(self, n_byzantine: int) -> float:
        r"""Return the definition's :math:`\nu^2 = \max_{i,j} E\|g_i - g_j\|^2` of the honest, who come last."""
        x = self.offsets[n_byzantine:]
        squares = (x * x).sum(axis=1)
        return float(2 * self.sigma**2 + (squares[:, None] + squares - 2 * x @ x.T).max())


@lru_cache(maxsize=2)
def honest_clients(n_clients: int, dim: int, noisy: int, seed: int = 0) -> HonestClients:
    """Return honest clients with sigma and kappa 1; the same for the same arguments."""
    return HonestClients.draw(n_clients, dim, noisy, SIGMA, KAPPA, seed)


def common_gradient(dim: int, length: float) -> Floats:
    return np.full(dim, length / math.sqrt(dim))


@dataclass(frozen=True, eq=False)
class Server:
    """A rule with a sketch, drawn afresh at every call; callable, as attacks that know the rule need it."""

    rule: Rule | CoordinateWise
    sketch: Sketch
    rng: np.random.Generator
    trusted: Floats | None = None

    def __call__(self, updates: Floats) -> Floats:
        trusted = self.trusted if self.rule.needs_trusted else None
        return Aggregator(self.rule, self.sketch)(updates, seed=int(self.rng.integers(2**63)), trusted=trusted).update


@dataclass(frozen=True)
class Attack:
    """An attack by name, with at most one setting: "ipm factor=1000"."""

    name: str

    @property
    def knows_the_rule(self) -> bool:
        return "aggregator" in needs(self._function())

    def overwrite(self, gradients: Floats, n_byzantine: int, server: Server) -> None:
        """Overwrite the rows of the first `n_byzantine` clients; the attack never knows the sketch's seed."""
        if not n_byzantine:
            return
        settings = {"aggregator": server, "tries": TRIES} if self.knows_the_rule else {}
        honest = gradients[n_byzantine:]
        gradients[:n_byzantine] = self._function()(honest, n_byzantine, server.rng, **settings)

    def _function(self) -> Any:
        name, _, setting = self.name.partition(" ")
        key, _, value = setting.partition("=")
        return attacks.attack(name, **({key: float(value)} if key else {}))


def servers_of(rule: Rule | CoordinateWise, sketch: Sketch) -> dict[str, Callable[..., Server]]:
    """Return constructors of an exact server and, if the rule can be projected, of a projected one."""
    servers: dict[str, Callable[..., Server]] = {"exact": partial(Server, rule, Exact())}
    if isinstance(rule, Rule):
        servers["projected"] = partial(Server, rule, sketch)
    return servers


def mean_errors(
    servers: Mapping[str, Callable[..., Server]],
    attack_names: Sequence[str],
    f: int,
    clients: HonestClients,
    common: Floats,
    seeds: Sequence[int],
) -> dict[str, dict[str, float]]:
    """Return squared distances to the honest mean by server and attack, mean over the seeds.

    All servers get the same honest gradients. An attack that tries the rule searches against each server. What it found
    against the first one, which is exact, is also tried on the others, and the larger error counts: a search against
    sketches that are drawn afresh at every try is misled by their noise.
    """
    errors = {server: dict.fromkeys(attack_names, 0.0) for server in servers}

    def error(server: Server) -> float:
        squared = float(((server(gradients) - mean) ** 2).sum())
        return squared if math.isfinite(squared) else math.inf

    for seed in seeds:
        gradients = clients.gradients(common, np.random.default_rng(seed))
        mean = gradients[f:].mean(axis=0)
        trusted = clients.trusted(common, np.random.default_rng((seed, 1)))
        for name in attack_names:
            attack, rng, found = Attack(name), np.random.default_rng((seed, 3)), False
            for kind, made in servers.items():
                server, worst = made(rng=rng, trusted=trusted), 0.0
                if found:
                    worst = error(server)
                if not found or attack.knows_the_rule:
                    attack.overwrite(gradients, f, server)
                    worst, found = max(worst, error(server)), True
                errors[kind][name] += worst / len(seeds)
    return errors
