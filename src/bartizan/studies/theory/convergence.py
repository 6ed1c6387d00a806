"""Training under attack beside the bounds of Theorems 3.8 and 3.10, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bartizan._util.types import Floats
from bartizan.sketch import Exact, Rotated, distortion
from bartizan.studies.theory import aggregation_error as aggregation
from bartizan.studies.theory.bounds import convex_step, nonconvex_step
from bartizan.studies.theory.ledger import Result
from bartizan.studies.theory.problems import PROBLEMS, Problem, Quadratic
from bartizan.studies.theory.scenes import ATTACKS, KAPPA, SIGMA, TRIES, Attack, Clients, Server, rule_named

M, DIM, K, DELTA = 50, 4096, 2048, 0.05
NOISY = 512  # coordinates that the noise has
LENGTHS = (0.0, 3.0, 10.0, 30.0)  # of the common gradients that c is taken from; a training begins at 26 or 5
RULES = ("krum", "bulyan", "geometric-median", "mca")
FEWER = ("sign-flip", "foe", "alie", "ipm", "min-max", "min-sum")
HORIZONS = (16, 32, 64, 128)


@dataclass(frozen=True)
class Cell:
    """One training: its curves are means over the seeds."""

    problem: str
    rule: str
    projected: bool
    n_byzantine: int
    attack: str
    rounds: int
    seeds: int
    sigma: float = SIGMA
    kappa: float = KAPPA
    n_clients: int = M
    dim: int = DIM
    k: int = K
    noisy: int = NOISY
    tries: int = TRIES
    """Of the attacks that search: what is measured depends on it."""

    @property
    def b(self) -> float:
        return self.n_byzantine / self.n_clients

    @property
    def eps(self) -> float:
        """What the theorem grants a Gaussian projection in all rounds; 0 where nothing is projected."""
        return distortion(self.k, self.n_clients, DELTA, self.rounds) if self.projected else 0.0


def cells(quick: bool) -> list[Cell]:
    """Every attack at b = 0.3, the searches on one problem; `FEWER` at 0.1, nobody at 0; then horizons for the rate."""
    rounds, seeds = (12, 1) if quick else (20, 2)
    attacks = {0.0: ("none",), 0.1: ("ipm", "alie") if quick else FEWER, 0.3: ("ipm", "alie") if quick else ATTACKS}
    found = [
        Cell(problem, rule, projected, round(b * M), attack, rounds, seeds)
        for problem in PROBLEMS
        for rule in (RULES[2:3] if quick else RULES)
        for projected in (False, True)
        for b in attacks
        for attack in attacks[b]
        if problem == "strongly convex" or not Attack(attack).knows_the_rule
    ]
    if quick:
        return found
    for rule, f, attack in (("mean", 0, "none"), ("geometric-median", 15, "ipm")):
        found += [Cell("non-convex", rule, False, f, attack, T, seeds) for T in HORIZONS]
        found.append(Cell("strongly convex", rule, False, f, attack, 4 * HORIZONS[-1], seeds))
    return found


def measure(cell: Cell) -> Result:
    """Squared distances to the minimum or squared gradients, losses, and aggregation errors, by round; and c.

    c comes from elsewhere (`calibrated`): taken from these curves, the bound that it gives would hold whatever they do.
    """
    problem = PROBLEMS[cell.problem].of(cell.dim)
    clients = Clients.draw(cell.n_clients, cell.dim, cell.noisy, cell.sigma, cell.kappa)
    rule = rule_named(cell.rule, cell.n_byzantine)
    try:
        rule.check(cell.n_clients)
    except ValueError as refused:
        return {"refused": str(refused)}
    curves = np.mean([_train(cell, problem, clients, seed) for seed in range(cell.seeds)], axis=0)
    return {
        "c": calibrated(cell.rule, cell.n_clients, cell.n_byzantine, cell.dim, cell.noisy),
        "spread": clients.spread(cell.n_byzantine),
        "measured": curves[0].tolist(),
        "losses": curves[1].tolist(),
        "errors": curves[2, :-1].tolist(),
    }


@lru_cache(maxsize=64)
def calibrated(rule: str, n_clients: int, n_byzantine: int, dim: int, noisy: int) -> float:
    """The exact rule's c at this b, before any training: other clients, other draws, gradients of several lengths."""
    if not n_byzantine:
        return 0.0
    alike = [
        aggregation.Cell(rule, n_clients, n_byzantine, length, noisy, dim, K, 2, aggregation.ATTACKS, calibrated=True)
        for length in LENGTHS
    ]
    return max(aggregation.calibrated(cell) for cell in alike)


def _train(cell: Cell, problem: Problem, clients: Clients, seed: int) -> Floats:
    """(3, rounds + 1): the squared distance or gradient, the loss, and the squared error of the round that follows."""
    rng = np.random.default_rng(seed)
    server = Server(rule_named(cell.rule, cell.n_byzantine), Rotated(cell.k) if cell.projected else Exact(), rng)
    attack, f = Attack(cell.attack), cell.n_byzantine
    w, found = problem.start(), np.zeros((3, cell.rounds + 1))
    for t in range(cell.rounds + 1):
        common = problem.gradient(w)
        found[:2, t] = (w @ w if isinstance(problem, Quadratic) else common @ common), problem.value(w)
        if t == cell.rounds:
            break
        gradients = clients.gradients(common, rng)
        mean = gradients[f:].mean(axis=0)
        attack.lie(gradients, f, server)
        update = server(gradients)
        found[2, t] = ((update - mean) ** 2).sum()
        eta = step(problem, t, cell.rounds)
        assert eta <= 1 / problem.smoothness, "the theorems suppose eta <= 1/L"
        w = w - eta * update
    return found


def step(problem: Problem, t: int, rounds: int) -> float:
    if isinstance(problem, Quadratic):
        return convex_step(t, problem.convexity, problem.smoothness)
    return nonconvex_step(problem.smoothness, rounds)
