r"""The aggregator's c in :math:`E\|\hat g - \bar g\|^2 \le c b \nu^2`, under the strongest attack that we have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bartizan import registry as names
from bartizan.rules import Rule
from bartizan.sketch import distortion
from bartizan.studies.theory import scenes as match
from bartizan.studies.theory.bounds import aggregation_bound
from bartizan.studies.theory.ledger import Result
from bartizan.studies.theory.markdown import number, table
from bartizan.studies.theory.scenes import (
    KAPPA,
    SIGMA,
    Attack,
    common_gradient,
    errors_of,
    room,
    rule_named,
    servers_of,
)

DIM, WIDE, K = 8192, 65_536, 4096
DELTA = 0.05
PAPER = ("krum", "bulyan", "geometric-median", "mca")
RULES = (*names.RULES.built_in, "nnm >> krum", "nnm >> geometric-median", *names.COORDINATEWISE.built_in)
ATTACKS = (*match.ATTACKS, "ipm factor=1000")
ROUNDING = 1e-20  # an error below this is one of rounding
ELSEWHERE = 1000
"""The first seed of the draws that c is taken from, which no judged draw has."""
GROWS = 10.0
"""A rule has no c if a common gradient ten times as long needs one this many times as large: nu does not know of it."""


@dataclass(frozen=True)
class Scene:
    """How long the common gradient is, and in how many of how many coordinates the noise is."""

    length: float
    noisy: int
    dim: int
    searched: bool
    """Whether the attacks that try the rule are in it; they cost as much as all others together."""
    calibrated: bool
    """Whether c is taken from it too, and not only judged in it."""


NEAR = Scene(3.0, DIM, DIM, searched=True, calibrated=True)
FAR = Scene(30.0, DIM, DIM, searched=False, calibrated=True)
SCENES = (
    Scene(0.0, DIM, DIM, searched=False, calibrated=True),
    NEAR,
    FAR,
    Scene(3.0, 8, DIM, searched=False, calibrated=True),
    Scene(3.0, WIDE, WIDE, searched=False, calibrated=False),
)


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
    calibrated: bool
    sketch: str = "rotated"
    tries: int = match.TRIES
    """Of the attacks that search: what is measured depends on it."""

    @property
    def b(self) -> float:
        return self.n_byzantine / self.n_clients

    @property
    def eps(self) -> float:
        """What the theorem grants a Gaussian projection in one round."""
        return distortion(self.k, self.n_clients, DELTA)


def clients_for(rule: str) -> int:
    """The paper's 50; SMEA looks at every set of clients, and would never be done with them."""
    return 10 if rule == "smea" else 50


def cells(quick: bool) -> list[Cell]:
    """The wide scene is for the paper's rules. Those that can't be projected have no bound, and need no c for it."""
    found = [
        Cell(
            rule,
            M,
            round(b * M),
            scene.length,
            scene.noisy,
            scene.dim,
            K,
            1 if quick else 3,
            attacks_in(scene, quick) if b else ("none",),
            bool(b) and scene.calibrated and rule not in names.COORDINATEWISE,
        )
        for rule in RULES
        for M in [clients_for(rule)]
        for b in ((0.0, 0.3) if quick else (0.0, 0.1, 0.3))
        for scene in ((NEAR, FAR) if quick else SCENES)
        if rule in PAPER or scene.dim < WIDE
    ]
    return found if quick else found + _by_the_theorems_matrix()


def _by_the_theorems_matrix() -> list[Cell]:
    """A Gaussian matrix, of which the theorem speaks, is slow: the paper's rules, one draw, two attacks."""
    return [
        Cell(rule, 50, f, NEAR.length, DIM, DIM, K, 1, ("foe", "min-max"), False, "gaussian")
        for rule, f in (("krum", 15), ("bulyan", 5), ("geometric-median", 15), ("mca", 15))
    ]


def attacks_in(scene: Scene, quick: bool) -> tuple[str, ...]:
    every = ("ipm", "alie", "gaussian") if quick else ATTACKS
    return tuple(name for name in every if scene.searched or not Attack(name).knows_the_rule)


def measure(cell: Cell) -> Result:
    """Mean squared errors by attack, the definition's nu^2, and a c from other clients and draws; or why it refuses."""
    rule, f = rule_named(cell.rule, cell.n_byzantine), cell.n_byzantine
    try:
        rule.check(cell.n_clients)
        errors = _errors(cell, rule, seed=0)
        found: Result = {"spread": room(cell.n_clients, cell.dim, cell.noisy).spread(f), **errors}
        return found | ({"c": calibrated(cell)} if cell.calibrated and cell.b else {})
    except ValueError as refused:
        return {"refused": str(refused)}


def calibrated(cell: Cell) -> float:
    """The c that the strongest attack needs against the exact rule, with clients and draws that are judged nowhere."""
    rule = rule_named(cell.rule, cell.n_byzantine)
    errors = _errors(cell, rule, seed=ELSEWHERE, only="exact")["exact"]
    spread = room(cell.n_clients, cell.dim, cell.noisy, ELSEWHERE).spread(cell.n_byzantine)
    return max(errors.values()) / (cell.b * spread)


