"""Sketches alone at M = 10,000, and what a model of costs says of 10^4 clients x 10^9 parameters.

Clients are drawn a few at a time, sketched and forgotten, as a server would; what is left is M x k numbers.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bartizan import GeometricMedian, Geometry, Krum, MultiKrum, Rotated
from bartizan._util.console import ProgressLine
from bartizan._util.machine import timed
from bartizan.kernels.rows import Rows
from bartizan.measure.choose import costs_of
from bartizan.measure.measurements import Measurements
from bartizan.sketch import pairwise_distortion
from studies.options import add_command

SEED = 2**90 + 1
AT_ONCE = 100
EDGES = 100
MIN_CLIENTS = 10 * EDGES  # with fewer the edges of the two levels have no attacker to withstand
KEPT_CLIENTS = 100  # whose updates are kept, to compare distances


@dataclass(frozen=True)
class Machine:
    """The seconds to read one number, and of the geometric median: per call and per pair of clients."""

    name: str
    read: float
    weigh: tuple[float, float]


TYPICAL = {
    "cpu": Machine("typical: two cores of a server", 3.4e-10, (3.4e-5, 3.6e-9)),
    "cuda": Machine("typical: an H200", 1.03e-12, (1.4e-4, 8e-9)),
}


def add_to(commands: Any) -> None:
    add_command(commands, scaling)


def scaling(*, clients: int = 10_000, dim: int = 65_536, k: int = 4096) -> None:
    """Print what docs/explanation/scaling.md has; minutes and up to 5 GiB, with `--clients 2000` a few seconds."""
    if clients < MIN_CLIENTS:
        raise ValueError(
            f"--clients must be {MIN_CLIENTS:,} or more, so that each of {EDGES} edges has ten; got {clients}"
        )
    modelled(10_000, 10**9, 4096)
    known_seed()
    simulated(clients, dim, k)


def drawn(first, count, p, n_attackers):
    """Return updates around 0.1 with noise of variance 1; the attackers, who come first, are around -0.9."""
    x = np.random.default_rng([7, first]).standard_normal((count, p), dtype=np.float32)
    x += 0.1
    x[: max(0, n_attackers - first)] -= 1
    return x


def sketched(M, p, k, n_attackers):
    """Return all sketches and norms, some honest updates, and the seconds of sketching."""
    sketch, out, norms, kept, seconds = Rotated(k), np.empty((M, k)), np.empty(M), [], 0.0
    with ProgressLine("scaling, clients sketched", M, delay=0, plain=False) as progress:
        for first in range(0, M, AT_ONCE):
            x = drawn(first, min(AT_ONCE, M - first), p, n_attackers)
            if n_attackers <= first < n_attackers + KEPT_CLIENTS:
                kept.append(x)
            out[first : first + len(x)], spent = timed(lambda x=x: sketch(x, seed=SEED))
            seconds += spent
            norms[first : first + len(x)] = np.einsum("ij,ij->i", x, x, dtype=np.float64)
            progress.advance(len(x))
    return out, norms, np.concatenate(kept), seconds


def geometry_of(sketches, norms):
    gram = products(sketches)
    return Geometry.measured(Measurements(tuple(range(len(gram))), norms, gram=gram), lambda row: gram, seed=SEED)


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
    promise = pairwise_distortion(k, M, 0.05)
    print(f"{M:,} clients of {p:,} coordinates, {f:,} of them attackers, k = {k}; sketched a hundred at a time")
    print(f"  sketches            {8 * M * k / 2**20:,.0f} MiB in {seconds:.2f} s")
    print(f"  squared distances   to {errors.max():.3f} among {len(kept)} honest; ", end="")
    print(f"promised to {promise:.3f} for all pairs")
    for name, multiply in (("our kernel", products), ("BLAS", lambda x: x @ x.T)):
        begin = time.process_time()
        _, seconds = timed(lambda multiply=multiply: multiply(sketches))
        print(f"  inner products      {seconds:.2f} s, {time.process_time() - begin:.2f} of processors, by {name}")
    geometry, seconds = timed(lambda: geometry_of(sketches, norms))
    print(f"  geometry            {seconds:.2f} s (inner products, distances), {8 * M * M / 2**20:,.0f} MiB a matrix")
    weights = {}
    for rule in (Krum(f), MultiKrum(f), GeometricMedian()):
        weights[rule], seconds = timed(lambda rule=rule: rule(geometry))
        attackers = weights[rule][:f].sum()
        print(f"  {rule!r:<34} {seconds:6.2f} s; weight of the attackers {attackers:.4f} ({f / M:.2f} of all)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  peak memory         {peak:.1f} GiB, the interpreter and the kernels included")
    two_levels(sketches, norms, f, weights[MultiKrum(f)])


def two_levels(sketches, norms, f, flat, edges=EDGES):
    """Print the error of a rule at each edge over its own clients, and again at the root over the edges' answers."""
    M = len(sketches)
    each, at_root = M // edges, f * edges // M
    rule, root = MultiKrum(f // edges), MultiKrum(at_root)
    truth = sketches[f:].mean(axis=0)

    def error(answer):
        return np.linalg.norm(answer - truth) / np.linalg.norm(truth)

    print(f"  error against the honest mean: one level {error(flat @ sketches):.3f}")
    scenes = {"everywhere alike": f // edges, "in edges of their own": each, "a majority": each // 2 + 2}
    for name, attackers in scenes.items():
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
    """Print the seconds that the costs behind sketch="auto" predict on typical machines."""
    print(f"The model of costs, {M:,} clients x {p:,} parameters, float32, k = {k}")
    for name, machine in TYPICAL.items():
        costs, read, (fixed, pair) = costs_of(name), machine.read, machine.weigh
        one, gram = read * (costs.draw + costs.rotate) * p, read * costs.sketch_pair * M * M * k
        every, single = read * costs.combined(M, p), read * costs.combined(1, p)
        print(f"  {machine.name} ({name})")
        print(f"    sketch {one:.3g} s per client as it arrives, {one * M:,.0f} s in all", end="")
        print(f" (one read {read * M * p:,.0f} s)")
        print(f"    inner products of the sketches {gram:.3g} s, weigh {fixed + pair * M * M:.3g} s")
        print(f"    combine {every:,.0f} s (all clients), {single:.3g} s (one)")
        print(f"    exact distances {read * costs.exact(M, p):.3g} s")
    print(f"  updates {4 * M * p / 1e12:,.0f} TB, sketches {8 * M * k / 1e6:,.0f} MB", end="")
    print(f", a matrix of pairs {8 * M * M / 1e6:,.0f} MB")
