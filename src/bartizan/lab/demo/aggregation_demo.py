"""`bartizan demo aggregation`: four attacks, four rules and the mean, exact beside projected, without training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np

from bartizan import attacks
from bartizan._util import machine
from bartizan._util.console import ProgressLine, has_colour
from bartizan._util.seeds import fresh_seed
from bartizan._util.types import Array
from bartizan.aggregate import Aggregator
from bartizan.judge.judge import geometry_by
from bartizan.lab.config.build_parts import rule_for
from bartizan.lab.config.choices import CHOICES
from bartizan.measure import Exact, Rotated, Sketch
from bartizan.measure.sketches import Norms
from bartizan.rules import MCA, Bulyan, GeometricMedian, Krum, Mean, Rule
from bartizan.sources.local import LocalUpdates
from bartizan.updates import Updates, combine, parse_updates

RESNET18 = 11_173_962  # parameters of a ResNet18 for CIFAR-10
WARM_UP_DIM = 5000  # coordinates to compile the kernels with
NOISE_STEP = 64  # coordinates between the stretches of noise of two clients
ATTACKS: dict[str, Callable[..., Array]] = {
    "Gaussian": attacks.gaussian,
    "Sign flip": attacks.sign_flip,
    "LIE": attacks.little_is_enough,
    "FoE": attacks.fall_of_empires,
}
SKETCHES: tuple[Sketch, Sketch] = (Exact(), Rotated(k=4096))
LEGEND = """
error: distance to the honest mean, relative to an honest client's own (!: above 1.05).
attackers: their weight (!: more than their share). LIE and FoE stay among the
honest updates, where distances do not tell them apart: their harm is bounded by
the honest spread. reads: time of a whole round, in reads of all updates."""


def _marked(text: str, bad: bool) -> str:
    """A bad value is marked by "!", and in red where stdout has colours."""
    return f"\033[1;31m{text}!\033[0m" if bad and has_colour(sys.stdout) else f"{text}{'!' if bad else ' '}"


def honest_updates(n_clients: int, dim: int) -> Array:
    """Draw (M, p) updates with a common direction and noise of their own, three times as long."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(dim, dtype=np.float32) / 3
    # One stretch of noise, which each client reads from another place: to draw all numbers would take a minute.
    noise = rng.standard_normal(dim + NOISE_STEP * n_clients, dtype=np.float32)
    x = np.empty((n_clients, dim), np.float32)
    for m in range(n_clients):
        np.add(common, noise[NOISE_STEP * m : NOISE_STEP * m + dim], out=x[m])
    return x


def one_read(updates: Updates) -> float:
    """Return the seconds of one read of all updates, the fastest of three."""
    return min(machine.timed(partial(Norms().measure, updates, 0))[1] for _ in range(3))


