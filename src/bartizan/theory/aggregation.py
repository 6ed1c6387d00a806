r"""The aggregator's c in :math:`E\|\hat g - \bar g\|^2 \le c b \nu^2`, under the strongest attack that we have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bartizan import names
from bartizan.coordinatewise import CoordinateWise
from bartizan.rules import Rule
from bartizan.sketch import Exact, Rotated, distortion
from bartizan.theory.bounds import aggregation_bound
from bartizan.theory.ledger import Result
from bartizan.theory.markdown import number, table
from bartizan.theory.match import ATTACKS, Attack, Clients, Server, rule_named
from bartizan.types import Floats

SIGMA = KAPPA = 1.0
DIM, K = 8192, 4096
DELTA = 0.05
RULES = (*names.RULES, "nnm >> krum", "nnm >> geometric-median", *names.COORDINATEWISE)
ROUNDING = 1e-20  # an error below this is one of rounding
SCENES = ((0.0, DIM), (3.0, DIM), (30.0, DIM), (3.0, 8))
"""How long the common gradient is, and how many coordinates the noise has."""


@dataclass(frozen=True)
class Cell:
    """One rule against all attacks, exact and projected; it is told how many lie."""

    rule: str
    n_clients: int
    n_byzantine: int
    length: float
    noisy: int
    dim: int
    k: int
    draws: int
    attacks: tuple[str, ...]

    @property
    def b(self) -> float:
        return self.n_byzantine / self.n_clients

    @property
    def eps(self) -> float:
        """What the theorem grants the projection in one round."""
        return distortion(self.k, self.n_clients, DELTA)


def clients_for(rule: str) -> int:
    """The paper's 50; SMEA looks at every set of clients, and would never be done with them."""
    return 10 if rule == "smea" else 50


def cells(quick: bool) -> list[Cell]:
    attacks = ("ipm", "alie", "gaussian") if quick else ATTACKS
    return [
        Cell(rule, M, round(b * M), length, noisy, DIM, K, 1 if quick else 4, attacks if b else ("none",))
        for rule in RULES
        for M in [clients_for(rule)]
        for b in (0.0, 0.1, 0.3)
        for length, noisy in (SCENES[1:2] if quick else SCENES)
    ]


def measure(cell: Cell) -> Result:
    """Mean squared errors over the draws by attack, and the definition's nu^2; or why the rule refuses."""
    rule, f = rule_named(cell.rule, cell.n_byzantine), cell.n_byzantine
    clients = Clients.draw(cell.n_clients, cell.dim, cell.noisy, SIGMA, KAPPA)
    common = np.full(cell.dim, cell.length / np.sqrt(cell.dim))
    servers = servers_of(rule, cell.k)
    errors = {name: dict.fromkeys(cell.attacks, 0.0) for name in servers}
    try:
        rule.check(cell.n_clients)
        for attack in cell.attacks:
            for seed in range(cell.draws):
                for name, error in errors_of(servers, Attack(attack), f, clients, common, seed):
                    errors[name][attack] += error / cell.draws
    except ValueError as refused:
        return {"refused": str(refused)}
    return {"spread": clients.spread(f), **errors}


def servers_of(rule: Rule | CoordinateWise, k: int) -> dict[str, Callable[..., Server]]:
    """Exact and projected, where the rule can be; a server still lacks its randomness and its own update."""
    servers: dict[str, Callable[..., Server]] = {"exact": partial(Server, rule, Exact())}
    if isinstance(rule, Rule):
        servers["projected"] = partial(Server, rule, Rotated(k))
    return servers


def errors_of(
    servers: Mapping[str, Callable[..., Server]], attack: Attack, f: int, clients: Clients, common: Floats, seed: int
) -> Iterator[tuple[str, float]]:
    """The servers' squared distances to the honest mean, on the same gradients."""
    rng = np.random.default_rng(seed)
    gradients = clients.gradients(common, rng)
    mean = gradients[f:].mean(axis=0)
    trusted = clients.trusted(common, np.random.default_rng((seed, 1)))
    lied = False
    for name, made in servers.items():
        server = made(rng=rng, trusted=trusted)
        if not lied or attack.knows_the_rule:
            attack.lie(gradients, f, server)
            lied = True
        error = float(((server(gradients) - mean) ** 2).sum())
        yield name, error if math.isfinite(error) else math.inf


def strongest(found: Result, sketch: str) -> tuple[str, float]:
    """The attack of the largest error, and that error."""
    attack = max(found[sketch], key=lambda name: found[sketch][name])
    return attack, found[sketch][attack]


def constant(found: Result, sketch: str, b: float) -> float:
    """The c that the strongest attack needs."""
    return strongest(found, sketch)[1] / (b * found["spread"])


def rows(results: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    lines = []
    for cell, found in results:
        line: dict[str, Any] = {
            "rule": cell.rule,
            "clients": cell.n_clients,
            "b": cell.b,
            "length": cell.length,
            "noisy": cell.noisy,
            "refused": found.get("refused", ""),
        }
        for sketch in ("exact", "projected"):
            if found.get(sketch):
                attack, error = strongest(found, sketch)
                line |= {f"{sketch}_attack": attack, f"{sketch}_error": error / found["spread"]}
                if cell.b:
                    line[f"{sketch}_c"] = constant(found, sketch, cell.b)
        if cell.b and "projected_c" in line:
            line["eps"] = cell.eps
            line["bound"] = aggregation_bound(line["exact_c"], cell.b, cell.eps, SIGMA, KAPPA)
            line["widened"] = line["projected_c"] / line["exact_c"]
            line["part_of_bound"] = line["projected_error"] * found["spread"] / line["bound"]
        lines.append(line)
    return lines


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    lines = rows(results)
    return "\n\n".join(
        (
            "c is the largest mean of |g - mean|^2 / (b nu^2) over the attacks, the common gradient being as long as\n"
            "said; the honest clients' noise and disagreement are 1. A rule whose c grows with that length has none.",
            *(
                f"### b = {b}\n\n{_table([line for line in lines if line['b'] == b])}"
                for b in sorted({line["b"] for line in lines})
            ),
        )
    )


def _table(lines: list[dict[str, Any]]) -> str:
    """Exact / projected, a column a scene; then by what the projection widened c at most, and how much of the bound."""
    value = "c" if lines[0]["b"] else "error"
    scenes = list(dict.fromkeys((line["length"], line["noisy"]) for line in lines))
    body = []
    for rule in dict.fromkeys(line["rule"] for line in lines):
        mine = [line for line in lines if line["rule"] == rule]
        if mine[0]["refused"]:
            body.append([rule, "refuses", *[""] * (len(scenes) + 1)])
            continue
        shown = {(line["length"], line["noisy"]): _both(line, value) for line in mine}
        body.append(
            [rule, *(shown.get(scene, "") for scene in scenes), _most(mine, "widened"), _most(mine, "part_of_bound")]
        )
    heads = [f"{value}, length {length:g}, noise in {noisy}" for length, noisy in scenes]
    return table(["rule, exact / projected", *heads, "widened by", "most of the bound"], body)


def _both(line: dict[str, Any], value: str) -> str:
    found = [line[f"{sketch}_{value}"] for sketch in ("exact", "projected") if f"{sketch}_{value}" in line]
    return " / ".join("0" if one < ROUNDING else number(one) for one in found)


def _most(lines: list[dict[str, Any]], key: str) -> str:
    return number(max((line[key] for line in lines if key in line), default=None))
