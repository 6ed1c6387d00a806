"""The measured curves beside their bounds: what `convergence` found, as numbers and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan._util.types import Floats
from bartizan.studies.theory.bounds import convex_bound, error_floor, nonconvex_bound, nonconvex_step
from bartizan.studies.theory.convergence import HORIZONS, RULES, Cell
from bartizan.studies.theory.ledger import Result
from bartizan.studies.theory.markdown import number, table
from bartizan.studies.theory.problems import PROBLEMS, Quadratic


def needed(cell: Cell, found: Result) -> float:
    """The c that this training would have needed in its worst round; its bound has the one from elsewhere."""
    return max(found["errors"]) / (cell.b * found["spread"]) if cell.b else 0.0


def curves(cell: Cell, found: Result) -> tuple[Floats, Floats]:
    """What the theorem speaks of, and its bound, after 1 to T rounds."""
    problem = PROBLEMS[cell.problem].of(cell.dim)
    floor = error_floor(found["c"], cell.b, cell.eps, cell.sigma, cell.kappa)
    measured, losses = np.array(found["measured"]), found["losses"]
    rounds = range(1, cell.rounds + 1)
    if isinstance(problem, Quadratic):
        bound = [convex_bound(t, measured[0], problem.convexity, problem.smoothness, floor) for t in rounds]
        return measured[1:], np.array(bound)
    eta = nonconvex_step(problem.smoothness, cell.rounds)
    bound = [nonconvex_bound(losses[0] - losses[t], eta, t, floor) for t in rounds]
    return np.cumsum(measured[:-1]) / np.arange(1, cell.rounds + 1), np.array(bound)


def slope(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Of log y against log x.

    >>> round(slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def rows(results: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    lines = []
    for cell, found in results:
        line = {
            "problem": cell.problem,
            "rule": cell.rule,
            "sketch": "projected" if cell.projected else "exact",
            "b": cell.b,
            "attack": cell.attack,
            "horizon": cell.rounds,
        }
        if "refused" in found:
            lines.append(line | {"refused": found["refused"]})
            continue
        for t, (measured, bound) in enumerate(zip(*curves(cell, found), strict=True), start=1):
            lines.append(line | {"c": found["c"], "eps": cell.eps, "round": t, "measured": measured, "bound": bound})
    return lines


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    heads = [
        "problem",
        "rule",
        "b",
        "sketch",
        "c",
        "c needed",
        "Phi",
        "part of the bound, last round",
        "by",
        "any round",
    ]
    return "\n\n".join(
        (
            "The largest part of its bound that any attack's curve took in the last round, which attack that was, and\n"
            "the largest in any round (1 would touch it). c is the exact rule's from other clients and draws; needed\n"
            "is what the worst round of these trainings would have asked for.",
            table(heads, [_summary(group) for group in groups(main(results))]),
            count(results),
            *_rates(results),
        )
    )


def main(results: Sequence[tuple[Cell, Result]]) -> list[tuple[Cell, Result]]:
    """Those that all attacks and rules have in common, without the horizons and long runs."""
    return [pair for pair in results if pair[0].rounds == results[0][0].rounds and pair[0].rule in RULES]


def count(results: Sequence[tuple[Cell, Result]]) -> str:
    """How many curves, rounds, and rounds above the bound there are, of all cells."""
    whole = [(cell, curves(cell, found)) for cell, found in results if "refused" not in found]
    above = sum(int((~(measured <= bound)).sum()) for _, (measured, bound) in whole)  # NaN is not below
    rounds = sum(cell.rounds for cell, _ in whole)
    trainings = sum(cell.seeds for cell, _ in whole)
    return f"{len(whole)} curves (means of {trainings} trainings), {rounds} rounds, {above} of them above the bound."


def groups(results: Sequence[tuple[Cell, Result]]) -> list[list[tuple[Cell, Result]]]:
    groups: dict[tuple[Any, ...], list[tuple[Cell, Result]]] = {}
    for cell, found in results:
        groups.setdefault((cell.problem, cell.rule, cell.b, cell.projected), []).append((cell, found))
    return list(groups.values())


def _summary(group: list[tuple[Cell, Result]]) -> list[str]:
    cell, found = group[0]
    head = [cell.problem, cell.rule, f"{cell.b:g}", "projected" if cell.projected else "exact"]
    if "refused" in found:
        return [*head, "refuses", *[""] * 5]
    by, last, most = worst(group)
    floor = error_floor(found["c"], cell.b, cell.eps, cell.sigma, cell.kappa)
    asked = max(needed(*pair) for pair in group)
    return [*head, *map(number, (found["c"], asked, floor, last)), by.attack, number(most)]


def worst(group: Sequence[tuple[Cell, Result]]) -> tuple[Cell, float, float]:
    """Whose curve ends highest in its bound, that part, and the largest part that any curve took in any round."""
    parts = [(cell, np.divide(*curves(cell, found))) for cell, found in group]
    by, part = max(parts, key=lambda pair: float(pair[1][-1]))
    return by, float(part[-1]), max(float(part.max()) for _, part in parts)


def _times(cell: Cell) -> Floats:
    """What the bound falls with: t + gamma - 1, or t."""
    problem = PROBLEMS[cell.problem].of(cell.dim)
    gamma = 4 * problem.smoothness / problem.convexity if isinstance(problem, Quadratic) else 1.0
    return np.arange(gamma, gamma + cell.rounds)


def _rates(results: Sequence[tuple[Cell, Result]]) -> list[str]:
    """The rate in T: of runs with other horizons and so other steps, and of one long run."""
    said = []
    for rule, b, attack in dict.fromkeys((cell.rule, cell.b, cell.attack) for cell, _ in results):
        alike = [(cell, found) for cell, found in results if (cell.rule, cell.b, cell.attack) == (rule, b, attack)]
        horizons = [p for p in alike if p[0].problem == "non-convex" and p[0].rounds in HORIZONS]
        long = [p for p in alike if p[0].problem == "strongly convex" and p[0].rounds == 4 * HORIZONS[-1]]
        if len(horizons) < len(HORIZONS) or not long:
            continue
        averages = [curves(cell, found)[0][-1] for cell, found in horizons]
        cell, found = long[0]
        late = slice(3 * cell.rounds // 4, None)
        measured = curves(cell, found)[0]
        rate = slope(_times(cell)[late], measured[late])
        said.append(
            f"{rule}, b={b:g}, {attack}: non-convex, mean squared gradient after T = {', '.join(map(str, HORIZONS))} "
            f"rounds at 1/(L sqrt T):\n{', '.join(map(number, averages))}, slope {slope(HORIZONS, averages):.2f} in T. "
            f"Strongly convex, {number(measured[-1])} after {cell.rounds} rounds, slope in the last quarter {rate:.2f}."
        )
    return said