def _errors(cell: Cell, rule: Any, seed: int, only: str = "") -> dict[str, dict[str, float]]:
    clients = room(cell.n_clients, cell.dim, cell.noisy, seed)
    common, f = common_gradient(cell.dim, cell.length), cell.n_byzantine
    servers = {
        name: made
        for name, made in servers_of(rule, names.SKETCHES[cell.sketch](cell.k)).items()
        if name == (only or name)
    }
    errors = {name: dict.fromkeys(cell.attacks, 0.0) for name in servers}
    for draw in range(cell.draws):
        for name, attack, error in errors_of(servers, cell.attacks, f, clients, common, seed + draw):
            errors[name][attack] += error / cell.draws
    return errors


def strongest(found: Result, sketch: str) -> tuple[str, float]:
    """The attack of the largest error, and that error."""
    attack = max(found[sketch], key=lambda name: found[sketch][name])
    return attack, found[sketch][attack]


def constant(found: Result, sketch: str, b: float) -> float:
    """The c that the strongest attack needs."""
    return strongest(found, sketch)[1] / (b * found["spread"])


def constants(results: Sequence[tuple[Cell, Result]]) -> dict[tuple[str, float], float]:
    """One c for a rule and a b: the largest of all scenes, from other draws. Rules that have none are left out."""
    found: dict[tuple[str, float], float] = {}
    for cell, result in results:
        if "c" in result:
            found[cell.rule, cell.b] = max(found.get((cell.rule, cell.b), 0.0), result["c"])
    return {key: c for key, c in found.items() if not grows(results, *key)}


def grows(results: Sequence[tuple[Cell, Result]], rule: str, b: float) -> bool:
    """Whether what the same attacks need grows with the common gradient."""
    met = {
        cell.length: result["exact"]
        for cell, result in results
        if (cell.rule, cell.b, cell.noisy) == (rule, b, cell.dim) and cell.calibrated and "exact" in result
    }
    if NEAR.length not in met or FAR.length not in met:
        return False
    near, far = met[NEAR.length], met[FAR.length]
    alike = near.keys() & far.keys()
    return max(far[attack] for attack in alike) > GROWS * max(near[attack] for attack in alike)


def rows(results: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    """A line a cell: what the attacks needed here, and what the projected error is beside the lemma's bound."""
    fixed, lines = constants(results), []
    for cell, found in results:
        line: dict[str, Any] = {
            "rule": cell.rule,
            "clients": cell.n_clients,
            "b": cell.b,
            "length": cell.length,
            "noisy": cell.noisy,
            "p": cell.dim,
            "sketch": f"{cell.sketch}({cell.k})",
            "refused": found.get("refused", ""),
        }
        for sketch in ("exact", "projected"):
            if found.get(sketch):
                attack, error = strongest(found, sketch)
                line |= {f"{sketch}_attack": attack, f"{sketch}_error": error / found["spread"]}
                if cell.b:
                    line[f"{sketch}_c"] = constant(found, sketch, cell.b)
        if cell.b and "projected_c" in line:
            line["widened"] = line["projected_c"] / line["exact_c"]
            c = fixed.get((cell.rule, cell.b))
            if c is not None:
                bound = aggregation_bound(c, cell.b, cell.eps, SIGMA, KAPPA)
                part = line["projected_error"] * found["spread"] / bound
                line |= {"c": c, "eps": cell.eps, "bound": bound, "part_of_bound": part}
        lines.append(line)
    return lines


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    lines = rows(results)
    return "\n\n".join(
        (
            "c is the largest mean of |g - mean|^2 / (b nu^2) over the attacks, the common gradient being as long as\n"
            "said; the honest clients' noise and disagreement are 1. The c that the bound has is the largest of the\n"
            "exact rule over the scenes with other clients and draws. A rule whose c grows with the length has none.",
            *(
                f"### b = {b}\n\n{_table([line for line in lines if line['b'] == b])}"
                for b in sorted({line["b"] for line in lines})
            ),
        )
    )


def _table(lines: list[dict[str, Any]]) -> str:
    """Exact / projected, a column a scene; by what the projection widened c at most; the fixed c, and the bound."""
    value = "c" if lines[0]["b"] else "error"
    scenes = list(dict.fromkeys(_scene(line) for line in lines))
    body = []
    for rule in dict.fromkeys(line["rule"] for line in lines):
        mine = [line for line in lines if line["rule"] == rule]
        if mine[0]["refused"]:
            body.append([rule, "refuses", *[""] * (len(scenes) + 2)])
            continue
        shown = {_scene(line): _both(line, value) for line in mine}
        most = [_most(mine, key) for key in ("widened", "c", "part_of_bound")]
        projected = isinstance(rule_named(rule, 0), Rule)
        most[1] = most[1] or ("none" if value == "c" and projected else "")
        body.append([rule, *(shown.get(scene, "") for scene in scenes), *most])
    heads = [f"{value}, length {length:g}, noise in {noisy}, p={p}, {sketch}" for length, noisy, p, sketch in scenes]
    return table(["rule, exact / projected", *heads, "widened by", "c of the bound", "most of the bound"], body)


def _scene(line: dict[str, Any]) -> tuple[float, int, int, str]:
    return line["length"], line["noisy"], line["p"], line["sketch"]


def _both(line: dict[str, Any], value: str) -> str:
    found = [line[f"{sketch}_{value}"] for sketch in ("exact", "projected") if f"{sketch}_{value}" in line]
    return " / ".join("0" if one < ROUNDING else number(one) for one in found)


def _most(lines: list[dict[str, Any]], key: str) -> str:
    return number(max((line[key] for line in lines if key in line), default=None))
