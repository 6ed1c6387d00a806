"""The distortion of whole spans by each sketch: the worst |eigenvalue - 1| of Q^T P^T P Q, by seeds."""

from typing import Any

import numpy as np

from bartizan import Achlioptas, Gaussian, Rotated
from bartizan._util.console import ProgressLine
from studies.options import add_command
from studies.tables import markdown_table
from studies.theory.subspace_embedding import basis

M, K = 50, 4096
P = 64 * K  # coordinates that Rotated sees
SKETCHES = [*(Rotated(K, n) for n in (1, 8, 16, 32, 64)), Achlioptas(K, s=8), Gaussian(K)]
SPANS = {
    "coordinate axes": "1 coordinate",
    "8-sparse vectors": "8 coordinates",
    "64 shared coordinates": "64 shared",
    "dense": "dense",
}


def add_to(commands: Any) -> None:
    add_command(commands, tails)


def tails(*, seeds: int = 100) -> None:
    """Print the median and the largest distortion over seeds, of the span of 50 vectors at k = 4096."""
    body = []
    with ProgressLine("tails", len(SKETCHES) * len(SPANS) * seeds) as progress:
        for sketch in SKETCHES:
            # The entries of Gaussian and Achlioptas are independent: where a coordinate lies does not matter to them.
            independent, cells, rows = not isinstance(sketch, Rotated), [], np.empty(0)
            for span in SPANS.values():
                worst = []
                for seed in range(seeds):
                    if span != "dense" or not seed:  # the dense one is the same for all seeds
                        rows = basis(span, M, np.random.default_rng(seed), independent=independent, p=P)
                    y = sketch(rows, seed=seed)
                    worst.append(np.abs(np.linalg.eigvalsh(y @ y.T) - 1).max())
                    progress.advance()
                cells.append(f"{np.median(worst):.2f} / {np.max(worst):.2f}")
            body.append([repr(sketch), *cells])
    print(markdown_table(["span of 50", *SPANS], body))
