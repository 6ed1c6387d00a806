"""Up to which share of attackers a rule holds, exact beside projected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch import Rotated
from bartizan.studies.theory.aggregation_error import RULES
from bartizan.studies.theory.ledger import Result
from bartizan.studies.theory.markdown import table
from bartizan.studies.theory.scenes import common_gradient, errors_of, room, rule_named, servers_of

LENGTH = 30.0
DIM, K = 32_768, 2048
LOUD, LOUDER = "ipm factor=1e3", "ipm factor=1e6"
ATTACKS = (LOUD, LOUDER, "ipm", "sign-flip", "foe", "min-max")
SHARES = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.16, 0.2, 0.22, 0.24, 0.3, 0.4, 0.46, 0.48, 0.5)
GROWTH = 100.0
"""A rule is broken where an attack a thousand times as large makes its squared error this many times as large. Where
the error keeps up with the attack that is a million times; where it is bounded, once."""
FAR = 4.0
"""Squared errors above this many nu^2 are farther off than honest clients are from each other. By itself that is no
breakdown: it depends on how long the common gradient is."""


@dataclass(frozen=True)
class Cell:
    """One rule with a number of attackers; told of them, or of as many as it accepts."""

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
    """As few for SMEA as it takes it seconds to look at every set of them."""
    return 12 if rule == "smea" else 50


def most_told(rule: str, n_clients: int, n_byzantine: int) -> int:
    """As many of the attackers as the rule's condition allows."""
    for f in range(n_byzantine, -1, -1):
        try:
            rule_named(rule, f).check(n_clients)
        except ValueError:
            continue
        return f
    raise ValueError(f"{rule} accepts no number of attackers among {n_clients} clients.")


def cells(quick: bool) -> list[Cell]:
    found = []
    for rule in RULES:
        M = clients_for(rule)
        attackers = sorted({max(1, round(b * M)) for b in ((0.3, 0.5) if quick else SHARES)})
        attacks, dim = (ATTACKS[:2], DIM // 4) if quick else (ATTACKS, DIM)
        found += [
            Cell(rule, M, f, most_told(rule, M, f), LENGTH, dim, K, 1 if quick else 2, attacks) for f in attackers
        ]
    return found


def measure(cell: Cell) -> Result:
    """Mean squared errors in units of nu^2, by sketch and attack; or why the rule refuses."""
    rule, f = rule_named(cell.rule, cell.told), cell.n_byzantine
    clients = room(cell.n_clients, cell.dim, cell.dim)
    common, spread = common_gradient(cell.dim, cell.length), clients.spread(f)
    servers = servers_of(rule, Rotated(cell.k))
    errors = {name: dict.fromkeys(cell.attacks, 0.0) for name in servers}
    try:
        for seed in range(cell.draws):
            for name, attack, error in errors_of(servers, cell.attacks, f, clients, common, seed):
                errors[name][attack] += error / spread / cell.draws
    except ValueError as refused:
        return {"refused": str(refused)}
    return dict(errors)


def broken(errors: dict[str, float]) -> bool:
    """Whether the error grows with the attack.

    >>> broken({LOUD: 1e6, LOUDER: 1e12}), broken({LOUD: 5.0, LOUDER: 5.1}), broken({LOUD: 1e-30, LOUDER: 1e-24})
    (True, False, False)
    """
    return errors[LOUDER] > GROWTH * max(errors[LOUD], 1.0)


@dataclass(frozen=True)
class Point:
    """Where one rule ends."""

    rule: str
    n_clients: int
    accepts: int
    """The most attackers that the rule's own condition allows."""
    most: int
    """The most attackers that were tried."""
    exact: int | None
    """The fewest attackers at which it was broken; None where it was at no number that was tried."""
    projected: int | None
    far_exact: int | None
    """The fewest attackers at which its error was above `FAR`."""
    far_projected: int | None
    refuses: int | None
    """The fewest attackers at which it gave no answer though its condition holds: a search that takes too long, or the
    condition of the rule behind a pre-aggregator."""


def points(results: Sequence[tuple[Cell, Result]]) -> list[Point]:
    found = []
    for rule in dict.fromkeys(cell.rule for cell, _ in results):
        mine = [(cell, result) for cell, result in results if cell.rule == rule]
        M, most = mine[0][0].n_clients, max(cell.n_byzantine for cell, _ in mine)
        refuses = min((cell.n_byzantine for cell, result in mine if "refused" in result), default=None)
        found.append(
            Point(
                rule,
                M,
                most_told(rule, M, M // 2),
                most,
                _first(mine, "exact", broken),
                _first(mine, "projected", broken),
                _first(mine, "exact", _far),
                _first(mine, "projected", _far),
                refuses,
            )
        )
    return found


def _first(mine: list[tuple[Cell, Result]], sketch: str, failed: Any) -> int | None:
    return min((cell.n_byzantine for cell, found in mine if sketch in found and failed(found[sketch])), default=None)


def _far(errors: dict[str, float]) -> bool:
    return max(errors.values()) > FAR


def rows(results: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    lines = []
    for cell, found in results:
        line: dict[str, Any] = {
            "rule": cell.rule,
            "clients": cell.n_clients,
            "byzantine": cell.n_byzantine,
            "b": cell.n_byzantine / cell.n_clients,
            "told": cell.told,
            "refused": found.get("refused", ""),
        }
        for sketch in ("exact", "projected"):
            if sketch in found:
                line |= {f"{sketch}_broken": broken(found[sketch]), f"{sketch}_largest": max(found[sketch].values())}
                line |= {f"{sketch}, {attack}": error for attack, error in found[sketch].items()}
        lines.append(line)
    return lines


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    heads = ["rule", "clients", "accepts b up to", "broken at b", f"error above {FAR:g} nu^2 at b", "refuses at b"]
    body = []
    for point in points(results):
        projected = not isinstance(rule_named(point.rule, 0), CoordinateWise)
        body.append(
            [
                point.rule,
                str(point.n_clients),
                f"{point.accepts / point.n_clients:.2f}" if asks(point.rule) else "any",
                _share(point.exact, point) + (f" / {_share(point.projected, point)}" if projected else ""),
                _share(point.far_exact, point) + (f" / {_share(point.far_projected, point)}" if projected else ""),
                "" if point.refuses is None else _share(point.refuses, point),
            ]
        )
    return (
        "Exact / projected. Broken: IPM a thousand times as large makes the squared error a hundred times as large or\n"
        "more. What was tried, and no more, is said of rules that were not.\n\n" + table(heads, body)
    )


def asks(rule: str) -> bool:
    """Whether a rule wants to be told how many lie."""
    return rule_named(rule, 0).max_byzantine() is not None


def _share(count: int | None, point: Point) -> str:
    """
    >>> krum = Point("krum", 50, 23, 20, exact=None, projected=25, far_exact=5, far_projected=5, refuses=None)
    >>> _share(krum.exact, krum), _share(krum.projected, krum)
    ('not up to 0.40', '0.50')
    """
    if count is not None:
        return f"{count / point.n_clients:.2f}"
    tried = point.most if point.refuses is None else point.refuses - 1
    return f"not up to {tried / point.n_clients:.2f}"
