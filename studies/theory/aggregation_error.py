r"""The aggregator's c in :math:`E\|\hat g - \bar g\|^2 \le c b \nu^2`, under the strongest of our attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from bartizan import registry
from studies.plotting import COLOURS, GREY, new_figure
from studies.rules_by_name import rule_named
from studies.tables import markdown_table, three_digits
from studies.theory import simulated_round as simulation
from studies.theory.bounds import aggregation_bound

TITLE = "The aggregation's error: an empirical (b, c)"


DIM, WIDE, K = 8192, 65_536, 4096
TOO_SMALL = 16
"""The k of a projection that must widen the error, so that a number near 1 means something."""
PAPER = ("krum", "bulyan", "geometric-median", "mca")
RULES = (*registry.RULES.built_in, "nnm >> krum", "nnm >> geometric-median", *registry.COORDINATEWISE.built_in)
ATTACKS = (*simulation.ATTACKS, "ipm factor=1000")
ROUNDING = 1e-20  # errors below this are rounding
CALIBRATION_SEED = 1000
"""The first seed of the draws that c is measured on; no error is compared with the bound on these."""
GROWS = 10.0
"""A rule has no c if a common gradient ten times as long needs one this many times as large: nu is the same."""


class Scene(NamedTuple):
    """The length of the common gradient, and the noise in `noisy` of `dim` coordinates."""

    length: float
    noisy: int = DIM
    dim: int = DIM


# Attacks that try the rule, which cost as much as all others together, are in the first only.
NEAR, FAR = Scene(3.0), Scene(30.0)
SCENES = (Scene(0.0), NEAR, FAR, Scene(3.0, noisy=8), Scene(3.0, WIDE, WIDE))


@dataclass(frozen=True)
class AggregationCase(simulation.Setting):
    """One rule against all attacks, exact and projected; the rule knows the number of attackers."""

    rule: str
    n_clients: int
    n_byzantine: int
    length: float
    noisy: int
    dim: int
    k: int
    draws: int
    attacks: tuple[str, ...]
    calibrated: bool
    sketch: str = "rotated"
    tries: int = simulation.TRIES
    """Search budget of the optimised attacks, on which the result depends."""


Results = Sequence[tuple[AggregationCase, simulation.Result]]


def cases() -> list[AggregationCase]:
    """Return every rule in every scene; the wide scene is for the paper's rules, and no c is measured in it.

    Rules that can't be projected have no bound, and need no c for it. SMEA goes through every subset of clients, so it
    gets 10 of them, and the others the paper's 50.
    """
    found = [
        AggregationCase(
            rule,
            M,
            round(b * M),
            *scene,
            K,
            3,
            attacks_in(scene) if b else ("none",),
            bool(b) and scene.dim < WIDE and rule not in registry.COORDINATEWISE,
        )
        for rule in RULES
        for M in [10 if rule == "smea" else 50]
        for b in (0.0, 0.1, 0.3)
        for scene in SCENES
        if rule in PAPER or scene.dim < WIDE
    ]
    # The theorem's own Gaussian matrix is slow: the paper's rules, one draw, two attacks.
    chosen = (("krum", 15), ("bulyan", 5), ("geometric-median", 15), ("mca", 15))
    found += [AggregationCase(rule, 50, f, *NEAR, K, 1, ("foe", "min-max"), False, "gaussian") for rule, f in chosen]
    return found + [
        AggregationCase(rule, 50, f, *NEAR, TOO_SMALL, 10, attacks_in(FAR), False, "gaussian")
        for rule, f in (*chosen, ("multi-krum", 15), ("mda", 15))
    ]


def attacks_in(scene: Scene) -> tuple[str, ...]:
    return tuple(name for name in ATTACKS if scene == NEAR or not simulation.Attack(name).knows_the_rule)


def measure(case: AggregationCase) -> simulation.Result:
    """Return mean squared errors by attack, the definition's nu^2, and c from other draws; or why the rule refuses."""
    try:
        rule_named(case.rule, case.n_byzantine).check(case.n_clients)
        spread = simulation.honest_clients(case.n_clients, case.dim, case.noisy).spread(case.n_byzantine)
        found: simulation.Result = {"spread": spread, **_errors(case, seed=0)}
        return found | ({"c": calibrated(case)} if case.calibrated and case.b else {})
    except ValueError as refused:
        return {"refused": str(refused)}


def calibrated(case: AggregationCase) -> float:
    """Return the c of the strongest attack against the exact rule, on other clients and draws than `measure`."""
    errors = _errors(case, CALIBRATION_SEED, kinds=("exact",))["exact"]
    spread = simulation.honest_clients(case.n_clients, case.dim, case.noisy, CALIBRATION_SEED).spread(case.n_byzantine)
    return max(errors.values()) / (case.b * spread)


def _errors(
    case: AggregationCase, seed: int, kinds: Sequence[str] = ("exact", "projected")
) -> dict[str, dict[str, float]]:
    rule = rule_named(case.rule, case.n_byzantine)
    servers = simulation.servers_of(rule, registry.SKETCHES[case.sketch](case.k))
    return simulation.mean_errors(
        {kind: servers[kind] for kind in kinds if kind in servers},
        case.attacks,
        case.n_byzantine,
        simulation.honest_clients(case.n_clients, case.dim, case.noisy, seed),
        simulation.common_gradient(case.dim, case.length),
        range(seed, seed + case.draws),
    )


