"""`bartizan demo aggregation`: four attacks on fifty clients, four rules and the mean, exact beside projected."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from bartizan import attacks
from bartizan._util.seeds import fresh_seed
from bartizan._util.types import Array
from bartizan.geometry import Geometry
from bartizan.rules import MCA, Bulyan, GeometricMedian, Krum, Mean, Rule
from bartizan.sketch import Exact, Rotated, Sketch
from bartizan.sketch.norms_only import Norms
from bartizan.updates.updates import Updates

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")
RESNET18 = 11_173_962  # parameters of a ResNet18 for CIFAR-10
ATTACKS: dict[str, Callable[..., Array]] = {
    "Gaussian": attacks.gaussian,
    "Sign flip": attacks.sign_flip,
    "LIE": attacks.little_is_enough,
    "FoE": attacks.fall_of_empires,
}


@dataclass(frozen=True)
class Cell:
    """How one rule did under one attack, by one sketch."""

    error: float  # distance to the honest mean, as a part of the honest clients' own
    on_liars: float
    share: float  # of attackers among the clients
    reads: float  # time, in times of one read of all updates

    def shown(self) -> list[str]:
        def coloured(text: str, bad: bool) -> str:
            return f"[{'bold red' if bad else 'green'}]{text}[/]"

        return [
            coloured(f"{self.error:,.2f}", self.error > 1.05),
            coloured(f"{self.on_liars:.0%}", self.on_liars > self.share + 0.005),
            f"{self.reads:.1f}",
        ]


class Demo:
    """The honest updates, drawn once; attackers' rows are rewritten for each attack."""

    def __init__(self, n_clients: int, n_byzantine: int, dim: int | None, seed: int = 0) -> None:
        """As many coordinates as ResNet18, or as half of the free memory holds."""
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.dim = dim or min(RESNET18, free // 2 // (4 * n_clients))
        self.f = n_byzantine
        self.rng = np.random.default_rng(seed)
        self.x = np.empty((n_clients, self.dim), dtype=np.float32)
        self.rules: list[Rule] = [Mean(), Krum(self.f), Bulyan(self.f), GeometricMedian(), MCA()]
        Bulyan(self.f).check(n_clients)  # the strictest
        self.sketches: list[Sketch] = [Exact(), Rotated(k=4096)]

    @property
    def honest(self) -> Array:
        return self.x[self.f :]

    def draw(self) -> None:
        """A common direction and each client's own noise, three times as long: white noise, cut out anywhere."""
        common = self.rng.standard_normal(self.dim, dtype=np.float32) / 3
        noise = self.rng.standard_normal(2 * self.dim, dtype=np.float32)
        cuts = self.rng.choice(self.dim, size=len(self.honest), replace=False)

        def fill(row: Array, cut: int) -> None:
            np.add(common, noise[cut : cut + self.dim], out=row)

        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, self.honest, cuts))
        self.mean = self.honest.mean(axis=0)
        self.spread = float(np.linalg.norm(self.honest[0] - self.mean))

    def one_read(self) -> float:
        clients = Updates.of(self.x)
        return _timed(partial(Norms().gram_stats, clients, 0))[1]

    def warm_up(self) -> None:
        """Compile the kernels (once a machine: they are cached on disk)."""
        small = Updates.of(self.x[:, :5000])
        for sketch in [*self.sketches, Norms()]:
            sketch.gram_stats(small, 0)
        small.combine(np.full(len(self.x), 1 / len(self.x)))

    def cells(self) -> Iterator[tuple[str, Rule, Sketch, Cell]]:
        """By hand what `aggregate` does, so that all rules share one look."""
        for name, attack in ATTACKS.items():
            self.x[: self.f] = attack(self.honest, self.f, self.rng)
            clients = Updates.of(self.x)
            read = self.one_read()
            mean: Cell | None = None  # looks at no distances, so both sketches show the same
            for sketch in self.sketches:
                look, looking = _timed(partial(sketch.gram_stats, clients, fresh_seed()))
                geometry = Geometry.from_stats(look, len(self.x))
                for rule in self.rules:
                    if isinstance(rule, Mean) and mean:
                        yield name, rule, sketch, mean
                        continue
                    weights, weighing = _timed(partial(rule, geometry))
                    update, combining = _timed(partial(clients.combine, weights))
                    error = float(np.linalg.norm(update - self.mean)) / self.spread
                    seconds = (looking if rule.needs_distances else read) + weighing + combining
                    cell = Cell(error, weights[: self.f].sum(), self.f / len(self.x), seconds / read)
                    mean = mean or cell
                    yield name, rule, sketch, cell


def run(n_clients: int = 50, n_byzantine: int = 10, dim: int | None = None) -> None:
    """Show the table growing."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("bartizan demo aggregation needs rich: pip install 'bartizan[cli]'") from missing

    console = Console()
    started = time.perf_counter()
    demo = Demo(n_clients, n_byzantine, dim)
    console.print(
        f"[bold]{n_clients} clients[/bold], {n_byzantine} of them attackers, {demo.dim:,} coordinates each "
        f"({demo.x.nbytes / 1e9:.1f} GB)"
    )
    with console.status("Drawing the honest updates ..."):
        demo.draw()
    with console.status("Compiling the kernels (cached for the next time) ..."):
        demo.warm_up()
    done: dict[tuple[str, str], dict[str, Cell]] = {}
    with Live(_table(done), console=console, refresh_per_second=4, vertical_overflow="visible") as live:
        for attack, rule, sketch, cell in demo.cells():
            done.setdefault((attack, type(rule).__name__), {})[type(sketch).__name__] = cell
            live.update(_table(done))
    console.print(
        "\nerror: distance to the honest mean, an honest client's own being 1 (red: above).\n"
        "attackers: the weight they got (red: more than their share). LIE and FoE stay among\n"
        "the honest, where no distance tells them apart: what they do is bounded by the\n"
        "honest spread. reads: time of a whole round, in reads of all updates.\n"
        f"Done in {time.perf_counter() - started:.0f} s."
    )


def _table(done: dict[tuple[str, str], dict[str, Cell]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title="Exact beside projected to k=4096", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("\nattack", no_wrap=True)
    table.add_column("\nrule", no_wrap=True)
    for kind in ("exact", "projected"):
        for i, what in enumerate(("error", "attackers", "reads")):
            table.add_column(f"{kind if i == 0 else ''}\n{what}", justify="right", no_wrap=True)
    last = None
    for (attack, rule), cells in done.items():
        if last not in (None, attack):
            table.add_section()
        row = [attack if attack != last else "", rule]
        for sketch in ("Exact", "Rotated"):
            cell = cells.get(sketch)
            row += cell.shown() if cell else [""] * 3
        table.add_row(*row)
        last = attack
    return table


def _timed(function: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    return function(), time.perf_counter() - start