def scores(x: Array, f: int, rules: list[Rule]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (attack, rule, the columns of each sketch); all rules share one sketch of the updates."""
    rng, mean = np.random.default_rng(0), x[f:].mean(axis=0)
    spread = float(np.linalg.norm(x[f] - mean))
    for name, attack in ATTACKS.items():
        x[:f] = attack(x[f:], f, rng)
        updates = parse_updates(x)
        read = one_read(updates)
        source = LocalUpdates(updates)
        geometries = [machine.timed(partial(geometry_by, sketch, source, fresh_seed())) for sketch in SKETCHES]
        for rule in rules:
            line = []
            for geometry, sketching in geometries:
                weights, weighing = machine.timed(partial(rule, geometry))
                update, combining = machine.timed(partial(combine, updates, weights))
                error, on_attackers = float(np.linalg.norm(update - mean)) / spread, float(weights[:f].sum())
                seconds = (sketching if rule.needs_distances else read) + weighing + combining
                line += [_marked(f"{error:>11,.2f}", error > 1.05)]
                line += [_marked(f"{on_attackers:>9.0%}", on_attackers > f / len(x) + 0.005)]
                line += [f"{seconds / read:>6.1f}"]
            yield name, type(rule).__name__, line


def run(n_clients: int = 50, n_byzantine: int = 10, dim: int | None = None) -> None:
    """Print the table line by line."""
    started = time.perf_counter()
    Bulyan(n_byzantine).check(n_clients)  # the strictest condition
    rules: list[Rule] = [Mean(), Krum(n_byzantine), Bulyan(n_byzantine), GeometricMedian(), MCA()]
    dim = dim or min(RESNET18, machine.free_memory("cpu") // 2 // (4 * n_clients))
    size = f"{4 * n_clients * dim / 1e9:.1f} GB"
    print(f"{n_clients} clients, {n_byzantine} of them attackers, {dim:,} coordinates each ({size})", flush=True)
    with ProgressLine("demo aggregation", delay=0, plain=False) as progress:
        progress.show("drawing the honest updates ...")
        x = honest_updates(n_clients, dim)
        progress.show("compiling the kernels (cached for the next time) ...")
        for sketch in SKETCHES:
            for rule in rules:
                Aggregator(rule, sketch)(x[:, :WARM_UP_DIM])
    columns = f" {'error':>11} {'attackers':>10} {'reads':>6}"
    print(f"\n{'':<26} {'exact':<29} projected to k=4096\n{'attack':<9} {'rule':<15}{columns}{columns}")
    for attack, name, line in scores(x, n_byzantine, rules):
        if name == "Mean":
            print()
        print(f"{attack if name == 'Mean' else '':<9} {name:<15}", *line, flush=True)
    print(LEGEND, f"Done in {time.perf_counter() - started:.0f} s.", sep="\n")


def plain_krum(x: Array, f: int) -> Array:
    """Return the update that Krum selects, by a loop over all pairs as its definition reads."""
    squares, difference = np.zeros((len(x), len(x))), np.empty_like(x[0])
    for i, j in combinations(range(len(x)), 2):
        np.subtract(x[i], x[j], out=difference)
        squares[i, j] = squares[j, i] = difference @ difference
    nearest = np.sort(squares)[:, 1 : len(x) - f - 1]  # without the client itself
    return np.asarray(x[nearest.sum(axis=1).argmin()])


def speed(rule: str, n_clients: int = 50, n_byzantine: int = 15, dim: int = 1_000_000) -> None:
    """Print the time of one round with a rule and with Krum, beside NumPy's mean and a plain Krum."""
    x = honest_updates(n_clients, dim)
    x[:n_byzantine] = attacks.sign_flip(x[n_byzantine:], n_byzantine, np.random.default_rng(0))
    own, _ = rule_for(CHOICES["rule"].of({"name": rule}), n_clients, n_byzantine)
    aggregators = {
        f"{name}, {word}": Aggregator(one, sketch)
        for name, one in ((rule, own), ("krum", Krum(n_byzantine)))
        for word, sketch in zip(("exact", "projected"), SKETCHES, strict=True)
    }
    found = {name: aggregate(x) for name, aggregate in aggregators.items()}  # and compiles the kernels
    plain, seconds = machine.timed(partial(plain_krum, x, n_byzantine))
    right = [np.allclose(one.weights @ x, one.update, atol=1e-5) for one in found.values()]
    if not (np.array_equal(found["krum, exact"].update, plain) and all(right)):
        raise AssertionError("The answers of bartizan and of plain NumPy differ, so no times are shown: report a bug.")
    calls = {"NumPy's mean": partial(np.mean, x, axis=0)} | {name: partial(one, x) for name, one in aggregators.items()}
    times = {name: min(machine.timed(call)[1] for _ in range(3)) for name, call in calls.items()}
    mean = times["NumPy's mean"]
    times["krum, a loop over pairs in NumPy"] = seconds
    print(f"\nOne round of {n_clients} clients x {dim:,} coordinates, answers checked against plain NumPy's:\n")
    for name, spent in times.items():
        print(f"{name:<34}{1e3 * spent:>8.1f} ms  {spent / mean:>6.1f} x the mean")