def strongest(found: simulation.Result, sketch: str) -> tuple[str, float]:
    """Return the attack of the largest error, and that error."""
    attack = max(found[sketch], key=lambda name: found[sketch][name])
    return attack, found[sketch][attack]


def constant(found: simulation.Result, sketch: str, b: float) -> float:
    """Return the c of the strongest attack."""
    return strongest(found, sketch)[1] / (b * found["spread"])


def constants(results: Results) -> dict[tuple[str, float], float]:
    """Return c by rule and b, the largest of all scenes, from the calibration draws; rules without one are left out."""
    found: dict[tuple[str, float], float] = {}
    for case, result in results:
        if "c" in result:
            found[case.rule, case.b] = max(found.get((case.rule, case.b), 0.0), result["c"])
    return {key: c for key, c in found.items() if not grows(results, *key)}


def grows(results: Results, rule: str, b: float) -> bool:
    """Return whether the errors of the same attacks grow with the common gradient."""
    errors = {
        case.length: result["exact"]
        for case, result in results
        if (case.rule, case.b, case.noisy) == (rule, b, case.dim) and case.calibrated and "exact" in result
    }
    if NEAR.length not in errors or FAR.length not in errors:
        return False
    near, far = errors[NEAR.length], errors[FAR.length]
    alike = near.keys() & far.keys()
    return max(far[attack] for attack in alike) > GROWS * max(near[attack] for attack in alike)


def rows(results: Results) -> list[dict[str, Any]]:
    """Return a line per case: the strongest attack's error over nu^2, or c, and the part of the lemma's bound."""
    fixed, lines = constants(results), []
    for case, found in results:
        scene = f"length {case.length:g}, noise in {case.noisy}, p={case.dim}"
        line: dict[str, Any] = {"rule": case.rule, "b": case.b, "scene": scene, "sketch": f"{case.sketch}({case.k})"}
        values = [strongest(found, kind)[1] / found["spread"] for kind in ("exact", "projected") if found.get(kind)]
        line["scaled"] = [value / (case.b or 1) for value in values]
        if case.b and len(values) == 2:
            line["widened"] = values[1] / values[0]
            c = fixed.get((case.rule, case.b))
            if c is not None and case.k != TOO_SMALL:  # whose eps would not be below 1
                bound = aggregation_bound(c, case.b, case.eps, simulation.SIGMA, simulation.KAPPA)
                line |= {"c": c, "bound": bound, "part_of_bound": values[1] * found["spread"] / bound}
        lines.append(line)
    return lines


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return, per rule, by what projecting widened the error, the largest c of all scenes, and the part of the bound.

    The bound's c is the exact rule's of other clients and draws; a rule whose c grows with the gradient has none.
    """
    lines = pd.DataFrame(rows).reindex(columns=["rule", "b", "sketch", "scaled", "widened", "part_of_bound"])
    body, without = [], []
    for rule, own in lines.groupby("rule", sort=False):
        usual, small = own[own.sketch.str.startswith("rotated")], own[own.sketch == f"gaussian({TOO_SMALL})"]
        widened = small.widened.max()
        ends = dict.fromkeys(three_digits(one) for one in (usual.widened.min(), usual.widened.max()) if one == one)
        cells = [" to ".join(ends), three_digits(widened) if widened == widened else ""]
        for b in (0.1, 0.3):
            here = usual[usual.b == b].scaled
            most = [three_digits(max(kind)) for kind in zip(*filter(None, here), strict=True)]
            cells.append(" / ".join(most) or ("refuses" if len(here) else ""))
        part = own.part_of_bound.max()
        if part == part:
            body.append([f"`{rule}`", *cells, three_digits(part)])
        else:
            without.append(f"`{rule}`")
    heads = ["rule", "projected / exact", f"by `Gaussian({TOO_SMALL})`", "c at b = 0.1", "c at b = 0.3"]
    told = f"\n\nWithout a bound: {', '.join(without)}." if without else ""
    return markdown_table([*heads, "largest part of the bound"], body) + told


def draw(results: Results) -> Any:
    """Draw by how much projecting widened the c of each rule that has one."""
    lines = [line for line in rows(results) if "part_of_bound" in line and "rotated" in line["sketch"]]
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    figure, panels = new_figure(1, 1, (6.4, 1.0 + 0.24 * len(rules)))
    panel = panels[0][0]
    for b, colour in zip(sorted({line["b"] for line in lines}), COLOURS, strict=False):
        points = [(line["widened"], rules.index(line["rule"])) for line in lines if line["b"] == b]
        panel.plot(*zip(*points, strict=True), "o", color=colour, fillstyle="none", label=f"b = {b:g}")
    panel.axvline(1, color=GREY, linewidth=0.8)
    panel.set_yticks(range(len(rules)), rules)
    panel.invert_yaxis()
    panel.set_xlabel("c projected over c exact, a mark a scene")
    figure.legend(fontsize=7, frameon=False, loc="outside upper right", ncols=2)
    return figure
