"""How often a sketch leaves 1 +- eps somewhere in the whole span of M clients, against k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from bartizan._util.types import Floats
from bartizan.sketch import Achlioptas, Gaussian, Rotated, distortion, embedding_dimension
from bartizan.studies.theory.ledger import Result
from bartizan.studies.theory.markdown import table
from bartizan.studies.theory.spans import SPANS, basis

Sketching = Callable[[Floats, int], Floats]
"""(rows, seed) -> their sketches."""

M, EPS, DELTA, ROUNDS = 8, 0.5, 0.05, 10
SPARSITIES = (8, 16, 32)
WIDEST = ("dense", "common part", "heavy-tailed", "64 coordinates")  # spans of so many coordinates that s=8 is slow


@dataclass(frozen=True)
class Cell:
    """`trials` times `rounds` sketches of a span; each trial draws its span, each round its sketch."""

    sketch: str
    span: str
    k: int
    n_clients: int
    eps: float
    delta: float
    rounds: int
    trials: int

    @property
    def theorem(self) -> int:
        """The k that the paper asks for."""
        return embedding_dimension(self.n_clients, self.eps, self.delta, self.rounds)


def worst_distortion(sketch: Sketching, rows: Floats, seed: int) -> float:
    """How far |Pv|^2 gets from 1 over all unit v of a span, given an orthonormal basis of it by rows.

    These are the extreme eigenvalues of the projected Gram matrix: of all vectors, not of some that were tried.
    """
    y = sketch(rows, seed)
    return float(np.abs(np.linalg.eigvalsh(y @ y.T) - 1).max())


def distortions(sketch: Sketching, cell: Cell, *, independent: bool) -> Floats:
    """Of every round of every trial, (trials, rounds)."""
    found = np.empty((cell.trials, cell.rounds))
    for trial in range(cell.trials):
        rows = basis(cell.span, cell.n_clients, np.random.default_rng(trial), independent=independent)
        for t in range(cell.rounds):
            found[trial, t] = worst_distortion(sketch, rows, trial * cell.rounds + t)
    return found


def sketching(name: str, k: int) -> Sketching:
    """
    >>> sketching("achlioptas s=16", 64)(np.eye(3), 0).shape
    (3, 64)
    """
    kind, _, s = name.partition(" s=")
    known = {"gaussian": Gaussian, "rotated": Rotated}
    sketch = Achlioptas(k, int(s)) if kind == "achlioptas" else known[kind](k)
    return lambda rows, seed: sketch(rows, seed=seed)


def measure(cell: Cell) -> Result:
    return outcome(distortions(sketching(cell.sketch, cell.k), cell, independent=cell.sketch != "rotated"), cell)


def outcome(found: Floats, cell: Cell) -> Result:
    """How often 1 +- eps was left, and how far."""
    failed = found > cell.eps
    return {
        "failed_rounds": int(failed.sum()),
        "failed_trials": int(failed.any(axis=1).sum()),
        "median": float(np.median(found)),
        "worst": float(found.max()),
    }


def kept(cell: Cell, found: Result) -> bool | None:
    """Whether at most a part delta of all trials has a round that leaves 1 +- eps; None where these can't tell."""
    low, high = limits(found["failed_trials"], cell.trials)
    return True if high <= cell.delta else False if low > cell.delta else None


