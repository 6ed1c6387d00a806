"""How often a sketch leaves 1 +- eps somewhere in the whole span of M clients, against k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from bartizan.sketch import Achlioptas, Gaussian, Rotated, distortion, embedding_dimension
from bartizan.theory.ledger import Result
from bartizan.theory.markdown import table
from bartizan.theory.spans import SPANS, basis
from bartizan.types import Floats

Sketching = Callable[[Floats, int], Floats]
"""(rows, seed) -> their sketches."""

M, EPS, DELTA, ROUNDS = 8, 0.5, 0.05, 10
SPARSITIES = (8, 16, 32)


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


def kept(cell: Cell, found: Result) -> bool:
    """Whether at most a part delta of the trials had a round that left 1 +- eps."""
    return bool(found["failed_trials"] <= cell.delta * cell.trials)


def cells(quick: bool) -> list[Cell]:
    """Small spans against k, the paper's size at its own k, and the theorem's constant at large s.

    A Gaussian matrix has the same law on every span, so one that is quick to draw stands for "any".
    """
    theorem = embedding_dimension(M, EPS, DELTA, ROUNDS)
    powers = [2**n for n in range(5, math.ceil(math.log2(theorem)) + 1)]
    small = [k for k in powers if k < theorem] + [theorem]
    trials = 4 if quick else 50
    spans = [span for span in SPANS if span != "gradients" or find_spec("torch")]

    def cell(sketch: str, span: str, k: int, trials: int = trials) -> Cell:
        return Cell(sketch, span, k, M, EPS, DELTA, ROUNDS, trials)

    found = [cell("gaussian", "any", k) for k in small]
    found += [cell("rotated", span, k) for span in spans for k in powers if k >= 64]
    for s in SPARSITIES[::2] if quick else SPARSITIES:
        for span in spans:
            # Over a network's 33,914 coordinates an Achlioptas matrix is slow, over 8 axes it is quick, and worst.
            n = {"gradients": max(2, trials // 10), "1 coordinate": 10 * trials}.get(span, trials)
            ks = [k for k in small if not (quick and span == "gradients" and k > 128)]
            found += [cell(f"achlioptas s={s}", span, k, n) for k in ks]
    return found + _at_the_papers_size(quick, spans) + _at_large_s(quick)


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
        | {"theorem": cell.theorem, "failed_part": found["failed_rounds"] / (cell.trials * cell.rounds)}
        for cell, found in results
    ]


def tell(results: Sequence[tuple[Cell, Result]]) -> str:
    curves = [(cell, found) for cell, found in results if cell.n_clients == M and cell.rounds == ROUNDS]
    others = [pair for pair in results if pair not in curves]
    parts = []
    if curves:
        spans = list(dict.fromkeys(cell.span for cell, _ in curves))
        body = []
        for sketch in dict.fromkeys(cell.sketch for cell, _ in curves):
            mine = [(cell, found) for cell, found in curves if cell.sketch == sketch]
            body.append([sketch, *(_least(mine, span) for span in spans)])
        parts.append(
            f"M={M}, eps={EPS}, delta={DELTA}, T={ROUNDS}: the theorem asks for k={curves[0][0].theorem}. The least k\n"
            "from which on at most delta of the trials had a round that left 1 +- eps:\n\n"
            + table(["sketch", *spans], body)
        )
    if others:
        heads = ["sketch", "span", "k", "M", "eps", "delta", "sketches", "left 1 +- eps", "median", "worst"]
        parts.append(table(heads, [_line(cell, found) for cell, found in others]))
    return "\n\n".join(parts)


def _least(mine: Sequence[tuple[Cell, Result]], span: str) -> str:
    """The least k from which on the promise is kept, of those that were tried."""
    here = sorted((cell.k, kept(cell, found)) for cell, found in mine if cell.span == span)
    if not here:
        return ""
    enough = [k for i, (k, _) in enumerate(here) if all(ok for _, ok in here[i:])]
    return str(enough[0]) if enough else f"above {here[-1][0]}"


def _line(cell: Cell, found: Result) -> list[str]:
    n = cell.trials * cell.rounds
    shown = [cell.sketch, cell.span, cell.k, cell.n_clients, f"{cell.eps:.3g}", cell.delta, n, found["failed_rounds"]]
    return [*map(str, shown), f"{found['median']:.2f}", f"{found['worst']:.2f}"]
