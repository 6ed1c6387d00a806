"""Run the benchmark over sizes, rules and engines, and save each row as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bartizan._util import jsonl, machine, schema
from bartizan._util.arguments import short
from studies.rules_by_name import most_accepted
from studies.speed import measure
from studies.speed import other_libraries as peers
from studies.speed import torch_baselines as torches
from studies.speed.engines import Bartizan, Engine, rule_of
from studies.speed.problem import Problem
from studies.speed.speed_rows import SpeedRow, load

PEERS: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (
        *(peers.ByzFL, peers.ByzFLNumPy, peers.ByzPy, peers.Flower),
        *(torches.Torch, torches.PairLoop),
    )
}


@dataclass(frozen=True)
class Benchmark:
    """The sizes, rules and engines to be measured, as the options of `speed`."""

    clients: Sequence[int]
    dim: Sequence[int]
    rules: Sequence[str]
    sketches: Sequence[str] = ("exact", "rotated")
    peers: Sequence[str] = ()
    byzantine: int | None = None
    """How many are attackers; None for a fifth, or as many as all rules withstand."""
    dtype: str = "float32"
    device: str = "cpu"
    repeats: int = 5
    limit: float = 60.0
    """Seconds for the repeats of one engine and rule; slower ones are called once, or not at all: see `measure`."""

    def check(self) -> None:
        """Raise before anything is drawn if a name is unknown, a library missing or a rule can't be run."""
        machine.checked_device(self.device)
        for rule in self.rules:
            rule_of(rule, 0)
        for clients in self.clients:
            tiny = Problem.draw(clients, self.attackers(clients), 8, self.dtype, self.device)
            for rule in self.rules:
                rule_of(rule, tiny.byzantine).check(clients)
                for engine in self.engines():
                    engine.job(rule, tiny)

    def engines(self) -> list[Engine]:
        for name in self.peers:
            if name not in PEERS:
                raise ValueError(f"Unknown peer {name!r}. Known: {', '.join(PEERS)}.")
        return [*map(Bartizan, self.sketches), *(PEERS[name]() for name in self.peers)]

    def attackers(self, clients: int) -> int:
        if self.byzantine is not None:
            if self.byzantine >= clients:
                raise ValueError(
                    f"--byzantine must leave an honest client: at most {clients - 1} of {clients}, "
                    f"got {self.byzantine}."
                )
            return self.byzantine
        return min(most_accepted(rule, clients, clients // 5) for rule in self.rules)

    def rows(self, notice: Callable[[str], None]) -> Iterator[SpeedRow]:
        engines = self.engines()
        for dim in self.dim:
            for clients in self.clients:
                notice(f"drawing {clients} clients of {short(dim)} coordinates")
                problem = Problem.draw(clients, self.attackers(clients), dim, self.dtype, self.device)
                for rule in self.rules:
                    yield from measure.rows(problem, rule, engines, self.repeats, self.limit, notice)
                del problem

    def run(
        self, notice: Callable[[str], None], show: Callable[[SpeedRow], None], json: Path | None, add: bool = False
    ) -> list[SpeedRow]:
        """Measure and return all rows; the file is rewritten after each, so that an interrupt loses none.

        With `add` the file's rows are kept and returned too, except those that are measured again.
        """
        old = load(json) if add and json is not None and json.exists() else []
        done = {row.subject: row for row in old}
        started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for measured in self.rows(notice):
            row = replace(measured, run=started)
            done[row.subject] = row
            if json is not None:
                jsonl.rewrite(json, map(schema.as_row, done.values()))
            show(row)
        return list(done.values())
