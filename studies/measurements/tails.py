"""The distortion of whole spans by each sketch: the worst |eigenvalue - 1| of Q^T P^T P Q, by seeds."""

from typing import Any

import numpy as np

from bartizan import Achlioptas, Gaussian, Rotated
from bartizan._util.console import ProgressLine
from studies.options import add_command
from studies.tables import markdown_table

M, K = 50, 4096
P = 64 * K  # coordinates that Rotated sees
SKETCHES = [*(Rotated(K, n) for n in (1, 8, 16, 32, 64)), Achlioptas(K, s=8), Gaussian(K)]


def orthonormal(x):
    """Return an orthonormal basis of the span of the rows, by rows."""
    return np.linalg.inv(np.linalg.cholesky(x @ x.T)) @ x


# Only the coordinates that a span touches; `distortion` puts them somewhere among the P.
SPARSE = {
    "coordinate axes": lambda rng: np.eye(M),
    "8-sparse vectors": lambda rng: orthonormal(np.kron(np.eye(M), np.ones(8)) * rng.normal(size=8 * M)),
    "64 shared coordinates": lambda rng: orthonormal(rng.normal(size=(M, 64))),
}


def add_to(commands: Any) -> None:
    add_command(commands, tails)


def tails(*, seeds: int = 100) -> None:
    """Print the median and the largest distortion over seeds, of the span of 50 vectors at k = 4096."""
    dense = np.random.default_rng(0).normal(size=(M, P))  # the same one for all seeds: drawing it takes longest
    spans, body = [*SPARSE, "dense"], []
    with ProgressLine("tails", len(SKETCHES) * len(spans) * seeds) as progress:
        for sketch in SKETCHES:
            # The entries of Gaussian and Achlioptas are independent: where a coordinate lies does not matter to them,
            # and a Gaussian matrix has the same law on every span.
            fixed = orthonormal({Rotated: dense, Achlioptas: dense[:, :2048], Gaussian: np.eye(M)}[type(sketch)])
            cells = []
            for span in spans:
                worst = []
                for seed in range(seeds):
                    worst.append(distortion(sketch, fixed if span == "dense" else SPARSE[span], seed))
                    progress.advance()
                cells.append(f"{np.median(worst):.2f} / {np.max(worst):.2f}")
            body.append([repr(sketch), *cells])
    print(markdown_table(["span of 50", *spans], body))


def distortion(sketch, span, seed):
    """Return the worst |eigenvalue - 1| of a basis, or of one drawn by the seed and scattered if that matters."""
    basis = span
    if callable(span):
        rng = np.random.default_rng(seed)
        basis = span(rng)
        if isinstance(sketch, Rotated):
            scattered = np.zeros((M, P))
            scattered[:, rng.choice(P, basis.shape[1], replace=False)] = basis
            basis = scattered
    y = sketch(basis, seed=seed)
    return np.abs(np.linalg.eigvalsh(y @ y.T) - 1).max()
