"""Up to which share of liars a rule holds, exact beside projected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan.coordinatewise import CoordinateWise
from bartizan.theory.aggregation import DIM, KAPPA, RULES, SIGMA, K, errors_of, servers_of
from bartizan.theory.ledger import Result
from bartizan.theory.markdown import table
from bartizan.theory.match import Attack, Clients, rule_named

LENGTH = 30.0
ATTACKS = ("sign-flip", "gaussian", "ipm", "ipm factor=1000", "foe", "min-max")
BROKEN = 4.0
"""A rule has failed where its squared error is this many times the honest nu^2: no honest client is so far off."""


@dataclass(frozen=True)
class Cell:
    """One rule with a number of liars; told of them, or of as many as it accepts."""

    rule: str
    n_clients: int
    n_byzantine: int
    told: int
    length: float
    dim: int
    k: int
    draws: int
    attacks: tuple[str, ...]


def clients_for(rule: str) -> int:
    return 12 if rule == "smea" else 50


def most_told(rule: str, n_clients: int, n_byzantine: int) -> int:
    """As many of the liars as the rule's condition allows."""
    for f in range(n_byzantine, -1, -1):
        try:
            rule_named(rule, f).check(n_clients)
        except ValueError:
            continue
        return f
    raise ValueError(f"{rule} accepts no number of liars among {n_clients} clients.")


def cells(quick: bool) -> list[Cell]:
    found = []
    for rule in RULES:
        M = clients_for(rule)
        liars = range(0, M // 2 + 1, max(1, M // 10 if quick else 1))
        attacks = ATTACKS[2:4] if quick else ATTACKS
        found += [
            Cell(rule, M, f, most_told(rule, M, f), LENGTH, DIM, K, 1, attacks if f else ("none",)) for f in liars
        ]
    return found


def measure(cell: Cell) -> Result:
    """The error of the strongest attack in units of nu^2, by sketch; or why the rule refuses."""
    rule, f = rule_named(cell.rule, cell.told), cell.n_byzantine
    clients = Clients.draw(cell.n_clients, cell.dim, cell.dim, SIGMA, KAPPA)
    common = np.full(cell.dim, cell.length / np.sqrt(cell.dim))
    servers = servers_of(rule, cell.k)
    worst = dict.fromkeys(servers, 0.0)
    try:
        for attack in cell.attacks:
            for seed in range(cell.draws):
                for name, error in errors_of(servers, Attack(attack), f, clients, common, seed):
                    worst[name] = max(worst[name], error / clients.spread(f))
    except ValueError as refused:
        return {"refused": str(refused)}
    return dict(worst)


@dataclass(frozen=True)
class Point:
    """Where one rule ends."""

    rule: str
    n_clients: int
    accepts: int
    """The most liars that the rule's own condition allows."""
    exact: int | None
    """The fewest liars at which it failed; None where it never did."""
    projected: int | None
    refuses: int | None
    """The fewest liars at which it gave no answer though its condition holds: a search that takes too long, or the
    condition of the rule behind a pre-aggregator."""


def points(results: Sequence[tuple[Cell, Result]]) -> list[Point]:
    found = []
    for rule in dict.fromkeys(cell.rule for cell, _ in results):
        mine = [(cell, result) for cell, result in results if cell.rule == rule]

        def first(sketch: str, mine: list[tuple[Cell, Result]] = mine) -> int | None:
            failed = (cell.n_byzantine for cell, result in mine if result.get(sketch, 0.0) > BROKEN)
            return min(failed, default=None)

        refuses = min((cell.n_byzantine for cell, result in mine if "refused" in result), default=None)
        M = mine[0][0].n_clients
        found.append(Point(rule, M, most_told(rule, M, M // 2), first("exact"), first("projected"), refuses))
    return found


def rows(results: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    return [
        {
            "rule": cell.rule,
            "clients": cell.n_clients,
            "byzantine": cell.n_byzantine,
            "b": cell.n_byzantine / cell.n_clients,
            "told": cell.told,
            "exact": found.get("exact"),
            "projected": found.get("projected"),
            "refused": found.get("refused", ""),
        }
        for cell, found in results
    ]


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    return table(
        ["rule", "clients", "accepts b up to", "fails at b, exact", "fails at b, projected", "refuses at b"],
        [
            [
                point.rule,
                str(point.n_clients),
                _share(point.accepts, point) if asks(point.rule) else "any",
                _share(point.exact, point),
                "can't be projected"
                if isinstance(rule_named(point.rule, 0), CoordinateWise)
                else _share(point.projected, point),
                "" if point.refuses is None else _share(point.refuses, point),
            ]
            for point in points(results)
        ],
    )


def asks(rule: str) -> bool:
    """Whether a rule wants to be told how many lie."""
    return rule_named(rule, 0).withstands() is not None


def _share(count: int | None, point: Point) -> str:
    return "never" if count is None else f"{count / point.n_clients:.2f}"