def limits(failed: int, trials: int, odds: float = 0.05) -> tuple[float, float]:
    """Between what the share of failures lies (Clopper and Pearson, 1934), but for these odds.

    >>> [round(limit, 3) for limit in limits(0, 50)], [round(limit, 3) for limit in limits(49, 500)]
    ([0.0, 0.071], [0.073, 0.127])
    """

    def at_most(count: int, share: float) -> float:
        """The odds of so many failures or fewer."""
        n = np.arange(count + 1)
        logs = np.array([math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1) for i in n])
        return float(np.exp(logs + n * math.log(share) + (trials - n) * math.log1p(-share)).sum())

    def crossing(count: int, wanted: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(count, middle) > wanted else (low, middle)
        return (low + high) / 2

    below = 0.0 if failed == 0 else crossing(failed - 1, 1 - odds / 2)
    return below, 1.0 if failed == trials else crossing(failed, odds / 2)


def cells(quick: bool) -> list[Cell]:
    """Small spans against k, the paper's size at its own k, and the theorem's constant at large s.

    A Gaussian matrix has the same law on every span, so one that is quick to draw stands for "any".
    """
    theorem = embedding_dimension(M, EPS, DELTA, ROUNDS)
    powers = [2**n for n in range(5, math.ceil(math.log2(theorem)) + 1)]
    small = [k for k in powers if k < theorem] + [theorem]
    if quick:
        powers, small = powers[2::2], small[2::2]
    spans = [span for span in SPANS if span != "gradients" or find_spec("torch")]

    def cell(sketch: str, span: str, k: int) -> Cell:
        return Cell(sketch, span, k, M, EPS, DELTA, ROUNDS, 2 if quick else _trials(sketch, span, k))

    found = [cell("gaussian", "any", k) for k in small]
    found += [cell("rotated", span, k) for span in spans for k in powers if k >= 64]
    for s in SPARSITIES[::2] if quick else SPARSITIES:
        for span in spans:
            # Over a network's 33,914 coordinates an Achlioptas matrix is slow.
            ks = small if span not in WIDEST else [k for k in small if k != 1024]
            ks = ks if span != "gradients" else small[:1] if quick else [256, 512]
            found += [cell(f"achlioptas s={s}", span, k) for k in ks]
    return found + _at_the_papers_size(quick, spans) + _at_large_s(quick)


def _trials(sketch: str, span: str, k: int) -> int:
    """Of 75 without a failure it is shown that at most 5% fail; more where some do, at 256 and 512 and on axes."""
    literal = sketch.startswith("achlioptas")
    if span == "gradients":
        return 4 if literal else 75
    if literal and span == "1 coordinate" and k >= 256:
        return 500
    return 10 if k < 128 else 75 if k not in (256, 512) or (literal and span in WIDEST) else 200


def _at_the_papers_size(quick: bool, spans: list[str]) -> list[Cell]:
    """M=50, T=100, delta=0.05, k=4096: the eps that the theorem grants there."""
    eps = distortion(4096, 50, 0.05, 100)
    where = [("gaussian", "any"), ("achlioptas s=8", "1 coordinate"), ("rotated", "1 coordinate")]
    where += [("rotated", "gradients")] if "gradients" in spans else []
    return [Cell(sketch, span, 4096, 50, eps, 0.05, 10 if quick else 100, 1) for sketch, span in where]


def _at_large_s(quick: bool) -> list[Cell]:
    """One round at the theorem's own k=414, on coordinate axes: where a column has few non-zeros."""
    k = embedding_dimension(8, 0.9, 0.01)
    return [
        Cell(f"achlioptas s={s}", "1 coordinate", k, 8, 0.9, 0.01, 1, 100 if quick else 1000)
        for s in (8, 16, 32, 128, k)
    ]


def rows(results: Sequence[tuple[Cell, Result]]) -> list[dict[str, Any]]:
    return [
        asdict(cell)
        | found
        | dict(zip(("low", "high"), limits(found["failed_trials"], cell.trials), strict=True))
        | {"theorem": cell.theorem}
        for cell, found in results
    ]


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    curves = [(cell, found) for cell, found in results if cell.n_clients == M and cell.rounds == ROUNDS]
    others = [pair for pair in results if pair not in curves]
    parts = []
    if curves:
        spans, body = list(dict.fromkeys(cell.span for cell, _ in curves)), []
        for sketch in dict.fromkeys(cell.sketch for cell, _ in curves):
            mine = [(cell, found) for cell, found in curves if cell.sketch == sketch]
            body.append([sketch, *(_least(mine, span) for span in spans)])
        parts.append(
            f"M={M}, eps={EPS}, delta={DELTA}, T={ROUNDS}: the theorem asks for k={curves[0][0].theorem}. The least k\n"
            "from which on it is shown (95% limits of Clopper and Pearson) that at most delta of the trials have a\n"
            "round that leaves 1 +- eps. `a to b`: from a on nothing shows the contrary, from b on it is shown.\n\n"
            + table(["sketch", *spans], body)
            + "\n\nTrials that failed, of how many:\n\n"
            + _counts(curves)
        )
    if others:
        heads = ["sketch", "span", "k", "M", "eps", "delta", "sketches", "left 1 +- eps", "median", "worst"]
        parts.append(table(heads, [_line(cell, found) for cell, found in others]))
    return "\n\n".join(parts)


def _least(mine: Sequence[tuple[Cell, Result]], span: str) -> str:
    """The least k from which on the promise is shown to be kept, of those that were tried."""
    here = sorted((cell.k, kept(cell, found)) for cell, found in mine if cell.span == span)
    if not here:
        return ""
    shown = [k for i, (k, _) in enumerate(here) if all(ok for _, ok in here[i:])]
    likely = [k for i, (k, _) in enumerate(here) if not any(ok is False for _, ok in here[i:])]
    if not likely:
        return f"above {here[-1][0]}"
    if not shown:
        return f"{likely[0]} or more"
    return str(shown[0]) if shown[0] == likely[0] else f"{likely[0]} to {shown[0]}"


def _counts(curves: Sequence[tuple[Cell, Result]]) -> str:
    ks = sorted({cell.k for cell, _ in curves})
    body = []
    for sketch, span in dict.fromkeys((cell.sketch, cell.span) for cell, _ in curves):
        shown = {
            cell.k: f"{found['failed_trials']}/{cell.trials}" + ("?" if kept(cell, found) is None else "")
            for cell, found in curves
            if (cell.sketch, cell.span) == (sketch, span)
        }
        body.append([sketch, span, *(shown.get(k, "") for k in ks)])
    return table(["sketch", "span (? can't tell)", *map(str, ks)], body)


def _line(cell: Cell, found: Result) -> list[str]:
    n = cell.trials * cell.rounds
    shown = [cell.sketch, cell.span, cell.k, cell.n_clients, f"{cell.eps:.3g}", cell.delta, n, found["failed_rounds"]]
    return [*map(str, shown), f"{found['median']:.2f}", f"{found['worst']:.2f}"]
