"""Measure how far each sketch distorts whole spans: the worst |eigenvalue - 1| of Q^T P^T P Q, median / max over seeds.

Q is an orthonormal basis of the span of 50 vectors, k = 4096. Run as `python benchmarks/tails.py --seeds 100`.
"""

import argparse

import numpy as np

from bartizan import Achlioptas, Gaussian, Rotated
from bartizan._util.console import ProgressLine

M, K = 50, 4096
P = 64 * K  # coordinates that Rotated sees
SKETCHES = [*(Rotated(K, n) for n in (1, 8, 16, 32, 64)), Achlioptas(K, s=8), Gaussian(K)]


def orthonormal(x):
    """Return an orthonormal basis of the span of the rows, by rows."""
    return np.linalg.inv(np.linalg.cholesky(x @ x.T)) @ x


def eight_sparse(rng):
    x = np.kron(np.eye(M), np.ones(8)) * rng.normal(size=8 * M)
    return orthonormal(x)


# Only the coordinates that a span touches; `scattered` puts them somewhere among the P.
SPARSE = {
    "coordinate axes": lambda rng: np.eye(M),
    "8-sparse vectors": eight_sparse,
    "64 shared coordinates": lambda rng: orthonormal(rng.normal(size=(M, 64))),
}


def scattered(basis, rng):
    out = np.zeros((M, P))
    out[:, rng.choice(P, basis.shape[1], replace=False)] = basis
    return out


def distortion(sketch, basis, seed):
    y = sketch(basis, seed=seed)
    return np.abs(np.linalg.eigvalsh(y @ y.T) - 1).max()


def measured(sketch, dense):
    """Yield each span's name and a function from a seed to the distortion.

    The entries of Gaussian and Achlioptas are independent, so where a coordinate lies does not matter to them, and a
    Gaussian matrix has the same law on every span.
    """
    for name, draw in SPARSE.items():

        def sparse(seed, draw=draw):
            rng = np.random.default_rng(seed)
            basis = draw(rng)
            return distortion(sketch, scattered(basis, rng) if isinstance(sketch, Rotated) else basis, seed)

        yield name, sparse
    basis = {Rotated: dense, Achlioptas: dense[:, :2048], Gaussian: np.eye(M)}[type(sketch)]
    basis = orthonormal(basis)
    yield "dense", lambda seed: distortion(sketch, basis, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    seeds = range(parser.parse_args().seeds)
    dense = np.random.default_rng(0).normal(size=(M, P))  # the same one for all seeds: drawing it takes longest
    names = [*SPARSE, "dense"]
    progress = ProgressLine("tails", len(SKETCHES) * len(names) * len(seeds))
    print(f"| {' | '.join(['span of 50', *names])} |\n|{'---|' * (len(names) + 1)}", flush=True)
    for sketch in SKETCHES:
        cells = []
        for _, distortion_of in measured(sketch, dense):
            worst = []
            for seed in seeds:
                worst.append(distortion_of(seed))
                progress.advance()
            cells.append(f"{np.median(worst):.2f} / {np.max(worst):.2f}")
        progress.close()
        print(f"| {sketch!r} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
