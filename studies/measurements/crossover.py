"""The number of clients from which on projecting is faster than exact inner products."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from bartizan import Exact, Rotated
from bartizan._util import machine
from bartizan._util.arguments import short
from bartizan.measure.sketches import Norms
from studies.options import command
from studies.rows import keep
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
    out: Annotated[Path | None, "a folder for the rows"] = None,
) -> None:
    """Time the sketches alone, in reads: the least of several, taken by turns. A rule does the same after each."""
    rows = []
    for p, M in itertools.product(dim, clients):
        if M * p * 8 <= machine.free_memory(device) / 2:
            updates = Problem.draw(M, 0, p, dtype, device).updates
            calls = {name: partial(sketch.measure, updates, 0) for name, sketch in SKETCHES.items()}
            times = in_turns(calls, repeats, device, label=f"crossover, p={short(p)}, M={M}")
            least = {name: min(times[name]) for name in SKETCHES}
            rows.append({"p": p, "M": M, **least, "machine": machine.name_of(device)})
    keep(out and out / "crossover.jsonl", rows)
    print(crossover_table(rows))


def crossover_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line per number of coordinates, with exact / projected times in reads by number of clients."""
    body, counts = [], sorted({row["M"] for row in rows})
    for p in sorted({row["p"] for row in rows}):
        own = {row["M"]: row for row in rows if row["p"] == p}
        cells = {
            M: f"{one['exact'] / one['read']:.1f} / {one['projected'] / one['read']:.1f}" for M, one in own.items()
        }
        ratios = [one["exact"] / one["projected"] for one in own.values()]
        body.append([short(p), *(cells.get(M, "") for M in counts), meeting(list(own), ratios)])
    names = ", ".join(sorted({row["machine"] for row in rows}))
    table = markdown_table(["p", *(f"M={M}" for M in counts), "projecting is faster from"], body)
    return f"{names}; reads of all updates, exact / projected to 4096:\n\n{table}"


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
