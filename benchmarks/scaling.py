"""Sketches alone at M = 10,000, and what the plan's model says of 10^4 clients x 10^9 parameters.

Clients are drawn a few at a time, sketched and forgotten, as a server would; what is left is M x k numbers. Run as
`python benchmarks/scaling.py`; it takes minutes and up to 5 GiB, `--clients 2000` a few seconds.
"""

import argparse
import resource
import time

import numpy as np

from bartizan import GeometricMedian, Geometry, Krum, MultiKrum, Rotated
from bartizan._util.arguments import number
from bartizan._util.console import ProgressLine
from bartizan._util.machine import timed
from bartizan.geometry import GramStats
from bartizan.kernels.rows import Rows
from bartizan.sketch import pairwise_distortion
from bartizan.sketch.choose import costs_of
from bartizan.studies.plan import TYPICAL

SEED = 2**90 + 1
AT_ONCE = 100
EDGES = 100
FEWEST = 10 * EDGES  # clients: with fewer the edges of the two levels have no attacker to withstand
PROGRESS = ProgressLine("scaling", delay=0, plain=False)
KEPT = 100  # clients whose updates are kept, to compare distances


def drawn(first, count, p, n_attackers):
    """Updates around 0.1 with noise of variance 1; the attackers, who come first, are around -0.9."""
    x = np.random.default_rng([7, first]).standard_normal((count, p), dtype=np.float32)
    x += 0.1
    x[: max(0, n_attackers - first)] -= 1
    return x


def sketched(M, p, k, n_attackers):
    sketch, out, norms, kept, seconds = Rotated(k), np.empty((M, k)), np.empty(M), [], 0.0
    for first in range(0, M, AT_ONCE):
        x = drawn(first, min(AT_ONCE, M - first), p, n_attackers)
        if n_attackers <= first < n_attackers + KEPT:
            kept.append(x)
        begin = time.perf_counter()
        out[first : first + len(x)] = sketch(x, seed=SEED)
        seconds += time.perf_counter() - begin
        norms[first : first + len(x)] = np.einsum("ij,ij->i", x, x, dtype=np.float64)
        PROGRESS.show(f"sketched {first + len(x)} of {M} clients")
    return out, norms, np.concatenate(kept), seconds


def geometry_of(sketches, norms):
    gram = products(sketches)
    return Geometry.from_stats(GramStats(gram, norms, lambda row: gram), len(gram), seed=SEED)


def products(sketches):
    """Return the Gram matrix by the kernel that `aggregate` and `ShardedAggregator` use."""
    rows, gram = Rows.of(sketches), np.zeros((len(sketches), len(sketches)))
    rows.kernels.gram(rows, None, gram)
    return gram


def distances(x):
    G = x.astype(np.float64) @ x.T.astype(np.float64)
    D = np.diag(G)[:, None] + np.diag(G) - 2 * G
    return D[np.triu_indices(len(x), 1)]


def simulated(M, p, k):
    f = M * 3 // 10 // AT_ONCE * AT_ONCE
    sketches, norms, kept, seconds = sketched(M, p, k, f)
    errors = np.abs(distances(sketches[f : f + len(kept)]) / distances(kept) - 1)
    PROGRESS.close()
    print(f"{M:,} clients of {p:,} coordinates, {f:,} of them attackers, k = {k}; sketched a hundred at a time")
    print(f"  sketches            {8 * M * k / 2**20:,.0f} MiB in {seconds:.2f} s")
    promise = pairwise_distortion(k, M, 0.05)
    print(
        f"  squared distances   to {errors.max():.3f} among {len(kept)} honest; promised to {promise:.3f} for all pairs"
    )
    for name, multiply in (("our kernel", products), ("BLAS", lambda x: x @ x.T)):
        begin = time.process_time()
        _, seconds = timed(lambda multiply=multiply: multiply(sketches))
        print(f"  inner products      {seconds:.2f} s, {time.process_time() - begin:.2f} of processors, by {name}")
    geometry, seconds = timed(lambda: geometry_of(sketches, norms))
    print(f"  geometry            {seconds:.2f} s (inner products, distances), {8 * M * M / 2**20:,.0f} MiB a matrix")
    honest = {}
    for rule in (Krum(f), MultiKrum(f), GeometricMedian()):
        weights, seconds = timed(lambda rule=rule: rule(geometry))
        honest[repr(rule)] = weights
        print(f"  {rule!r:<34} {seconds:6.2f} s; weight of the attackers {weights[:f].sum():.4f} ({f / M:.2f} of all)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  peak memory         {peak:.1f} GiB, the interpreter and the kernels included")
    two_levels(sketches, norms, f, honest[repr(MultiKrum(f))])


