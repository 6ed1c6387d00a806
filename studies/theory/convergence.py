"""Training under attack, round by round, beside the bounds of Theorems 3.8 and 3.10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.sketch import Exact, Rotated, distortion
from studies.estimates import log_slope
from studies.plotting import COLOURS, RED, new_figure
from studies.rules_by_name import rule_named
from studies.tables import markdown_table, table_of, three_digits
from studies.theory import aggregation_error
from studies.theory import simulated_round as simulation
from studies.theory.bounds import convex_bound, convex_step, error_floor, nonconvex_bound, nonconvex_step

TITLE = "Convergence: measured curves under their bounds"


M, DIM, K = 50, 4096, 2048
NOISY = 512  # coordinates of the noise
LENGTHS = (0.0, 3.0, 10.0, 30.0)  # of the common gradients that c is measured on; a training begins at 26 or 5
RULES = ("krum", "bulyan", "geometric-median", "mca")
SIX_ATTACKS = ("sign-flip", "foe", "alie", "ipm", "min-max", "min-sum")
HORIZONS = (16, 32, 64, 128)
LONG_HORIZON = 4 * HORIZONS[-1]


class Quadratic:
    """f(w) = sum_i h_i w_i^2 / 2, h from mu to L: strongly convex, least at 0."""

    convexity, smoothness = 1.0, 4.0

    def __init__(self, dim: int) -> None:
        self.curvatures = np.linspace(self.convexity, self.smoothness, dim)
        self.start = np.full(dim, 10 / np.sqrt(dim))  # at squared distance 100 from the minimum

    def value(self, w: Floats) -> float:
        return float(self.curvatures @ (w * w) / 2)

    def gradient(self, w: Floats) -> Floats:
        return self.curvatures * w

    def step(self, t: int, rounds: int) -> float:
        return convex_step(t, self.convexity, self.smoothness)


class Bumps:
    """f(w) = h sum_i u_i^2 / (1 + u_i^2), u = w / sqrt(h): smooth with L = 2, concave where |u| > 1 / sqrt(3)."""

    smoothness = 2.0

    def __init__(self, dim: int) -> None:
        self.height = 100 / dim
        self.start = np.full(dim, np.sqrt(self.height))  # in the concave part, at u = 1

    def value(self, w: Floats) -> float:
        squares = w * w / self.height
        return float(self.height * (squares / (1 + squares)).sum())

    def gradient(self, w: Floats) -> Floats:
        return 2 * w / (1 + w * w / self.height) ** 2

    def step(self, t: int, rounds: int) -> float:
        return nonconvex_step(self.smoothness, rounds)


PROBLEMS: dict[str, type[Quadratic] | type[Bumps]] = {"strongly convex": Quadratic, "non-convex": Bumps}
r"""The f of the losses :math:`F_m(w) = f(w) + \langle v_m, w \rangle` with :math:`\sum_m v_m = 0`: clients differ in a
linear term only, so their gradients differ by :math:`v_m` everywhere, and kappa is the longest."""


@dataclass(frozen=True)
class TrainingCase(simulation.Setting):
    """One training; its curves are means over the seeds."""

    problem: str
    rule: str
    projected: bool
    n_byzantine: int
    attack: str
    rounds: int
    seeds: int
    sigma: float = simulation.SIGMA
    kappa: float = simulation.KAPPA
    n_clients: int = M
    dim: int = DIM
    k: int = K
    noisy: int = NOISY
    tries: int = simulation.TRIES
    """Search budget of the optimised attacks, on which the result depends."""

    @property
    def eps(self) -> float:
        """The theorem's distortion of a Gaussian projection in all rounds; 0 without projection."""
        return distortion(self.k, self.n_clients, simulation.DELTA, self.rounds) if self.projected else 0.0

    @property
    def sketch(self) -> str:
        return "projected" if self.projected else "exact"

    def floor(self, c: float) -> float:
        """Return the bound's Phi."""
        return error_floor(c, self.b, self.eps, self.sigma, self.kappa)


Results = Sequence[tuple[TrainingCase, simulation.Result]]


def cases() -> list[TrainingCase]:
    """Return all attacks at b = 0.3 (searches on one problem), six at 0.1, none at 0, and horizons for the rate."""
    rounds, seeds = 20, 2
    attacks = {0.0: ("none",), 0.1: SIX_ATTACKS, 0.3: simulation.ATTACKS}
    found = [
        TrainingCase(problem, rule, projected, round(b * M), attack, rounds, seeds)
        for problem in PROBLEMS
        for rule in RULES
        for projected in (False, True)
        for b in attacks
        for attack in attacks[b]
        if problem == "strongly convex" or not simulation.Attack(attack).knows_the_rule
    ]
    for rule, f, attack in (("mean", 0, "none"), ("geometric-median", 15, "ipm")):
        found += [TrainingCase("non-convex", rule, False, f, attack, T, seeds) for T in HORIZONS]
        found.append(TrainingCase("strongly convex", rule, False, f, attack, LONG_HORIZON, seeds))
    return found


