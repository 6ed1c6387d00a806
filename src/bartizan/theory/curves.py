"""The measured curves beside their bounds: what `convergence` found, as numbers and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan.theory.bounds import convex_bound, error_floor, nonconvex_bound, nonconvex_step
from bartizan.theory.convergence import HORIZONS, RULES, Cell
from bartizan.theory.ledger import Result
from bartizan.theory.markdown import number, table
from bartizan.theory.problems import PROBLEMS, Quadratic
from bartizan.types import Floats


def constant(results: Sequence[tuple[Cell, Result]], cell: Cell) -> float:
    """The rule's c at this b: the largest mean error over b nu^2 of any round and attack, nothing being projected."""
    if not cell.b:
        return 0.0
    alike = [
        max(found["errors"]) / (other.b * found["spread"])
        for other, found in results
        if (other.problem, other.rule, other.n_byzantine) == (cell.problem, cell.rule, cell.n_byzantine)
        and not other.projected
        and "errors" in found
    ]
    return max(alike, default=0.0)


def curves(cell: Cell, found: Result, c: float) -> tuple[Floats, Floats]:
    """What the theorem speaks of, and its bound, after 1 to T rounds."""
    problem = PROBLEMS[cell.problem].of(cell.dim)
    floor = error_floor(c, cell.b, cell.eps, cell.sigma, cell.kappa)
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
        c = constant(results, cell)
        for t, (measured, bound) in enumerate(zip(*curves(cell, found, c), strict=True), start=1):
            lines.append(line | {"c": c, "eps": cell.eps, "round": t, "measured": measured, "bound": bound})
    return lines


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    main = [pair for pair in results if pair[0].rounds == results[0][0].rounds and pair[0].rule in RULES]
    return "\n\n".join(
        (
            "The largest part of its bound that any attack's curve took, in any round and in the last (1 would touch\n"
            "it), and the slope of that curve in log-log, against t + gamma - 1 for distances and t for gradients.",
            table(
                [
                    "problem",
                    "rule",
                    "b",
                    "sketch",
                    "c",
                    "Phi",
                    "most of the bound",
                    "in the last round",
                    "by",
                    "slope of that",
                    "rounds above",
                ],
                [_summary(results, group) for group in _groups(main)],
            ),
            *_rates(results),
        )
    )


def _groups(results: Sequence[tuple[Cell, Result]]) -> list[list[tuple[Cell, Result]]]:
    groups: dict[tuple[Any, ...], list[tuple[Cell, Result]]] = {}
    for cell, found in results:
        groups.setdefault((cell.problem, cell.rule, cell.b, cell.projected), []).append((cell, found))
    return list(groups.values())


def _summary(results: Sequence[tuple[Cell, Result]], group: list[tuple[Cell, Result]]) -> list[str]:
    cell, found = group[0]
    head = [cell.problem, cell.rule, f"{cell.b:g}", "projected" if cell.projected else "exact"]
    if "refused" in found:
        return [*head, *[""] * 6, "refused"]
    c = constant(results, cell)
    most, last, above = -1.0, 0.0, 0
    by, worst = cell, curves(cell, found, c)[0]
    for one, what in group:
        measured, bound = curves(one, what, c)
        above += int((~(measured <= bound)).sum())  # NaN is not below
        last = max(last, float(measured[-1] / bound[-1]))
        if (measured / bound).max() > most:
            most, by, worst = float((measured / bound).max()), one, measured
    floor = error_floor(c, cell.b, cell.eps, cell.sigma, cell.kappa)
    return [
        *head,
        number(c),
        number(floor),
        number(most),
        number(last),
        by.attack,
        number(slope(_times(by), worst)),
        str(above),
    ]


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
        averages = [curves(cell, found, 0.0)[0][-1] for cell, found in horizons]
        cell, found = long[0]
        late = slice(cell.rounds // 8, None)
        rate = slope(_times(cell)[late], curves(cell, found, 0.0)[0][late])
        said.append(
            f"{rule}, b={b:g}, {attack}: non-convex, mean squared gradient after T = {', '.join(map(str, HORIZONS))} "
            f"rounds at 1/(L sqrt T):\n{', '.join(map(number, averages))}, slope {slope(HORIZONS, averages):.2f} in T. "
            f"Strongly convex, the last {cell.rounds - cell.rounds // 8} of {cell.rounds} rounds: slope {rate:.2f}."
        )
    return said
