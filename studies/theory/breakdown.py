"""The share of attackers at which a rule breaks down, exact beside projected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bartizan._util.schema import KEY
from bartizan.rules.coordinatewise import CoordinateWise
from bartizan.sketch import Rotated
from studies.plotting import COLOURS, GREY, new_figure
from studies.rules_by_name import most_accepted, rule_named
from studies.tables import markdown_table
from studies.theory import simulated_round as simulation
from studies.theory.aggregation_error import RULES

TITLE = "Breakdown: the share of attackers at which a rule fails"


M, LENGTH = 50, 30.0
DIM, K = 32_768, 2048
LOUD, LOUDER = "ipm factor=1e3", "ipm factor=1e6"
ATTACKS = (LOUD, LOUDER, "ipm", "sign-flip", "foe", "min-max")
SHARES = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.16, 0.2, 0.22, 0.24, 0.3, 0.4, 0.46, 0.48, 0.5)
GROWTH = 100.0
"""A rule is broken if an attack a thousand times as large makes its squared error this many times as large. An
unbounded error grows a million times, a bounded one does not."""
LARGE_ERROR = 4.0
"""Squared errors above this many nu^2 exceed the distances between honest clients. By itself that is no breakdown: it
depends on the length of the common gradient."""


@dataclass(frozen=True)
class BreakdownCase:
    """One rule with `n_byzantine` attackers, set to withstand `n_assumed`: as many of them as it accepts."""

    rule: str
    n_clients: int
    n_byzantine: int
    n_assumed: int = field(metadata={KEY: "told"})
    length: float
    dim: int
    k: int
    draws: int
    attacks: tuple[str, ...]


Results = Sequence[tuple[BreakdownCase, simulation.Result]]


def cases() -> list[BreakdownCase]:
    """Return every rule at every share of attackers; SMEA, which goes through every subset, with 12 clients."""
    found = []
    for rule in RULES:
        n = 12 if rule == "smea" else M
        for f in sorted({max(1, round(b * n)) for b in SHARES}):
            found.append(BreakdownCase(rule, n, f, most_accepted(rule, n, f), LENGTH, DIM, K, 2, ATTACKS))
    return found


def measure(case: BreakdownCase) -> simulation.Result:
    """Return mean squared errors in units of nu^2, by sketch and attack; or why the rule refuses."""
    clients, f = simulation.honest_clients(case.n_clients, case.dim, case.dim), case.n_byzantine
    servers = simulation.servers_of(rule_named(case.rule, case.n_assumed), Rotated(case.k))
    common, spread = simulation.common_gradient(case.dim, case.length), clients.spread(f)
    try:
        errors = simulation.mean_errors(servers, case.attacks, f, clients, common, range(case.draws))
    except ValueError as refused:
        return {"refused": str(refused)}
    return {sketch: {attack: error / spread for attack, error in of.items()} for sketch, of in errors.items()}


def broken(errors: dict[str, float]) -> bool:
    """Return whether the error grows with the attack.

    >>> broken({LOUD: 1e6, LOUDER: 1e12}), broken({LOUD: 5.0, LOUDER: 5.1}), broken({LOUD: 1e-30, LOUDER: 1e-24})
    (True, False, False)
    """
    return errors[LOUDER] > GROWTH * max(errors[LOUD], 1.0)


def far(errors: dict[str, float]) -> bool:
    """Return whether an error exceeds `LARGE_ERROR`."""
    return max(errors.values()) > LARGE_ERROR


@dataclass(frozen=True)
class BreakdownPoint:
    """The numbers of attackers at which one rule fails; None where it did not."""

    rule: str
    n_clients: int
    accepts: int  # at most, by the rule's own condition
    most: int  # that were tried
    exact: int | None  # the fewest at which it was broken
    projected: int | None
    far_exact: int | None  # the fewest at which its error was above `LARGE_ERROR`
    far_projected: int | None
    refuses: int | None
    """The fewest attackers at which it gave no answer though its condition holds: a search that takes too long, or the
    condition of the rule behind a pre-aggregator."""


def points(results: Results) -> list[BreakdownPoint]:
    """Return the breakdown point of each rule."""
    found = []
    for rule in dict.fromkeys(case.rule for case, _ in results):
        own = [(case, result) for case, result in results if case.rule == rule]
        n = own[0][0].n_clients
        found.append(
            BreakdownPoint(
                rule,
                n,
                accepts=most_accepted(rule, n, n // 2),
                most=max(case.n_byzantine for case, _ in own),
                exact=_first(own, "exact", broken),
                projected=_first(own, "projected", broken),
                far_exact=_first(own, "exact", far),
                far_projected=_first(own, "projected", far),
                refuses=_first(own, "refused", bool),
            )
        )
    return found


def _first(own: Results, key: str, failed: Callable[[Any], bool]) -> int | None:
    return min((case.n_byzantine for case, found in own if key in found and failed(found[key])), default=None)


def rows(results: Results) -> list[dict[str, Any]]:
    """Return the breakdown points as plain values."""
    return [asdict(point) for point in points(results)]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return where rules fail, exact / projected where these differ; rules that fail alike share a line.

    For rules that were not broken it is the largest share tried.
    """
    heads = ["rules", "accept b up to", "broken at b", f"error above {LARGE_ERROR:g} nu^2 at b", "refuse at b"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for point in (BreakdownPoint(**row) for row in rows):
        coordinate_wise = isinstance(rule_named(point.rule, 0), CoordinateWise)
        pairs = (point.exact, point.projected), (point.far_exact, point.far_projected)
        both = [[_share(one, point) for one in pair[: 1 if coordinate_wise else 2]] for pair in pairs]
        shown = [" / ".join(dict.fromkeys(pair)) for pair in both]
        accepts = f"{point.accepts / point.n_clients:.2f}" if takes_n_byzantine(point.rule) else "any"
        refuses = "" if point.refuses is None else _share(point.refuses, point)
        name = f"`{point.rule}`" + (f" ({point.n_clients} clients)" if point.n_clients != M else "")
        alike.setdefault((accepts, *shown, refuses), []).append(name)
    return markdown_table(heads, [[", ".join(names), *cells] for cells, names in alike.items()])


def takes_n_byzantine(rule: str) -> bool:
    """Return whether a rule is set to withstand a number of attackers."""
    return rule_named(rule, 0).max_byzantine() is not None


def _share(count: int | None, point: BreakdownPoint) -> str:
    """Return a number of attackers as a share of the clients.

    >>> krum = BreakdownPoint("krum", 50, 23, 20, exact=None, projected=25, far_exact=5, far_projected=5, refuses=None)
    >>> _share(krum.exact, krum), _share(krum.projected, krum)
    ('not up to 0.40', '0.50')
    """
    if count is not None:
        return f"{count / point.n_clients:.2f}"
    tried = point.most if point.refuses is None else point.refuses - 1
    return f"not up to {tried / point.n_clients:.2f}"


def draw(results: Results) -> Any:
    """Draw where each rule breaks, where its error is large, and how many attackers it accepts."""
    found = points(results)
    figure, panels = new_figure(1, 1, (6.4, 1.0 + 0.24 * len(found)))
    panel = panels[0][0]
    labels: dict[str, Any] = {}
    for place, point in enumerate(found):
        marks = [
            (point.accepts if takes_n_byzantine(point.rule) else None, "|", GREY, "accepts up to"),
            (point.far_exact, "^", COLOURS[2], f"error above {LARGE_ERROR:g} nu², exact"),
            (point.exact, "o", COLOURS[0], "broken, exact"),
            (point.projected, "x", COLOURS[1], "broken, projected"),
        ]
        for count, mark, colour, label in marks:
            if count is not None:
                style = {"color": colour, "fillstyle": "none", "markersize": 11 if mark == "|" else 6}
                (labels[label],) = panel.plot(count / point.n_clients, place, mark, **style)
    panel.set_yticks(range(len(found)), [point.rule for point in found])
    panel.invert_yaxis()
    panel.set_xlim(-0.01, 0.56)
    panel.set_xlabel("share of attackers b, tried up to 0.5")
    figure.legend(labels.values(), labels, fontsize=7, frameon=False, loc="outside upper center", ncols=4)
    return figure
