"""Attackers who aim at the projection itself, with its seed known or secret, with our checks off or on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bartizan import attacks
from bartizan._util.types import Floats
from bartizan.aggregate import Aggregator
from bartizan.attacks import needs
from bartizan.geometry import Geometry
from bartizan.result import Aggregation
from bartizan.rules import Rule
from bartizan.sketch import Exact, Rotated, distortion
from bartizan.studies.theory import aggregation_error as aggregation
from bartizan.studies.theory.aggregation_error import DELTA, ROUNDING
from bartizan.studies.theory.bounds import aggregation_bound
from bartizan.studies.theory.ledger import Result
from bartizan.studies.theory.markdown import number, table
from bartizan.studies.theory.scenes import (
    KAPPA,
    SIGMA,
    TRIES,
    Clients,
    Server,
    common_gradient,
    errors_of,
    room,
    rule_named,
)

DIM, K = 16_384, 4096  # so that most of a move can be hidden
RULES = ("krum", "multi-krum", "geometric-median", "mca")
ATTACKS = tuple(name for name in attacks.ATTACKS.built_in if "sketch" in needs(attacks.attack(name)))
LEAKED, FRESH, NO_SKETCH = "leaked", "fresh", "no sketch"
LENGTHS = (10.0, 0.5)
"""Of the common gradient: that of one that stands out of the noise, and of one that does not."""
SERVERS = ("exact", "unchecked", "checked")
GIVEN = ("c", "eps", "bound")


@dataclass(frozen=True)
class Cell:
    """One rule against one attack on the sketch; or against one of the others, without a sketch, for the rule's c."""

    rule: str
    attack: str
    seed: str
    length: float
    n_clients: int
    n_byzantine: int
    dim: int
    k: int
    draws: int
    tries: int = TRIES
    """Of the attacks that search: what is measured depends on it."""

    @property
    def b(self) -> float:
        return self.n_byzantine / self.n_clients

    @property
    def eps(self) -> float:
        """What the theorem grants the projection in one round."""
        return distortion(self.k, self.n_clients, DELTA)


def cells(quick: bool) -> list[Cell]:
    """A collision is guessed without any seed: there is nothing to leak."""
    others = aggregation.attacks_in(aggregation.NEAR, quick)
    met = [(attack, seed) for attack in ATTACKS for seed in (LEAKED, FRESH)]
    met = [pair for pair in met if pair != ("blind-collision", LEAKED)] + [(attack, NO_SKETCH) for attack in others]
    return [
        Cell(rule, attack, seed, length, 50, 15, DIM, K, 1 if quick else 4)
        for length in (LENGTHS[:1] if quick else LENGTHS)
        for rule in (RULES[::2] if quick else RULES)
        for attack, seed in met
    ]


def measure(cell: Cell) -> Result:
    """Mean squared errors over the draws by server, and how many attackers were quarantined, all of them being 1."""
    rule, f = rule_named(cell.rule, cell.n_byzantine), cell.n_byzantine
    assert isinstance(rule, Rule)
    clients = room(cell.n_clients, cell.dim, cell.dim)
    common = common_gradient(cell.dim, cell.length)
    found: Result = {"spread": clients.spread(f)}
    for draw in range(cell.draws):
        if cell.seed == NO_SKETCH:
            exact = {"exact": partial(Server, rule, Exact())}
            met = {name: error for name, _, error in errors_of(exact, [cell.attack], f, clients, common, draw)}
        else:
            met = _met(rule, cell, clients, common, np.random.default_rng(draw))
        for name, value in met.items():
            found[name] = found.get(name, 0.0) + value / cell.draws
    return found