def measure(case: TrainingCase) -> simulation.Result:
    """Return squared distances to the minimum or squared gradients, losses and aggregation errors by round, and c.

    c comes from elsewhere (`calibrated`): if it came from these curves, they could not exceed its bound.
    """
    try:
        rule_named(case.rule, case.n_byzantine).check(case.n_clients)
    except ValueError as refused:
        return {"refused": str(refused)}
    clients = simulation.HonestClients.draw(case.n_clients, case.dim, case.noisy, case.sigma, case.kappa)
    curves = np.mean([_train(case, clients, seed) for seed in range(case.seeds)], axis=0)
    return {
        "c": calibrated(case.rule, case.n_clients, case.n_byzantine, case.dim, case.noisy),
        "spread": clients.spread(case.n_byzantine),
        "measured": curves[0].tolist(),
        "losses": curves[1].tolist(),
        "errors": curves[2, :-1].tolist(),
    }


@lru_cache(maxsize=64)
def calibrated(rule: str, n_clients: int, n_byzantine: int, dim: int, noisy: int) -> float:
    """Return the exact rule's c at this b, from other clients and draws, with gradients of several lengths."""
    if not n_byzantine:
        return 0.0
    attacks = aggregation_error.ATTACKS
    alike = (
        aggregation_error.AggregationCase(rule, n_clients, n_byzantine, length, noisy, dim, K, 2, attacks, True)
        for length in LENGTHS
    )
    return max(map(aggregation_error.calibrated, alike))


def _train(case: TrainingCase, clients: simulation.HonestClients, seed: int) -> Floats:
    """(3, rounds + 1): the squared distance or gradient, the loss, and the squared error of the next round."""
    problem, rng = PROBLEMS[case.problem](case.dim), np.random.default_rng(seed)
    server = simulation.Server(
        rule_named(case.rule, case.n_byzantine), Rotated(case.k) if case.projected else Exact(), rng
    )
    attack, f = simulation.Attack(case.attack), case.n_byzantine
    w, found = problem.start, np.zeros((3, case.rounds + 1))
    for t in range(case.rounds + 1):
        common = problem.gradient(w)
        found[:2, t] = (w @ w if isinstance(problem, Quadratic) else common @ common), problem.value(w)
        if t == case.rounds:
            break
        gradients = clients.gradients(common, rng)
        mean = gradients[f:].mean(axis=0)
        attack.overwrite(gradients, f, server)
        update = server(gradients)
        found[2, t] = ((update - mean) ** 2).sum()
        eta = problem.step(t, case.rounds)
        assert eta <= 1 / problem.smoothness, "the theorems suppose eta <= 1/L"
        w = w - eta * update
    return found


def needed(case: TrainingCase, found: simulation.Result) -> float:
    """Return the c that the worst round of this training would have needed."""
    return max(found["errors"]) / (case.b * found["spread"]) if case.b else 0.0


def curves(case: TrainingCase, found: simulation.Result) -> tuple[Floats, Floats]:
    """Return the theorem's quantity and its bound after 1 to T rounds."""
    problem = PROBLEMS[case.problem](case.dim)
    floor = case.floor(found["c"])
    measured, losses = np.array(found["measured"]), found["losses"]
    rounds = range(1, case.rounds + 1)
    if isinstance(problem, Quadratic):
        bound = [convex_bound(t, measured[0], problem.convexity, problem.smoothness, floor) for t in rounds]
        return measured[1:], np.array(bound)
    eta = problem.step(0, case.rounds)
    bound = [nonconvex_bound(losses[0] - losses[t], eta, t, floor) for t in rounds]
    return np.cumsum(measured[:-1]) / np.arange(1, case.rounds + 1), np.array(bound)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the part of its bound that the worst attack's curve took in the last round, and the rates in T."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if "sketch" in row:
            cells = lines.setdefault((row["problem"], row["b"]), {}).setdefault(row["rule"], [])
            cells.append(row.get("refused") or three_digits(row["last"]))
    body = [[*names, *(" / ".join(dict.fromkeys(pair)) for pair in own.values())] for names, own in lines.items()]
    rules = dict.fromkeys(f"`{row['rule']}`" for row in rows if "sketch" in row)
    counted = [(row["curves"], row["rounds_above"]) for row in rows if "curves" in row]
    told = f"{sum(n for n, _ in counted)} curves; rounds above the bound: {sum(n for _, n in counted)}."
    parts, rates = [told, markdown_table(["problem", "b", *rules], body)], [row for row in rows if "rate" in row]
    return "\n\n".join([*parts, table_of(rates)] if rates else parts)


def common_cases(results: Results) -> list[tuple[TrainingCase, simulation.Result]]:
    """Return the cases that all attacks and rules have in common, without the horizons and long runs."""
    return [pair for pair in results if pair[0].rounds == results[0][0].rounds and pair[0].rule in RULES]


