"""The share of sketches that leave 1 +- eps somewhere in the span of M clients, against k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy import stats

from bartizan._util import schema
from bartizan._util.types import Floats
from bartizan.sketch import Achlioptas, Gaussian, Rotated, distortion, embedding_dimension
from studies.plotting import COLOURS, GREY, RED, new_figure
from studies.tables import markdown_table
from studies.theory.simulated_round import Result

TITLE = "The embedding: 1 +- eps over the whole span"


Sketching = Callable[[Floats, int], Floats]
"""(rows, seed) -> their sketches."""

M, EPS, DELTA, ROUNDS = 8, 0.5, 0.05, 10
SPARSITIES = (8, 16, 32)
WIDEST = ("dense", "common part", "heavy-tailed", "64 coordinates")  # spans of so many coordinates that s=8 is slow
SPAN_DIM = 2**14  # coordinates that a span fills, or is scattered over
# Entries of Gaussian and Achlioptas matrices are independent: which coordinates a span has does not matter to them,
# and how many there are hardly does.
INDEPENDENT_DIM = 256


def sparse(each: int) -> Callable[[int, np.random.Generator, int], Floats]:
    """Return a function that draws vectors with coordinates of their own, `each` of them."""

    def draw(n: int, rng: np.random.Generator, p: int) -> Floats:
        x = np.zeros((n, p))
        places = rng.choice(p, n * each, replace=False).reshape(n, each)
        np.put_along_axis(x, places, rng.normal(size=(n, each)), axis=1)
        return x

    return draw


def shared(n: int, rng: np.random.Generator, p: int) -> Floats:
    """Draw vectors on the same 64 coordinates."""
    x = np.zeros((n, p))
    x[:, rng.choice(p, 64, replace=False)] = rng.normal(size=(n, 64))
    return x


def common_part(n: int, rng: np.random.Generator, p: int) -> Floats:
    """Draw vectors, one of them that of ones, as gradients have that share a part: all its signs are equal."""
    x = rng.normal(size=(n, p))
    x[0] = 1
    return x


@lru_cache(maxsize=8)
def gradients(n: int, draw: int) -> Floats:
    """Return gradients of n clients: the network `cnn` on the embedded images, batches of 32."""
    from bartizan.lab import data
    from bartizan.lab.data import partition
    from bartizan.lab.data.device_images import OnDevice
    from bartizan.lab.models.networks import build
    from bartizan.lab.torch_import import torch
    from bartizan.lab.training.clients import Clients
    from bartizan.lab.training.flat_model import FlatLayout

    images = data.load("fashion-mnist-mini").train
    rng = np.random.default_rng(draw)
    parts = partition.split("dirichlet", images.labels, n, rng, least=32, beta=0.6)
    model = build("cnn", 10, images.shape, seed=draw)
    clients = Clients(model, OnDevice(images), [torch.from_numpy(part) for part in parts], seed=draw)
    weights = FlatLayout.of(model).read(model)
    return clients.updates(weights, range(n), round=1).updates.double().numpy()


SPANS: dict[str, Callable[[int, np.random.Generator, int], Floats]] = {
    "dense": lambda n, rng, p: rng.normal(size=(n, p)),
    "common part": common_part,
    # Student's t with 1.5 degrees of freedom: no variance, so a few coordinates carry most of each vector.
    "heavy-tailed": lambda n, rng, p: rng.standard_t(1.5, size=(n, p)),
    "1 coordinate": sparse(1),
    "8 coordinates": sparse(8),
    "64 coordinates": sparse(64),
    "64 shared": shared,
    "gradients": lambda n, rng, p: gradients(n, int(rng.integers(4))),  # p is the network's
}
FULL = ("dense", "common part", "heavy-tailed", "gradients")


def basis(name: str, n: int, rng: np.random.Generator, *, independent: bool, p: int = SPAN_DIM) -> Floats:
    """Return an orthonormal basis of a named span, by rows; `independent` for sketches with independent entries."""
    if name == "any":
        return np.eye(n)
    x = SPANS[name](n, rng, INDEPENDENT_DIM if independent and name in FULL else p)
    used = x.any(axis=0)
    rows = np.ascontiguousarray(np.linalg.qr(x[:, used].T)[0].T)
    if not independent:
        x[:, used], rows = rows, x
    return rows


@dataclass(frozen=True)
class EmbeddingCase:
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
        """The k that the paper's theorem asks for."""
        return embedding_dimension(self.n_clients, self.eps, self.delta, self.rounds)

    def limits(self, found: Result) -> tuple[float, float]:
        """Return the 95% limits of the share of trials that fail."""
        return limits(found["failed_trials"], self.trials)


Results = Sequence[tuple[EmbeddingCase, Result]]


