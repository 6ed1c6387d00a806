"""The command `speed`: what robust aggregation costs, in reads of the updates, here and in other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

from bartizan._util.arguments import seconds
from bartizan.records import require_writable
from studies.options import add_command, count_from_0
from studies.speed.benchmark import Benchmark
from studies.speed.printed_rows import RowPrinter


def add_to(commands: Any) -> None:
    add_command(commands, speed)


def speed(
    *,
    clients: Annotated[Sequence[int], "how many clients"] = (50,),
    dim: Annotated[Sequence[int], "coordinates, such as 11.2M"] = (11_200_000,),
    rules: Sequence[str] = ("krum", "bulyan", "geometric-median", "mca"),
    sketches: Annotated[Sequence[str], "ours: exact, rotated, rotated:8192, auto ..."] = ("exact", "rotated"),
    peers: Annotated[Sequence[str], "byzfl, byzfl-numpy, byzpy, flower, torch, pair-loop"] = (),
    byzantine: Annotated[int | None, count_from_0, "attackers (default: a fifth, if the rules allow it)"] = None,
    dtype: Annotated[Literal["float16", "bfloat16", "float32", "float64"], "of the updates"] = "float32",
    device: Annotated[Literal["cpu", "cuda"], "of the updates"] = "cpu",
    repeats: Annotated[int, "timed calls of each"] = 5,
    limit: Annotated[float, seconds, "seconds for the repeats of each"] = 60.0,
    json: Annotated[Path | None, "write the rows as JSON lines, after each of them"] = None,
    add: Annotated[bool, "keep the rows of --json that are not measured now"] = False,
) -> None:
    """Measure what aggregation costs beside other libraries: correctness first, then times."""
    if add and not json:
        raise ValueError("--add needs --json FILE, to whose rows it adds.")
    if json:
        require_writable(json.parent)  # before anything is measured
    benchmark = Benchmark(clients, dim, rules, sketches, peers, byzantine, dtype, device, repeats, limit)
    benchmark.check()
    with closing(RowPrinter()) as printer:
        done = benchmark.run(printer.progress.show, printer.add, json, add)
    for row in done:
        if not row.ok:
            print(f"{row.label}, {row.rule}, M={row.clients}, p={row.dim:,}: {row.judged}")
