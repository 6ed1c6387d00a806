r"""The aggregator's c in :math:`E\|\hat g - \bar g\|^2 \le c b \nu^2`, under the strongest of our attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bartizan import registry
from bartizan.rules import Rule
from studies.plotting import COLOURS, GREY, new_figure
from studies.rules_by_name import rule_named
from studies.tables import markdown_table, three_digits
from studies.theory import simulated_round
from studies.theory.bounds import aggregation_bound
from studies.theory.simulated_round import (
    KAPPA,
    SIGMA,
    Attack,
    Result,
    Setting,
    common_gradient,
    honest_clients,
    mean_errors,
    servers_of,
)

TITLE = "The aggregation's error: an empirical (b, c)"


DIM, WIDE, K = 8192, 65_536, 4096
TOO_SMALL = 16
"""The k of a projection that must widen the error, so that a number near 1 means something."""
PAPER = ("krum", "bulyan", "geometric-median", "mca")
RULES = (*registry.RULES.built_in, "nnm >> krum", "nnm >> geometric-median", *registry.COORDINATEWISE.built_in)
ATTACKS = (*simulated_round.ATTACKS, "ipm factor=1000")
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
class AggregationCase(Setting):
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
    tries: int = simulated_round.TRIES
    """Of the attacks that search: the result depends on it."""


Results = Sequence[tuple[AggregationCase, Result]]


def cases(quick: bool) -> list[AggregationCase]:
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
            1 if quick else 3,
            attacks_in(scene, quick) if b else ("none",),
            bool(b) and scene.dim < WIDE and rule not in registry.COORDINATEWISE,
        )
        for rule in RULES
        for M in [10 if rule == "smea" else 50]
        for b in ((0.0, 0.3) if quick else (0.0, 0.1, 0.3))
        for scene in ((NEAR, FAR) if quick else SCENES)
        if rule in PAPER or scene.dim < WIDE
    ]
    if quick:
        return found
    # The theorem's own Gaussian matrix is slow: the paper's rules, one draw, two attacks.
    chosen = (("krum", 15), ("bulyan", 5), ("geometric-median", 15), ("mca", 15))
    found += [AggregationCase(rule, 50, f, *NEAR, K, 1, ("foe", "min-max"), False, "gaussian") for rule, f in chosen]
    return found + [
        AggregationCase(rule, 50, f, *NEAR, TOO_SMALL, 10, attacks_in(FAR, quick), False, "gaussian")
        for rule, f in (*chosen, ("multi-krum", 15), ("mda", 15))
    ]


def attacks_in(scene: Scene, quick: bool) -> tuple[str, ...]:
    every = ("ipm", "alie", "gaussian") if quick else ATTACKS
    return tuple(name for name in every if scene == NEAR or not Attack(name).knows_the_rule)


def measure(case: AggregationCase) -> Result:
    """Return mean squared errors by attack, the definition's nu^2, and c from other draws; or why the rule refuses."""
    try:
        rule_named(case.rule, case.n_byzantine).check(case.n_clients)
        spread = honest_clients(case.n_clients, case.dim, case.noisy).spread(case.n_byzantine)
        found: Result = {"spread": spread, **_errors(case, seed=0)}
        return found | ({"c": calibrated(case)} if case.calibrated and case.b else {})
    except ValueError as refused:
        return {"refused": str(refused)}


def calibrated(case: AggregationCase) -> float:
    """Return the c of the strongest attack against the exact rule, on other clients and draws than `measure`."""
    errors = _errors(case, CALIBRATION_SEED, kinds=("exact",))["exact"]
    spread = honest_clients(case.n_clients, case.dim, case.noisy, CALIBRATION_SEED).spread(case.n_byzantine)
    return max(errors.values()) / (case.b * spread)


def _errors(
    case: AggregationCase, seed: int, kinds: Sequence[str] = ("exact", "projected")
) -> dict[str, dict[str, float]]:
    rule = rule_named(case.rule, case.n_byzantine)
    servers = servers_of(rule, registry.SKETCHES[case.sketch](case.k))
    return mean_errors(
        {kind: servers[kind] for kind in kinds if kind in servers},
        case.attacks,
        case.n_byzantine,
        honest_clients(case.n_clients, case.dim, case.noisy, seed),
        common_gradient(case.dim, case.length),
        range(seed, seed + case.draws),
    )


def strongest(found: Result, sketch: str) -> tuple[str, float]:
    """Return the attack of the largest error, and that error."""
    attack = max(found[sketch], key=lambda name: found[sketch][name])
    return attack, found[sketch][attack]