def distortions(sketch: Sketching, case: EmbeddingCase, *, independent: bool) -> Floats:
    """Return how far |Pv|^2 gets from 1 over all unit v of a span, in every round of every trial: (trials, rounds).

    That is the extreme eigenvalue of the projected Gram matrix, a maximum over all vectors and not over a sample.
    """
    found = np.empty((case.trials, case.rounds))
    for trial in range(case.trials):
        rows = basis(case.span, case.n_clients, np.random.default_rng(trial), independent=independent)
        for t in range(case.rounds):
            y = sketch(rows, trial * case.rounds + t)
            found[trial, t] = np.abs(np.linalg.eigvalsh(y @ y.T) - 1).max()
    return found


def sketching(name: str, k: int) -> Sketching:
    """Return a sketch by name.

    >>> sketching("achlioptas s=16", 64)(np.eye(3), 0).shape
    (3, 64)
    """
    kind, _, s = name.partition(" s=")
    known = {"gaussian": Gaussian, "rotated": Rotated}
    sketch = Achlioptas(k, int(s)) if kind == "achlioptas" else known[kind](k)
    return lambda rows, seed: sketch(rows, seed=seed)


def measure(case: EmbeddingCase) -> Result:
    return outcome(distortions(sketching(case.sketch, case.k), case, independent=case.sketch != "rotated"), case)


def outcome(found: Floats, case: EmbeddingCase) -> Result:
    """Count how often 1 +- eps was left, and how far."""
    failed = found > case.eps
    return {
        "failed_rounds": int(failed.sum()),
        "failed_trials": int(failed.any(axis=1).sum()),
        "median": float(np.median(found)),
        "worst": float(found.max()),
    }


def kept(case: EmbeddingCase, found: Result) -> bool | None:
    """Return whether at most a share delta of the trials has a round that leaves 1 +- eps; None if too few."""
    low, high = case.limits(found)
    return True if high <= case.delta else False if low > case.delta else None


def limits(failed: int, trials: int, outside: float = 0.05) -> tuple[float, float]:
    """Return Clopper and Pearson's (1934) confidence limits of the share of failures.

    >>> [round(limit, 3) for limit in limits(0, 50)], [round(limit, 3) for limit in limits(49, 500)]
    ([0.0, 0.071], [0.073, 0.127])
    """

    found = stats.binomtest(failed, trials).proportion_ci(1 - outside, method="exact")
    return float(found.low), float(found.high)


def cases() -> list[EmbeddingCase]:
    """Return small spans against k, the paper's size at its own k, and the theorem's constant at large s.

    A Gaussian matrix has the same distribution on every span, so one that is quick to draw stands for "any".
    """
    theorem = embedding_dimension(M, EPS, DELTA, ROUNDS)
    powers = [2**n for n in range(5, math.ceil(math.log2(theorem)) + 1)]
    small = [k for k in powers if k < theorem] + [theorem]
    spans = [span for span in SPANS if span != "gradients" or find_spec("torch")]

    def case(sketch: str, span: str, k: int) -> EmbeddingCase:
        return EmbeddingCase(sketch, span, k, M, EPS, DELTA, ROUNDS, _trials(sketch, span, k))

    found = [case("gaussian", "any", k) for k in small]
    found += [case("rotated", span, k) for span in spans for k in powers if k >= 64]
    for s in SPARSITIES:
        for span in spans:
            # Over a network's 33,914 coordinates an Achlioptas matrix is slow.
            ks = small if span not in WIDEST else [k for k in small if k != 1024]
            ks = ks if span != "gradients" else [256, 512]
            found += [case(f"achlioptas s={s}", span, k) for k in ks]
    return found + _at_the_papers_size(spans) + _at_large_s()


def _trials(sketch: str, span: str, k: int) -> int:
    """75 without a failure show that at most 5% fail; more where some do, at 256 and 512 and on axes."""
    achlioptas = sketch.startswith("achlioptas")
    if span == "gradients":
        return 4 if achlioptas else 75
    if achlioptas and span == "1 coordinate" and k >= 256:
        return 500
    return 10 if k < 128 else 75 if k not in (256, 512) or (achlioptas and span in WIDEST) else 200


def _at_the_papers_size(spans: list[str]) -> list[EmbeddingCase]:
    """M=50, T=100, delta=0.05, k=4096, at the eps of the theorem."""
    eps = distortion(4096, 50, 0.05, 100)
    where = [("gaussian", "any"), ("achlioptas s=8", "1 coordinate"), ("rotated", "1 coordinate")]
    where += [("rotated", "gradients")] if "gradients" in spans else []
    return [EmbeddingCase(sketch, span, 4096, 50, eps, 0.05, 100, 1) for sketch, span in where]


def _at_large_s() -> list[EmbeddingCase]:
    """One round at the theorem's own k=414, on coordinate axes, where a column has few non-zeros."""
    k = embedding_dimension(8, 0.9, 0.01)
    return [EmbeddingCase(f"achlioptas s={s}", "1 coordinate", k, 8, 0.9, 0.01, 1, 1000) for s in (8, 16, 32, 128, k)]


