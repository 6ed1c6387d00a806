"""The time of the weigh stage: from the Gram matrix to the weights, M x M numbers and no coordinate."""

import time
from collections.abc import Sequence
from typing import Annotated

import numpy as np

import bartizan as bz
from bartizan._util import machine
from bartizan.measure.geometry import Geometry, gram_about
from bartizan.measure.measurements import Measurements
from studies.options import command

SKETCH_SIZE = 4096
RULES = {
    "Geometry.measured": lambda f: lambda geometry: geometry.squared_distances,
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


def weigh(
    *,
    clients: Sequence[int] = (10, 50, 200, 1000),
    seconds: Annotated[float, "to spend on each number"] = 0.5,
    share: Annotated[float, "of the clients that are attackers"] = 0.2,
) -> None:
    """Time each rule, the geometry included: the fastest of the calls within some seconds.

    The table of docs/explanation/scaling.md is `--clients 3000,10000 --share 0.1 --seconds 2`, two minutes and 7 GiB.
    """
    for rule in RULES.values():
        fastest(rule(1), stats_of(10, 1), 0)  # compiles
    print(f"{'clients':>7} {'f':>4}  {'rule':<24} {'microseconds':>12}")
    for M in clients:
        f = max(1, int(share * (M - 3)))
        stats = stats_of(M, f)
        for name, rule in RULES.items():
            print(f"{M:>7} {f:>4}  {name:<24} {1e6 * fastest(rule(f), stats, seconds):>12.0f}", flush=True)


add_to = command(weigh)


def stats_of(M, f):
    x = np.random.default_rng(0).normal(size=(M, SKETCH_SIZE))
    x[:f] += 1
    gram = gram_about(x, None)
    return Measurements(tuple(range(M)), np.diag(gram).copy(), gram=gram)


def fastest(rule, stats, seconds):
    """Return the seconds of the fastest call of a rule, the geometry included."""
    least, end = np.inf, time.perf_counter() + seconds
    while True:
        call = machine.timed(lambda: rule(Geometry.measured(stats, lambda row: stats.gram, seed=0)))
        least = min(least, call[1])
        if time.perf_counter() > end:
            return least
