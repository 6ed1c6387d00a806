"""Attacks on the projection itself, with its seed leaked or secret and our checks off or on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bartizan import attacks
from bartizan._util.types import Floats
from bartizan.aggregate import Aggregator
from bartizan.attacks import needs
from bartizan.measure.geometry import Geometry
from bartizan.rules import Rule
from bartizan.sketch import Exact, Rotated
from bartizan.source import Aggregation
from studies.plotting import COLOURS, RED, new_figure
from studies.rules_by_name import rule_named
from studies.tables import markdown_table, three_digits
from studies.theory import simulated_round as simulation
from studies.theory.aggregation_error import NEAR, attacks_in
from studies.theory.bounds import aggregation_bound

TITLE = "Attackers of the projection: a leaked seed beside a fresh one, checks off and on"


DIM, K = 16_384, 4096  # so that most of a change can be hidden
RULES = ("krum", "multi-krum", "geometric-median", "mca")
ATTACKS = tuple(name for name in attacks.ATTACKS.built_in if "sketch" in needs(attacks.attack(name)))
LEAKED, FRESH, NO_SKETCH = "leaked", "fresh", "no sketch"
LENGTHS = (10.0, 0.5)
"""Lengths of the common gradient, above the noise and below it."""
SERVERS = {"exact": "exact", "unchecked": "projected, no checks", "checked": "projected, checks"}
SMALLEST = 1e-4  # parts of a bound below it are drawn as this


@dataclass(frozen=True)
class ProjectionCase(simulation.Setting):
    """One rule against one attack on the sketch; or, for the rule's c, against another attack without a sketch."""

    rule: str
    attack: str
    seed: str
    length: float
    n_clients: int
    n_byzantine: int
    dim: int
    k: int
    draws: int
    tries: int = simulation.TRIES
    """Search budget of the optimised attacks, on which the result depends."""


Results = Sequence[tuple[ProjectionCase, simulation.Result]]


def cases() -> list[ProjectionCase]:
    """Return every attack with its seed leaked and fresh; a blind collision uses no seed that could leak."""
    pairs = [(attack, seed) for attack in ATTACKS for seed in (LEAKED, FRESH)]
    pairs.remove(("blind-collision", LEAKED))
    pairs += [(attack, NO_SKETCH) for attack in attacks_in(NEAR)]
    return [
        ProjectionCase(rule, attack, seed, length, 50, 15, DIM, K, 4)
        for length in LENGTHS
        for rule in RULES
        for attack, seed in pairs
    ]


def measure(case: ProjectionCase) -> simulation.Result:
    """Return mean squared errors by server, the share of attackers and the number of honest clients quarantined."""
    rule, f = rule_named(case.rule, case.n_byzantine), case.n_byzantine
    assert isinstance(rule, Rule)
    clients = simulation.honest_clients(case.n_clients, case.dim, case.dim)
    common = simulation.common_gradient(case.dim, case.length)
    found: simulation.Result = {"spread": clients.spread(f)}
    if case.seed == NO_SKETCH:
        exact = {"exact": simulation.servers_of(rule, Exact())["exact"]}
        errors = simulation.mean_errors(exact, [case.attack], f, clients, common, range(case.draws))
        return found | {"exact": errors["exact"][case.attack]}
    draws = [_attacked(rule, case, clients, common, np.random.default_rng(draw)) for draw in range(case.draws)]
    return found | {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}


