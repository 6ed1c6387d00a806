"""The number of clients from which on projecting is faster than exact inner products."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from bartizan import Exact, Rotated
from bartizan._util import machine
from bartizan._util.arguments import short
from bartizan.measure.sketches import Norms
from studies.options import command
from studies.speed.problem import Problem
from studies.tables import markdown_table
from studies.timing import in_turns

SKETCHES = {"read": Norms(), "exact": Exact(), "projected": Rotated()}


def crossover(
    *,
    clients: Sequence[int] = (4, 8, 16, 32, 64, 128),
    dim: Sequence[int] = (100_000, 1_000_000, 11_000_000),
    dtype: str = "float32",
    device: Literal["cpu", "cuda"] = "cpu",
    repeats: int = 9,
) -> None:
    """Time the sketches alone, in reads: the least of several, taken by turns. A rule does the same after each."""
    body = []
    for p in dim:
        cells, ratios, done = [], [], []
        for M in clients:
            if M * p * 8 > machine.free_memory(device) / 2:
                cells.append("")
                continue
            updates = Problem.draw(M, 0, p, dtype, device).updates
            calls = {name: partial(sketch.measure, updates, 0) for name, sketch in SKETCHES.items()}
            times = in_turns(calls, repeats, device, label=f"crossover, p={short(p)}, M={M}")
            read, exact, projected = (min(times[name]) for name in SKETCHES)
            cells.append(f"{exact / read:.1f} / {projected / read:.1f}")
            ratios.append(exact / projected)
            done.append(M)
        body.append([short(p), *cells, meeting(done, ratios)])
    print(f"{machine.name_of(device)}; reads: exact / projected to 4096\n")
    print(markdown_table(["p", *(f"M={M}" for M in clients), "projecting is faster from"], body))


add_to = command(crossover)


def meeting(clients: Sequence[int], ratios: Sequence[float]) -> str:
    """Return the M, interpolated, from which on exact / projected is above 1."""
    if not ratios:
        return ""
    for i in range(len(ratios) - 1, 0, -1):
        low, high = math.log(ratios[i - 1]), math.log(ratios[i])
        if low <= 0 < high:
            return f"{clients[i - 1] * (clients[i] / clients[i - 1]) ** (-low / (high - low)):.0f}"
    return f"below {clients[0]}" if ratios[0] > 1 else f"above {clients[-1]}"
