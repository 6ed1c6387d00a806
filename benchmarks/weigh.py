"""What the weigh stage costs: from the Gram matrix to the weights, M x M numbers and no coordinate.

Every rule is first checked against its NumPy definition on the same geometry, then both are timed in turns in the same
run: best of several, microseconds, and how many times longer the definition takes. Run as `python benchmarks/weigh.py`;
the definitions take about a minute at 1000 clients, `--clients 10 50 200` leaves those out. The table of
docs/explanation/scaling.md is `--clients 3000 10000 --share 0.1 --seconds 2 --unchecked`, two minutes and 7 GiB.
"""

import argparse
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

import bartizan as bz
from bartizan.geometry import Geometry, gram_stats_of
from bartizan.kernels import reference as definition

P = 4096  # as many as a sketch has


@dataclass(frozen=True)
class Plain:
    """A geometry by the definitions, everything worked out at once."""

    D: np.ndarray
    medoid: int
    inner: np.ndarray
    shares: np.ndarray

    @classmethod
    def seen(cls, gram):
        D, medoid, _ = definition.distances(gram, len(gram))
        inner = definition.recentred(gram, medoid, len(gram))
        return cls(D, medoid, (inner + inner.T) / 2, np.full(len(gram), 1 / len(gram)))

    def mixed(self, A):
        M = len(A)
        B = np.zeros((M + 1, M + 1))
        B[:M, :M], B[:M, M], B[M, M] = A, 1 - A.sum(axis=1), 1
        inner = definition.sandwich(B, self.inner)
        D, medoid, _ = definition.distances(inner, M)
        return Plain(D, medoid, inner, self.shares)


def krum_scores(g, f):
    others = g.D + np.diag(np.full(len(g.D), np.inf))
    return np.sort(others, axis=1)[:, : len(g.D) - f - 2].sum(axis=1)


def averaged(chosen, M):
    weights = np.zeros(M)
    weights[chosen] = 1 / np.size(chosen)
    return weights


def mca(g, f):
    width = float(np.sqrt(np.median(g.D[g.medoid])))
    return definition.correntropy(g.inner, np.eye(len(g.D))[g.medoid], g.shares, width, 1e-8, 1000)[0]


def nnm(then):
    def both(g, f):
        A = definition.nearest(g.D, len(g.D) - f, np.ones(len(g.D)))
        return A.T @ then(g.mixed(A), f)

    return both


def krum(g, f):
    return averaged(krum_scores(g, f).argmin(), len(g.D))


def repeated_krum(D, f):
    """Bulyan's selection in NumPy, O(M^2) a client: sums in sorted order, taken anew each time."""
    M = len(D)
    others = D + np.diag(np.full(M, np.inf))
    order = np.argsort(others, axis=1, kind="stable")
    nearest = np.take_along_axis(others, order, axis=1)
    left, selected = np.ones(M, dtype=bool), []
    for remaining in range(M, 2 * f, -1):
        here = left[order]
        counted = here & (np.cumsum(here, axis=1) <= min(max(remaining - f - 2, f, 1), remaining - 1))
        scores = np.where(counted, nearest, 0.0).sum(axis=1)
        scores[~left] = np.inf
        selected.append(int(scores.argmin()))
        left[selected[-1]] = False
    return np.array(selected)


def geometric_median(g, f):
    return definition.weiszfeld(g.inner, g.D, g.medoid, g.shares, 1e-8, 1000)[0]


RULES = [
    ("Krum", bz.Krum, krum),
    ("MultiKrum", bz.MultiKrum, lambda g, f: averaged(np.argsort(krum_scores(g, f))[: len(g.D) - f], len(g.D))),
    ("Bulyan", bz.Bulyan, lambda g, f: averaged(repeated_krum(g.D, f), len(g.D))),
    ("GeometricMedian", lambda f: bz.GeometricMedian(), geometric_median),
    ("MCA", lambda f: bz.MCA(), mca),
    ("Bucketing >> Krum", lambda f: bz.Bucketing(2) >> bz.Krum(f), None),
    ("ARC >> Krum", lambda f: bz.ARC(f) >> bz.Krum(f), None),
    ("NNM >> Krum", lambda f: bz.NNM(f) >> bz.Krum(f), nnm(krum)),
    ("NNM >> GeometricMedian", lambda f: bz.NNM(f) >> bz.GeometricMedian(), nnm(geometric_median)),
]


def best(call, seconds):
    """Seconds of the fastest call within a while."""
    least, end = np.inf, time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        call()
        now = time.perf_counter()
        least = min(least, now - began)
        if now > end:
            return least


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 200, 1000])
    parser.add_argument("--seconds", type=float, default=0.5, help="to spend on each number")
    parser.add_argument("--share", type=float, default=0.2, help="of the clients that are attackers")
    parser.add_argument("--unchecked", action="store_true", help="time our rules only, not their definitions")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'clients':>7} {'f':>4}  {'rule':<24} {'microseconds':>12} {'definition':>12} {'ratio':>7}")
    for M in options.clients:
        f = max(1, int(options.share * (M - 3)))
        x = np.random.default_rng(options.seed).normal(size=(M, P))
        x[:f] += 1
        look = gram_stats_of(x, has_trusted=False)
        slow = None if options.unchecked else partial(see_plainly, look)
        report("Geometry.from_stats", M, f, options.seconds, partial(see, look), slow)
        for name, rule, plain in RULES:
            slow = None if plain is None or options.unchecked else partial(see_plainly, look, partial(plain, f=f))
            report(name, M, f, options.seconds, partial(see, look, rule(f)), slow)


def see(look, rule=None):
    geometry = Geometry.from_stats(look, len(look.gram), seed=0)
    return geometry.squared_distances if rule is None else rule(geometry)


def see_plainly(look, rule=None):
    geometry = Plain.seen(look.gram)
    return geometry.D if rule is None else rule(geometry)


def report(name, M, f, seconds, ours, slow):
    if slow is None:
        print(f"{M:>7} {f:>4}  {name:<24} {1e6 * best(ours, seconds):>12.0f}", flush=True)
        return
    np.testing.assert_allclose(ours(), slow(), atol=1e-7, err_msg=f"{name} of {M} clients is not its definition")
    fast, long = best(ours, seconds), best(slow, seconds)
    print(f"{M:>7} {f:>4}  {name:<24} {1e6 * fast:>12.0f} {1e6 * long:>12.0f} {long / fast:>7.1f}", flush=True)


if __name__ == "__main__":
    main()
