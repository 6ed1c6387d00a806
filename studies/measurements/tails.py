"""The distortion of spans and of single vectors by each sketch, by seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bartizan import Achlioptas, Gaussian, Rotated
from bartizan._util.console import ProgressLine
from bartizan.sketch import pairwise_distortion
from studies.options import command
from studies.rows import keep
from studies.tables import markdown_table, table_of
from studies.theory.subspace_embedding import basis

M, K = 50, 4096
P = 16 * K  # coordinates that Rotated sees
SKETCHES = [*(Rotated(K, n) for n in (1, 8, 16, 32, 64)), Achlioptas(K, s=8), Gaussian(K)]
LANE = "a lane of two blocks"
SPANS = {
    "coordinate axes": "1 coordinate",
    "8-sparse vectors": "8 coordinates",
    "64 shared coordinates": "64 shared",
    "dense": "dense",
    LANE: LANE,
}
PAIRS = pairwise_distortion(K, M, delta=0.05, rounds=100)  # the eps of pairs, for Gaussian matrices


def tails(
    *, seeds: int = 100, vector_seeds: int = 50_000, out: Annotated[Path | None, "a folder for the rows"] = None
) -> None:
    """Measure spans of 50 vectors, and vectors in one lane of two blocks, at k = 4096."""
    keep(out and out / "tails-spans.jsonl", rows := spans(seeds))
    print(spans_table(rows))
    keep(out and out / "tails-vectors.jsonl", rows := lane_vectors(vector_seeds))
    print(table_of(rows))


add_to = command(tails)


def spans(seeds):
    """Return |eigenvalue - 1| of Q^T P^T P Q at its worst, and in how many seeds a vector is mapped to 0."""
    found = []
    with ProgressLine("tails", len(SKETCHES) * len(SPANS) * seeds) as progress:
        for sketch in SKETCHES:
            # The entries of Gaussian and Achlioptas are independent: where a coordinate lies does not matter to them.
            independent, rows = not isinstance(sketch, Rotated), np.empty(0)
            for name, span in SPANS.items():
                worst, lost = [], 0
                for seed in range(seeds):
                    if name == LANE:
                        rows = np.eye(64) if independent else lane(sketch.mixing)
                    elif span != "dense" or not seed:  # the dense one is the same for all seeds
                        rows = basis(span, M, np.random.default_rng(seed), independent=independent, p=P)
                    y = sketch(rows, seed=seed)
                    values = np.linalg.eigvalsh(y @ y.T)
                    worst.append(np.abs(values - 1).max())
                    lost += bool(values[0] < 1e-9)
                    progress.advance()
                own = {"median": np.median(worst), "worst": np.max(worst), "lost": lost}
                found.append({"sketch": repr(sketch), "span": name, "vectors": len(rows), "seeds": seeds, **own})
    return found


def lane(n):
    """Return the coordinate axes of one whole lane in each of two blocks, as it lies before lanes are swapped."""
    rows = np.zeros((2 * n, 2, n, K // n))
    rows[..., 0] = np.eye(2 * n).reshape(2 * n, 2, n)
    return rows.reshape(2 * n, -1)


def lane_vectors(seeds, n=32):
    """Return how far `Rotated` takes squared norms from 1, of vectors flat on m rows of a lane in two blocks."""
    sizes = [2**j for j in range(n.bit_length())]
    x = np.zeros((len(sizes), 2, n, K // n))
    for row, m in zip(x, sizes, strict=True):
        row[:, :m, 0] = 1 / np.sqrt(2 * m)
    sketch, off = Rotated(K, n), np.empty((seeds, len(sizes)))
    for seed in range(seeds):
        off[seed] = (sketch(x.reshape(len(x), -1), seed=seed) ** 2).sum(axis=1) - 1
    shares = {f"beyond 1 ± {PAIRS:.3f}": PAIRS, "beyond 5 deviations": 5 * np.sqrt(2 / K)}
    return [
        {"m": m, "least": 1 + own.min(), "most": 1 + own.max()}
        | {name: np.mean(np.abs(own) > limit) for name, limit in shares.items()}
        for m, own in zip(sizes, off.T, strict=True)
    ]


def spans_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the median and the largest distortion over the seeds, and the share of seeds in which a vector is lost."""
    body: dict[str, list[str]] = {}
    for row in rows:
        lost = f", lost in {row['lost'] / row['seeds']:.0%}" if row["lost"] else ""
        body.setdefault(row["sketch"], []).append(f"{row['median']:.2f} / {row['worst']:.2f}{lost}")
    return markdown_table(["span", *SPANS], [[f"`{sketch}`", *cells] for sketch, cells in body.items()])