def two_levels(sketches, norms, f, flat, edges=EDGES):
    """Print the error of a rule at each edge over its own clients, and again at the root over the edges' answers."""
    M = len(sketches)
    each, at_root = M // edges, f * edges // M
    rule, root = MultiKrum(f // edges), MultiKrum(at_root)
    truth = sketches[f:].mean(axis=0)

    def error(answer):
        return np.linalg.norm(answer - truth) / np.linalg.norm(truth)

    print(f"  error against the honest mean: one level {error(flat @ sketches):.3f}")
    majority = each // 2 + 2
    for name, attackers in (
        ("everywhere alike", f // edges),
        ("in edges of their own", each),
        ("a majority", majority),
    ):
        owned = f // attackers
        others, members = iter([*range(f, M), *range(owned * attackers, f)]), []
        for edge in range(edges):
            own = list(range(edge * attackers, (edge + 1) * attackers)) if edge < owned else []
            members.append(own + [next(others) for _ in range(each - len(own))])
        begin = time.perf_counter()
        answers = np.stack([rule(geometry_of(sketches[own], norms[own])) @ sketches[own] for own in members])
        answer = root(geometry_of(answers, (answers**2).sum(axis=1))) @ answers
        seconds = time.perf_counter() - begin
        where = f"{attackers} attackers in each of {owned} of {edges} edges, {name}"
        print(f"    two levels, {where}: {error(answer):.3f} ({seconds:.2f} s)")


def known_seed(k=64, tries=200):
    """Print the projected length of a vector in the null space of one seed, under that seed and under others."""
    P = Rotated(k)(np.eye(2 * k), seed=SEED).T
    z = np.linalg.svd(P)[2][-1:]
    seen = [float(np.linalg.norm(Rotated(k)(z, seed=seed))) for seed in range(tries)]
    print(f"A vector of length 1 made for a known seed, k = {k}: seen as {np.linalg.norm(P @ z[0]):.0e};", end=" ")
    print(f"under {tries} other seeds as {min(seen):.2f} to {max(seen):.2f}")


def modelled(M, p, k):
    print(f"The plan's model, {M:,} clients x {p:,} parameters, float32, k = {k}")
    for name, machine in TYPICAL.items():
        costs, read = costs_of(name), machine.read
        one, (fixed, pair) = read * (costs.draw + costs.rotate) * p, machine.iterate
        gram, weigh = read * costs.sketch_pair * M * M * k, fixed + pair * M * M
        print(f"  {machine.name} ({name})")
        print(f"    sketch {one:.3g} s a client as it arrives, {one * M:,.0f} s in all", end="")
        print(f" (one read {read * M * p:,.0f} s)")
        print(f"    inner products of the sketches {gram:.3g} s, weigh {weigh:.3g} s")
        every, single = read * costs.combined(M, p), read * costs.combined(1, p)
        print(f"    combine {every:,.0f} s (all clients), {single:.3g} s (one)")
        print(f"    exact distances {read * costs.exact(M, p):.3g} s")
    print(f"  updates {4 * M * p / 1e12:,.0f} TB, sketches {8 * M * k / 1e6:,.0f} MB", end="")
    print(f", a matrix of pairs {8 * M * M / 1e6:,.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=number, default=10_000)
    parser.add_argument("--dim", type=number, default=65_536)
    parser.add_argument("--k", type=number, default=4096)
    options = parser.parse_args()
    if options.clients < FEWEST:
        parser.error(
            f"--clients must be {FEWEST:,} or more, so that each of {EDGES} edges has ten; got {options.clients}"
        )
    modelled(10_000, 10**9, 4096)
    known_seed()
    simulated(options.clients, options.dim, options.k)


if __name__ == "__main__":
    main()
