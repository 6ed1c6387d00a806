"""Time the weigh stage: from the Gram matrix to the weights, M x M numbers and no coordinate.

The fastest of the calls within some seconds, in microseconds. Run as `python benchmarks/weigh.py`; the table of
docs/explanation/scaling.md is `--clients 3000 10000 --share 0.1 --seconds 2`, two minutes and 7 GiB.
"""

import argparse
import time

import numpy as np

import bartizan as bz
from bartizan.geometry import Geometry, gram_stats_of

P = 4096  # as many as a sketch has
RULES = {
    "Geometry.from_stats": lambda f: lambda geometry: geometry.squared_distances,
    "Krum": bz.Krum,
    "MultiKrum": bz.MultiKrum,
    "Bulyan": bz.Bulyan,
    "GeometricMedian": lambda f: bz.GeometricMedian(),
    "MCA": lambda f: bz.MCA(),
    "Bucketing >> Krum": lambda f: bz.Bucketing(2) >> bz.Krum(f),
    "ARC >> Krum": lambda f: bz.ARC(f) >> bz.Krum(f),
    "NNM >> Krum": lambda f: bz.NNM(f) >> bz.Krum(f),
    "NNM >> GeometricMedian": lambda f: bz.NNM(f) >> bz.GeometricMedian(),
}


def stats_of(M, f):
    x = np.random.default_rng(0).normal(size=(M, P))
    x[:f] += 1
    return gram_stats_of(x, has_trusted=False)


def fastest(rule, stats, seconds):
    """Return the seconds of the fastest call of a rule, the geometry included."""
    least, end = np.inf, time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        rule(Geometry.from_stats(stats, len(stats.gram), seed=0))
        now = time.perf_counter()
        least = min(least, now - began)
        if now > end:
            return least


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 200, 1000])
    parser.add_argument("--seconds", type=float, default=0.5, help="to spend on each number")
    parser.add_argument("--share", type=float, default=0.2, help="of the clients that are attackers")
    options = parser.parse_args()
    for rule in RULES.values():
        fastest(rule(1), stats_of(10, 1), 0)  # compiles
    print(f"{'clients':>7} {'f':>4}  {'rule':<24} {'microseconds':>12}")
    for M in options.clients:
        f = max(1, int(options.share * (M - 3)))
        stats = stats_of(M, f)
        for name, rule in RULES.items():
            print(f"{M:>7} {f:>4}  {name:<24} {1e6 * fastest(rule(f), stats, options.seconds):>12.0f}", flush=True)


if __name__ == "__main__":
    main()