def _met(rule: Rule, cell: Cell, clients: Clients, common: Floats, rng: np.random.Generator) -> dict[str, float]:
    f, sketch, updates = cell.n_byzantine, Rotated(cell.k), clients.gradients(common, rng)
    mean = updates[f:].mean(axis=0)
    seed, another = (int.from_bytes(rng.bytes(16), "little") for _ in range(2))
    told = seed if cell.seed == LEAKED else another
    # Where seeds leak they are also used again, or those who know earlier ones would gain nothing by it.
    knows: dict[str, Any] = {
        "sketch": sketch,
        "leaked_seed": told,
        "past_seeds": [told],
        "published": mean,
        "aggregator": lambda tried: Aggregator(rule, sketch)(tried, seed=told).update,
    }
    attack = attacks.attack(cell.attack)
    updates[:f] = attack(updates[f:], f, rng, **{name: knows[name] for name in needs(attack)})
    checked = streamed(rule, sketch, updates, seed)
    answers = {
        "exact": Aggregator(rule, Exact())(updates, seed=seed).update,
        "unchecked": rule(Geometry.of(sketch(updates, seed=seed))) @ updates,
        "checked": checked.update,
    }
    errors = {name: float(((answer - mean) ** 2).sum()) for name, answer in answers.items()}
    attackers = sum(client < f for client in checked.quarantined)
    return errors | {"caught": attackers / f, "accused": float(len(checked.quarantined) - attackers)}


def streamed(rule: Rule, sketch: Rotated, updates: Floats, seed: int) -> Aggregation[Any]:
    """By a round that was opened with this seed: it compares norms, and looks at the chosen once more."""
    with Aggregator(rule, sketch).round(seed) as r:
        for client, update in enumerate(updates):
            r.add(update, client)
        return r.close()


def constants(results: Sequence[tuple[Cell, Result]]) -> dict[str, float]:
    """The exact rules' c: what the strongest attack needs, be it on the sketch or one of the others."""
    found: dict[str, float] = {}
    for cell, result in results:
        found[cell.rule] = max(found.get(cell.rule, 0.0), result["exact"] / (cell.b * result["spread"]))
    return found


def rows(results: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    """Squared errors over the lemma's bound for the projected rule, whose c is that of the exact one."""
    c, lines = constants(results), []
    for cell, found in results:
        bound = aggregation_bound(c[cell.rule], cell.b, cell.eps, SIGMA, KAPPA)
        line: dict[str, Any] = {"rule": cell.rule, "attack": cell.attack, "seed": cell.seed, "length": cell.length}
        line |= {"clients": cell.n_clients, "b": cell.b, "c": c[cell.rule], "eps": cell.eps, "bound": bound}
        line |= {name: found[name] / bound for name in SERVERS if name in found}
        lines.append(line | {name: found[name] for name in ("caught", "accused") if name in found})
    return lines


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    lines = rows(results)
    aimed = [line for line in lines if line["seed"] != NO_SKETCH]
    said = [
        "Squared error over the bound 2 c b (1 + eps)/(1 - eps) (sigma^2 + 2 kappa^2): exact rule / projected without\n"
        "checks / projected with both checks, in brackets the part of the attackers that was quarantined. c is what\n"
        "the strongest of all attacks needs against the exact rule, those of the part `aggregation` among them.",
        table(
            ["rule", *GIVEN],
            [
                [rule, *(number(next(line[key] for line in lines if line["rule"] == rule)) for key in GIVEN)]
                for rule in dict.fromkeys(line["rule"] for line in lines)
            ],
        ),
    ]
    said += [
        f"### Common gradient {length:g} long\n\n{_table([line for line in aimed if line['length'] == length])}"
        for length in dict.fromkeys(line["length"] for line in aimed)
    ]
    accused = sum(line["accused"] > 0 for line in aimed)
    return "\n\n".join([*said, f"Cells in which an honest client was quarantined: {accused} of {len(aimed)}."])


def _table(lines: list[dict[str, Any]]) -> str:
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    shown = {(line["attack"], line["seed"], line["rule"]): _cell(line) for line in lines}
    body = [
        [attack, seed, *(shown.get((attack, seed, rule), "") for rule in rules)]
        for attack, seed in dict.fromkeys((line["attack"], line["seed"]) for line in lines)
    ]
    return table(["attack", "seed", *rules], body)


def _cell(line: dict[str, Any]) -> str:
    errors = " / ".join("0" if line[name] < ROUNDING else f"{float(f'{line[name]:.2g}'):g}" for name in SERVERS)
    return f"{errors} ({line['caught']:.2g})"
