"""`bartizan demo aggregation`: four attacks, four rules and the mean, exact beside projected, without training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from bartizan import attacks
from bartizan._util import machine
from bartizan._util.seeds import fresh_seed
from bartizan._util.types import Array
from bartizan.aggregate import Aggregator
from bartizan.geometry import Geometry
from bartizan.rules import MCA, Bulyan, GeometricMedian, Krum, Mean, Rule
from bartizan.sketch import Exact, Rotated, Sketch
from bartizan.studies.bench.measure import one_read
from bartizan.studies.bench.problem import Problem
from bartizan.studies.terminal import new_console, new_table
from bartizan.updates import combine

if TYPE_CHECKING:
    from rich.table import Table

RESNET18 = 11_173_962  # parameters of a ResNet18 for CIFAR-10
SMALL = 5000  # coordinates to compile the kernels with
ATTACKS: dict[str, Callable[..., Array]] = {
    "Gaussian": attacks.gaussian,
    "Sign flip": attacks.sign_flip,
    "LIE": attacks.little_is_enough,
    "FoE": attacks.fall_of_empires,
}
SKETCHES: dict[str, Sketch] = {"exact": Exact(), "projected": Rotated(k=4096)}
LEGEND = """
error: distance to the honest mean, relative to an honest client's own (!: above 1.05).
attackers: their weight (!: more than their share). LIE and FoE stay among the
honest updates, where distances do not tell them apart: their harm is bounded by
the honest spread. reads: time of a whole round, in reads of all updates."""


@dataclass(frozen=True)
class Score:
    """The result of one rule under one attack with one sketch."""

    attack: str
    rule: str
    error: float  # distance to the honest mean, relative to the honest clients' own
    on_attackers: float  # weight
    share: float  # of attackers among the clients
    reads: float  # time, in reads of all updates

    def columns(self) -> list[str]:
        """Return the table's columns; bad values are marked by "!", and by colour where there is one."""

        def marked(text: str, bad: bool) -> str:
            return f"[bold red]{text}![/]" if bad else f"[green]{text} [/]"

        return [
            marked(f"{self.error:,.2f}", self.error > 1.05),
            marked(f"{self.on_attackers:.0%}", self.on_attackers > self.share + 0.005),
            f"{self.reads:.1f}",
        ]


def scores(problem: Problem, rules: list[Rule]) -> Iterator[tuple[str, Score]]:
    """Yield (sketch, score) of every attack, sketch and rule; all rules share one sketch of the updates."""
    f, x, rng = problem.byzantine, problem.x, np.random.default_rng(0)
    mean = x[f:].mean(axis=0)
    spread = float(np.linalg.norm(x[f] - mean))
    for attack, forge in ATTACKS.items():
        x[:f] = forge(x[f:], f, rng)
        attacked = replace(problem)
        read = one_read(attacked)
        for kind, sketch in SKETCHES.items():
            stats, sketching = machine.timed(partial(sketch.gram_stats, attacked.updates, fresh_seed()))
            geometry = Geometry.from_stats(stats, len(x))
            for rule in rules:
                weights, weighing = machine.timed(partial(rule, geometry))
                update, combining = machine.timed(partial(combine, attacked.updates, weights))
                error = float(np.linalg.norm(update - mean)) / spread
                seconds = (sketching if rule.needs_distances else read) + weighing + combining
                on_attackers = float(weights[:f].sum())
                yield kind, Score(attack, type(rule).__name__, error, on_attackers, f / len(x), seconds / read)


def run(n_clients: int = 50, n_byzantine: int = 10, dim: int | None = None) -> None:
    """Print the table while it grows."""
    console = new_console("demo aggregation")
    from rich.live import Live

    started = time.perf_counter()
    Bulyan(n_byzantine).check(n_clients)  # the strictest condition
    rules: list[Rule] = [Mean(), Krum(n_byzantine), Bulyan(n_byzantine), GeometricMedian(), MCA()]
    dim = dim or min(RESNET18, machine.free_memory("cpu") // 2 // (4 * n_clients))
    console.print(
        f"[bold]{n_clients} clients[/bold], {n_byzantine} of them attackers, {dim:,} coordinates each "
        f"({4 * n_clients * dim / 1e9:.1f} GB)"
    )
    with console.status("Drawing the honest updates ..."):
        problem = Problem.draw(n_clients, n_byzantine, dim, "float32", "cpu")
    with console.status("Compiling the kernels (cached for the next time) ..."):
        for sketch in SKETCHES.values():
            for rule in rules:
                Aggregator(rule, sketch)(problem.narrowed(SMALL).x)
    done: dict[tuple[str, str], dict[str, Score]] = {}
    with Live(_table(done), console=console, refresh_per_second=4, vertical_overflow="visible") as live:
        for kind, score in scores(problem, rules):
            done.setdefault((score.attack, score.rule), {})[kind] = score
            live.update(_table(done))
    console.print(LEGEND, f"Done in {time.perf_counter() - started:.0f} s.", sep="\n")


def _table(done: dict[tuple[str, str], dict[str, Score]]) -> Table:
    heads = ["\nattack", "\nrule"]
    for kind in SKETCHES:
        heads += [f"{kind}\nerror", "\nattackers", "\nreads"]
    table = new_table(heads, "Exact beside projected to k=4096", left=heads[:2])
    for attack, lines in groupby(done.items(), key=lambda line: line[0][0]):
        for i, ((_, rule), by_sketch) in enumerate(lines):
            columns = (by_sketch[kind].columns() if kind in by_sketch else [""] * 3 for kind in SKETCHES)
            table.add_row("" if i else attack, rule, *(text for part in columns for text in part))
        table.add_section()
    return table