def _attacked(
    rule: Rule, case: ProjectionCase, clients: simulation.HonestClients, common: Floats, rng: np.random.Generator
) -> dict[str, float]:
    f, sketch, updates = case.n_byzantine, Rotated(case.k), clients.gradients(common, rng)
    mean = updates[f:].mean(axis=0)
    seed, another = (int.from_bytes(rng.bytes(16), "little") for _ in range(2))
    known = seed if case.seed == LEAKED else another
    # A leaked seed is also used in several rounds; otherwise knowing an earlier one would be of no use.
    knowledge: dict[str, Any] = {
        "sketch": sketch,
        "leaked_seed": known,
        "past_seeds": [known],
        "published": mean,
        "aggregator": lambda tried: Aggregator(rule, sketch)(tried, seed=known).update,
    }
    attack = attacks.attack(case.attack)
    updates[:f] = attack(updates[f:], f, rng, **{name: knowledge[name] for name in needs(attack)})
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
    """Aggregate in a round with this seed, which compares norms and sketches the selected clients again."""
    with Aggregator(rule, sketch).round(seed) as r:
        for client, update in enumerate(updates):
            r.add(update, client)
        return r.close()


def constants(results: Results) -> dict[str, float]:
    """Return the exact rules' c under the strongest attack, on the sketch or not."""
    found: dict[str, float] = {}
    for case, result in results:
        found[case.rule] = max(found.get(case.rule, 0.0), result["exact"] / (case.b * result["spread"]))
    return found


def rows(results: Results) -> list[dict[str, Any]]:
    """Return squared errors over the lemma's bound for the projected rule, with the exact rule's c."""
    c, lines = constants(results), []
    for case, found in results:
        if case.seed == NO_SKETCH:
            continue
        bound = aggregation_bound(c[case.rule], case.b, case.eps, simulation.SIGMA, simulation.KAPPA)
        line: dict[str, Any] = {"rule": case.rule, "attack": case.attack, "seed": case.seed, "length": case.length}
        line |= {"clients": case.n_clients, "b": case.b, "c": c[case.rule], "eps": case.eps, "bound": bound}
        line |= {name: found[name] / bound for name in SERVERS}
        lines.append(line | {name: found[name] for name in ("caught", "accused")})
    return lines


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the largest errors over the bound of all attacks on the sketch, by scene and seed."""
    lines, body = pd.DataFrame(rows), []
    for (length, seed), scene in lines.groupby(["length", "seed"], sort=False):
        worst = scene.groupby("rule", sort=False)[list(SERVERS)].max()
        body.append([f"{length:g}", seed, *(" / ".join(map(three_digits, own)) for own in worst.to_numpy())])
    return markdown_table(["common gradient", "seed", *(f"`{rule}`" for rule in dict.fromkeys(lines.rule))], body)


def draw(results: Results) -> Any:
    """Draw errors over the bound, a panel a rule, the worst of the scenes; exact and projected, checks off and on."""
    lines = rows(results)
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    pairs = list(dict.fromkeys((line["attack"], line["seed"]) for line in lines))
    figure, panels = new_figure(1, len(rules), (3.2 * len(rules), 1.2 + 0.22 * len(pairs)))
    largest = max(line[server] for line in lines for server in SERVERS)
    for panel, rule in zip(panels[0], rules, strict=True):
        for (server, label), mark, colour in zip(SERVERS.items(), "ox+", COLOURS, strict=False):
            worst: dict[int, float] = {}
            for line in lines:
                if line["rule"] == rule:
                    place = pairs.index((line["attack"], line["seed"]))
                    worst[place] = max(worst.get(place, SMALLEST), line[server])
            panel.plot(list(worst.values()), list(worst), mark, color=colour, fillstyle="none", label=label)
        panel.axvline(1, color=RED, linestyle=":", label="the bound")
        panel.set_xscale("log")
        panel.set_xlim(SMALLEST / 2, 4 * max(1, largest))
        panel.set_yticks(range(len(pairs)), [""] * len(pairs))
        panel.invert_yaxis()
        panel.set_title(rule, fontsize=9)
    panels[0][0].set_yticks(range(len(pairs)), [f"{attack}, {seed}" for attack, seed in pairs])
    figure.supxlabel(f"squared error over the bound (at the left edge: {SMALLEST:g} or less)", fontsize=9)
    labels = panels[0][0].get_legend_handles_labels()
    figure.legend(*labels, fontsize=8, frameon=False, loc="outside upper right", ncols=4)
    return figure
