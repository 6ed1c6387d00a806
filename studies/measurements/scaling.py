"""Sketches alone at M = 10,000, and what a model of costs says of 10^4 clients x 10^9 parameters.

Clients are drawn a few at a time, sketched and forgotten, as a server would; what is left is M x k numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bartizan import GeometricMedian, Geometry, Krum, MultiKrum, Rotated
from bartizan._util.console import ProgressLine
from bartizan.kernels.rows import Rows
from bartizan.measure.measurements import Measurements
from bartizan.measure.sketches import costs_of
from bartizan.sketch import pairwise_distortion
from studies.options import command
from studies.rows import keep
from studies.tables import duration, markdown_table, table_of

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


def scaling(*, clients: int = 10_000, dim: int = 65_536, k: int = 4096, out: Path | None = None) -> None:
    """Print what docs/explanation/scaling.md has; minutes and up to 5 GiB, with `--clients 2000` a few seconds."""
    if clients < MIN_CLIENTS:
        raise ValueError(
            f"--clients must be {MIN_CLIENTS:,} or more, so that each of {EDGES} edges has ten; got {clients}"
        )
    print(model_table(10_000, 10**9, 4096))
    rows = simulated(clients, dim, k)
    print(table_of(rows))
    keep(out, rows)


add_to = command(scaling)


def drawn(first, count, p, n_attackers):
    """Return updates around 0.1 with noise of variance 1; the attackers, who come first, are around -0.9."""
    x = np.random.default_rng([7, first]).standard_normal((count, p), dtype=np.float32)
    x += 0.1
    x[: max(0, n_attackers - first)] -= 1
    return x


def sketched(M, p, k, n_attackers):
    """Return all sketches and norms, and some honest updates."""
    sketch, out, norms, kept = Rotated(k), np.empty((M, k)), np.empty(M), []
    with ProgressLine("scaling, clients sketched", M, delay=0, plain=False) as progress:
        for first in range(0, M, AT_ONCE):
            x = drawn(first, min(AT_ONCE, M - first), p, n_attackers)
            if n_attackers <= first < n_attackers + KEPT_CLIENTS:
                kept.append(x)
            out[first : first + len(x)] = sketch(x, seed=SEED)
            norms[first : first + len(x)] = np.einsum("ij,ij->i", x, x, dtype=np.float64)
            progress.advance(len(x))
    return out, norms, np.concatenate(kept)


def geometry_of(sketches, norms):
    rows, gram = Rows.of(sketches), np.zeros((len(sketches), len(sketches)))
    rows.kernels.gram(rows, None, gram)
    return Geometry.measured(Measurements(tuple(range(len(gram))), norms, gram=gram), lambda row: gram, seed=SEED)


def distances(x):
    G = x.astype(np.float64) @ x.T.astype(np.float64)
    D = np.diag(G)[:, None] + np.diag(G) - 2 * G
    return D[np.triu_indices(len(x), 1)]


def simulated(M, p, k):
    """Return the error of distances, the weight that each rule gives to attackers, and the errors of two levels."""
    f = M * 3 // 10 // AT_ONCE * AT_ONCE
    sketches, norms, honest = sketched(M, p, k, f)
    errors = np.abs(distances(sketches[f : f + len(honest)]) / distances(honest) - 1)
    geometry = geometry_of(sketches, norms)
    about = f"{M:,} clients of {p:,} coordinates, {f:,} of them attackers"
    weights, gaussian = {}, "the same for all pairs, but for a probability of 0.05, by a Gaussian matrix"
    rows = [
        {about: f"largest error of a squared distance among {len(honest)} honest clients", "value": errors.max()},
        {about: gaussian, "value": pairwise_distortion(k, M, 0.05)},
    ]
    for rule in (Krum(f), MultiKrum(f), GeometricMedian()):
        weights[rule] = rule(geometry)
        rows.append({about: f"weight of the attackers, {type(rule).__name__}", "value": weights[rule][:f].sum()})
    return [*rows, *two_levels(about, sketches, norms, f, weights[MultiKrum(f)])]


def two_levels(about, sketches, norms, f, flat, edges=EDGES):
    """Return the error of a rule at each edge over its own clients, and again at the root over the edges' answers."""
    M = len(sketches)
    each, at_root = M // edges, f * edges // M
    rule, root = MultiKrum(f // edges), MultiKrum(at_root)
    truth = sketches[f:].mean(axis=0)

    def error(answer):
        return np.linalg.norm(answer - truth) / np.linalg.norm(truth)

    rows = [{about: "error of MultiKrum at one level", "value": error(flat @ sketches)}]
    for attackers in (f // edges, each, each // 2 + 2):
        owned = f // attackers
        others, members = iter([*range(f, M), *range(owned * attackers, f)]), []
        for edge in range(edges):
            own = list(range(edge * attackers, (edge + 1) * attackers)) if edge < owned else []
            members.append(own + [next(others) for _ in range(each - len(own))])
        answers = np.stack([rule(geometry_of(sketches[own], norms[own])) @ sketches[own] for own in members])
        answer = root(geometry_of(answers, (answers**2).sum(axis=1))) @ answers
        where = f"error at two levels, {attackers} attackers of {each} clients at each of {owned} of {edges} edges"
        rows.append({about: where, "value": error(answer)})
    return rows


def model_table(M: int, p: int, k: int) -> str:
    """Return the times that the costs behind sketch="auto" predict on typical machines."""
    columns = []
    for name, machine in TYPICAL.items():
        costs, read, (fixed, pair) = costs_of(name), machine.read, machine.weigh
        one = read * (costs.draw + costs.rotate) * p
        columns.append(
            {
                "one read of all updates": read * M * p,
                "sketch one client as it arrives": one,
                "sketch all": one * M,
                "inner products of the sketches": read * costs.sketch_pair * M * M * k,
                "weigh (the geometric median)": fixed + pair * M * M,
                "combine all clients": read * costs.combined(M, p),
                "combine one client (Krum)": read * costs.combined(1, p),
                "exact distances instead": read * costs.exact(M, p),
            }
        )
    body = [[stage, *(duration(column[stage]) for column in columns)] for stage in columns[0]]
    return markdown_table(["predicted", *(machine.name for machine in TYPICAL.values())], body)
