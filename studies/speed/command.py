"""The command `speed`: correctness first, then times in reads of the updates, here and in other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from bartizan._util import jsonl, machine, schema
from bartizan._util.arguments import seconds, short
from bartizan.records import require_writable
from studies.options import command, count_from_0
from studies.rules_by_name import most_accepted
from studies.speed import measure, other_libraries, torch_baselines
from studies.speed.engines import Bartizan, Engine, rule_of
from studies.speed.problem import Problem
from studies.speed.speed_rows import RowPrinter, load

LIBRARIES = (
    *(other_libraries.ByzFL, other_libraries.ByzFLNumPy, other_libraries.ByzPy),
    *(other_libraries.KrumPackage, other_libraries.Flower),
)
PEERS: dict[str, type[Engine]] = {
    engine.name: engine for engine in (*LIBRARIES, torch_baselines.Torch, torch_baselines.PairLoop)
}


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
    engines = engines_of(sketches, peers)
    for rule in rules:
        rule_of(rule, 0)
    f = {M: attackers_of(rules, M, byzantine) for M in clients}
    machine.checked_device(device)
    for rule, M in product(rules, clients):
        rule_of(rule, f[M]).check(M)
        for engine in engines:
            engine.job(rule, Problem.draw(M, f[M], 8, dtype, device))  # raises where a library is missing
    done = {row.subject: row for row in (load(json) if add and json and json.exists() else [])}
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with closing(RowPrinter()) as printer:
        for p, M in product(dim, clients):
            printer.progress.show(f"drawing {M} clients of {short(p)} coordinates")
            problem = Problem.draw(M, f[M], p, dtype, device)
            for rule in rules:
                for row in measure.rows(problem, rule, engines, repeats, limit, printer.progress.show):
                    done[row.subject] = replace(row, run=started)
                    if json:  # after each row, so that an interrupt loses none
                        jsonl.rewrite(json, map(schema.as_row, done.values()))
                    printer.add(row)
            del problem
    for row in done.values():
        if not row.ok:
            print(f"{row.label}, {row.rule}, M={row.clients}, p={row.dim:,}: {row.judged}")


add_to = command(speed)


def engines_of(sketches: Sequence[str], peers: Sequence[str]) -> list[Engine]:
    """Return our engines by their sketches, and others by their names."""
    for name in peers:
        if name not in PEERS:
            raise ValueError(f"Unknown peer {name!r}. Known: {', '.join(PEERS)}.")
    return [*map(Bartizan, sketches), *(PEERS[name]() for name in peers)]


def attackers_of(rules: Sequence[str], clients: int, byzantine: int | None = None) -> int:
    """Return how many attack: a fifth unless told, or as many as all rules withstand."""
    if byzantine is not None and byzantine >= clients:
        most = f"at most {clients - 1} of {clients}, got {byzantine}"
        raise ValueError(f"--byzantine must leave an honest client: {most}.")
    fifth = (most_accepted(rule, clients, clients // 5) for rule in rules)
    return byzantine if byzantine is not None else min(fifth)