def against_k(results: Results) -> Results:
    """Return the cases of small spans, which vary k."""
    return [pair for pair in results if (pair[0].n_clients, pair[0].rounds) == (M, ROUNDS)]


def rows(results: Results) -> list[dict[str, Any]]:
    """Return the cases and what was found."""
    return [schema.as_row(case) | found for case, found in results]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the least k at which the promise is shown to be kept, and single sizes.

    `a to b`: from a on nothing shows the contrary, from b on it is shown by Clopper and Pearson's 95% limits.
    """
    names, parts = [field.name for field in fields(EmbeddingCase)], []
    results = [(EmbeddingCase(**{name: row[name] for name in names}), row) for row in rows]
    if curves := against_k(results):
        spans, body = list(dict.fromkeys(case.span for case, _ in curves)), []
        for sketch in dict.fromkeys(case.sketch for case, _ in curves):
            own = [pair for pair in curves if pair[0].sketch == sketch]
            body.append([sketch, *(_least(own, span) for span in spans)])
        parts.append(markdown_table([f"sketch (the theorem asks for {curves[0][0].theorem})", *spans], body))
    if others := [pair for pair in results if pair not in curves]:
        heads = ["sketch", "span", "k", "M", "eps", "delta", "sketches", "left 1 +- eps", "median", "worst"]
        parts.append(markdown_table(heads, [_line(case, found) for case, found in others]))
    return "\n\n".join(parts)


def _least(own: Results, span: str) -> str:
    """Return the least k, of those measured, from which on the promise is shown to be kept."""
    here = sorted((case.k, kept(case, found)) for case, found in own if case.span == span)
    if not here:
        return ""
    shown = [k for i, (k, _) in enumerate(here) if all(ok for _, ok in here[i:])]
    likely = [k for i, (k, _) in enumerate(here) if not any(ok is False for _, ok in here[i:])]
    if not likely:
        return f"above {here[-1][0]}"
    if not shown:
        return f"{likely[0]} or more"
    return str(shown[0]) if shown[0] == likely[0] else f"{likely[0]} to {shown[0]}"


def _line(case: EmbeddingCase, found: Result) -> list[str]:
    n = case.trials * case.rounds
    shown = [case.sketch, case.span, case.k, case.n_clients, f"{case.eps:.3g}", case.delta, n, found["failed_rounds"]]
    return [*map(str, shown), f"{found['median']:.2f}", f"{found['worst']:.2f}"]


def draw(results: Results) -> Any:
    """Draw failed trials against k, a panel a span; a Gaussian matrix is in all panels."""
    lines = against_k(results)
    spans = [span for span in dict.fromkeys(case.span for case, _ in lines) if span != "any"] or ["any"]
    colours = dict(zip(dict.fromkeys(case.sketch for case, _ in lines), COLOURS, strict=False))
    n_rows, n_columns = -(-len(spans) // 4), min(4, len(spans))
    figure, panels = new_figure(n_rows, n_columns, (3.2 * n_columns, 2.7 * n_rows))
    for panel, span in zip(panels.flat, spans, strict=False):
        for sketch, colour in colours.items():
            own = [pair for pair in lines if pair[0].sketch == sketch and pair[0].span in (span, "any")]
            if own:
                _draw_shares(panel, own, colour, sketch)
        if lines:
            panel.axvline(lines[0][0].theorem, color=RED, linestyle=":", label="the theorem's k")
        panel.axhline(DELTA, color=GREY, linestyle="--", linewidth=0.8, label="delta")
        panel.set_xscale("log", base=2)
        panel.set_yscale("symlog", linthresh=0.01)
        panel.set_yticks([0, 0.01, 0.05, 0.2, 1], ["0", "1%", "5%", "20%", "100%"])
        panel.set_ylim(-0.002, 1.3)
        panel.set_title(span, fontsize=9)
        panel.set_xlabel("k", fontsize=8)
    for panel in list(panels.flat)[len(spans) :]:
        panel.set_visible(False)
    figure.supylabel("trials that left 1 ± eps, with 95% limits", fontsize=9)
    labels = panels[0][0].get_legend_handles_labels()
    figure.legend(*labels, fontsize=8, frameon=False, loc="outside lower center", ncols=7)
    return figure


def _draw_shares(panel: Any, own: Results, colour: str, label: str) -> None:
    ordered = sorted(own, key=lambda pair: pair[0].k)
    shares = np.array([found["failed_trials"] / case.trials for case, found in ordered])
    bounds = np.array([case.limits(found) for case, found in ordered])
    lengths = [shares - bounds[:, 0], bounds[:, 1] - shares]
    style = {"fmt": "o-", "markersize": 2.5, "linewidth": 0.9, "elinewidth": 0.5, "color": colour, "label": label}
    panel.errorbar([case.k for case, _ in ordered], shares, lengths, **style)