def constant(found: Result, sketch: str, b: float) -> float:
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
    """Whether the errors of the same attacks grow with the common gradient."""
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
    """Return a line a case: c of the strongest attack, and the projected error beside the lemma's bound."""
    fixed, lines = constants(results), []
    for case, found in results:
        line: dict[str, Any] = {
            "rule": case.rule,
            "clients": case.n_clients,
            "b": case.b,
            "length": case.length,
            "noisy": case.noisy,
            "p": case.dim,
            "sketch": f"{case.sketch}({case.k})",
            "refused": found.get("refused", ""),
        }
        for sketch in ("exact", "projected"):
            if found.get(sketch):
                attack, error = strongest(found, sketch)
                line |= {f"{sketch}_attack": attack, f"{sketch}_error": error / found["spread"]}
                if case.b:
                    line[f"{sketch}_c"] = constant(found, sketch, case.b)
        if case.b and "projected_c" in line:
            line["widened"] = line["projected_c"] / line["exact_c"]
            c = fixed.get((case.rule, case.b))
            if c is not None and case.k != TOO_SMALL:  # whose eps would not be below 1
                bound = aggregation_bound(c, case.b, case.eps, SIGMA, KAPPA)
                part = line["projected_error"] * found["spread"] / bound
                line |= {"c": c, "eps": case.eps, "bound": bound, "part_of_bound": part}
        lines.append(line)
    return lines


def section(results: Results) -> str:
    lines = rows(results)
    small = [line for line in lines if line["sketch"].endswith(f"({TOO_SMALL})")]
    lines = [line for line in lines if line not in small]
    tables = (
        f"### b = {b}\n\n{_table([line for line in lines if line['b'] == b])}"
        for b in sorted({line["b"] for line in lines})
    )
    said = [f"Projecting widened the error of the strongest attack by {_widened(lines)}."]
    if small:
        found = ", ".join(f"{_widened([line])} ({line['rule']})" for line in small)
        said.append(f"That the number can fail: by gaussian({TOO_SMALL}), which is too small, {found}.")
    return "\n\n".join(
        (
            "\n".join(said),
            "c is the largest mean of |g - mean|^2 / (b nu^2) over the attacks, at the length of the common gradient\n"
            "in the heading; the honest clients' noise and disagreement are 1. The bound's c is the largest of the\n"
            "exact rule over the scenes with other clients and draws. A rule whose c grows with the length has none.\n"
            "Widened by: c projected over c exact within one scene, the least and the largest.",
            *tables,
        )
    )


def _widened(lines: Sequence[dict[str, Any]]) -> str:
    """
    >>> _widened([{"widened": 0.912}, {}, {"widened": 1.08}])
    '0.912 to 1.08'
    """
    found = [line["widened"] for line in lines if "widened" in line]
    return " to ".join(dict.fromkeys(three_digits(one) for one in (min(found), max(found)))) if found else ""


def _table(lines: list[dict[str, Any]]) -> str:
    """By what projecting widened c; exact / projected, a column a scene; c and the bound."""
    value = "c" if lines[0]["b"] else "error"
    columns = list(dict.fromkeys(map(_scene, lines)))
    body = []
    for rule in dict.fromkeys(line["rule"] for line in lines):
        own = [line for line in lines if line["rule"] == rule]
        if own[0]["refused"]:
            body.append([rule, "", "refuses", *[""] * (len(columns) + 1)])
            continue
        shown = {_scene(line): _both(line, value) for line in own}
        c, part = (
            three_digits(max((line[key] for line in own if key in line), default=None))
            for key in ("c", "part_of_bound")
        )
        c = c or ("none" if value == "c" and isinstance(rule_named(rule, 0), Rule) else "")
        body.append([rule, _widened(own), *(shown.get(scene, "") for scene in columns), c, part])
    heads = [f"{value}, length {length:g}, noise in {noisy}, p={p}, {sketch}" for length, noisy, p, sketch in columns]
    return markdown_table(
        ["rule, exact / projected", "widened by", *heads, "c of the bound", "most of the bound"], body
    )


def _scene(line: dict[str, Any]) -> tuple[float, int, int, str]:
    return line["length"], line["noisy"], line["p"], line["sketch"]


def _both(line: dict[str, Any], value: str) -> str:
    found = [line[f"{sketch}_{value}"] for sketch in ("exact", "projected") if f"{sketch}_{value}" in line]
    return " / ".join("0" if one < ROUNDING else three_digits(one) for one in found)


def draw(results: Results) -> Any:
    """Draw by how much projecting widened the c of each rule that has one."""
    lines = [line for line in rows(results) if "part_of_bound" in line and line["sketch"].startswith("rotated")]
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