def groups(results: Results) -> list[list[tuple[TrainingCase, simulation.Result]]]:
    """Group the cases that differ in the attack only."""
    found: dict[tuple[Any, ...], list[tuple[TrainingCase, simulation.Result]]] = {}
    for case, result in results:
        found.setdefault((case.problem, case.rule, case.b, case.projected), []).append((case, result))
    return list(found.values())


def rows(results: Results) -> list[dict[str, Any]]:
    """Return the part of its bound that the worst attack's curve took by problem, rule, b, sketch; and the rates."""
    lines: list[dict[str, Any]] = []
    for group in groups(common_cases(results)):
        case, found = group[0]
        line: dict[str, Any] = {"problem": case.problem, "rule": case.rule, "b": f"{case.b:g}", "sketch": case.sketch}
        if "refused" in found:
            lines.append(line | {"refused": "refuses"})
            continue
        by, last, most = worst(group)
        asked, above = max(needed(*pair) for pair in group), sum(rounds_above(*pair) for pair in group)
        line |= {"c": found["c"], "needed": asked, "phi": case.floor(found["c"])}
        lines.append(line | {"last": last, "by": by.attack, "most": most, "curves": len(group), "rounds_above": above})
    return lines + rates(results)


def rounds_above(case: TrainingCase, found: simulation.Result) -> int:
    """Count the rounds of a curve that are above the bound; NaN is above."""
    measured, bound = curves(case, found)
    return int((~(measured <= bound)).sum())


def worst(group: Results) -> tuple[TrainingCase, float, float]:
    """Return the case whose curve ends highest in its bound, that part, and the largest part in any round."""
    parts = [(case, np.divide(*curves(case, found))) for case, found in group]
    by, part = max(parts, key=lambda pair: float(pair[1][-1]))
    return by, float(part[-1]), max(float(part.max()) for _, part in parts)


def rates(results: Results) -> list[dict[str, Any]]:
    """Return the rates in T, of runs with other horizons and so other steps, and of one long run."""
    lines = []
    for rule, b, attack in dict.fromkeys((case.rule, case.b, case.attack) for case, _ in results):
        alike = [pair for pair in results if (pair[0].rule, pair[0].b, pair[0].attack) == (rule, b, attack)]
        horizons = [pair for pair in alike if pair[0].problem == "non-convex" and pair[0].rounds in HORIZONS]
        long = [pair for pair in alike if pair[0].problem == "strongly convex" and pair[0].rounds == LONG_HORIZON]
        if len(horizons) == len(HORIZONS) and long:
            means, measured = [float(curves(*pair)[0][-1]) for pair in horizons], curves(*long[0])[0]
            gamma = 4 * Quadratic.smoothness / Quadratic.convexity
            late, rounds = slice(3 * LONG_HORIZON // 4, None), np.arange(gamma, gamma + LONG_HORIZON)
            line: dict[str, Any] = {"rate": f"`{rule}`, {attack}, b = {b:g}"}
            line |= {f"non-convex, T = {T}": value for T, value in zip(HORIZONS, means, strict=True)}
            late_slope = log_slope(rounds[late], measured[late])  # bound: t + gamma - 1
            lines.append(line | {"slope": log_slope(HORIZONS, means), "strongly convex, slope in t": late_slope})
    return lines


def draw(results: Results) -> Any:
    """Draw the part of its bound that the worst curve took, a panel a problem and a rule."""
    whole = [pair for pair in common_cases(results) if "refused" not in pair[1]]
    problems = list(dict.fromkeys(case.problem for case, _ in whole))
    rules = list(dict.fromkeys(case.rule for case, _ in whole))
    shares = sorted({case.b for case, _ in whole})
    figure, panels = new_figure(len(problems), len(rules), (3.2 * len(rules), 2.5 * len(problems)))
    labels: dict[str, Any] = {}
    for row, problem in zip(panels, problems, strict=True):
        for panel, rule in zip(row, rules, strict=True):
            for group in groups([pair for pair in whole if (pair[0].problem, pair[0].rule) == (problem, rule)]):
                by = worst(group)[0]
                measured, bound = curves(by, dict(group)[by])
                style = {"color": COLOURS[shares.index(by.b)], "linestyle": "-" if by.projected else "--"}
                (line,) = panel.plot(range(1, by.rounds + 1), measured / bound, linewidth=1.0, **style)
                labels[f"b = {by.b:g}, {by.sketch}"] = line
            panel.axhline(1, color=RED, linestyle=":")
            panel.set_yscale("log")
            panel.set_ylim(1e-3, 1.5)
            panel.set_title(f"{problem}, {rule}", fontsize=9)
            panel.set_xlabel("round", fontsize=8)
    figure.supylabel("measured over bound, worst attack", fontsize=9)
    figure.legend(labels.values(), labels, fontsize=8, frameon=False, loc="outside lower center", ncols=6)
    return figure
