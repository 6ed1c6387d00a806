"""What one of our runs of a cell came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bartizan import records as results
from bartizan.lab.config.keys import shown

HUGE = 1e300  # JSON has whole numbers that are no floats


@dataclass(frozen=True)
class Ours:
    """One run of a cell."""

    seed: int
    accuracy: float | None  # in percent; None: it did not converge
    seconds: float | None  # of the server, in the median round
    done: int
    planned: int
    diverged: bool = False
    machine: str = ""
    best: float | None = None  # in percent, whether it converged or not
    images: int | None = None  # that all clients hold together
    on_liars: float | None = None  # the mean round's weight on Byzantine clients
    moved: float | None = None  # the mean part of the weight that the projection gave to others than the exact rule
    curve: tuple[tuple[int, float], ...] = ()  # (round, accuracy) of every evaluated round

    @property
    def ended(self) -> bool:
        return self.diverged or self.done == self.planned

    @classmethod
    def of(cls, recorded: results.Recorded) -> Ours:
        config, end = recorded.run["config"], recorded.end
        curve = [(line["round"], line["accuracy"]) for line in recorded.rounds if line.get("accuracy") is not None]
        best = max((100 * number(accuracy) for _, accuracy in curve), default=None)
        failed = end is not None and not end["converged"]
        served = [time for line in recorded.rounds if (time := served_in(line["seconds"]))]
        sizes, attackers = recorded.run.get("sizes"), recorded.run.get("byzantine")
        return cls(
            seed=config["seed"],
            accuracy=None if failed else best,
            seconds=median(served) if served else None,
            done=len(recorded.rounds),
            planned=config["rounds"],
            diverged=end is not None and end["status"] == "diverged",
            machine=str(recorded.run.get("machine") or ""),
            best=best,
            images=sum(sizes) if sizes else None,
            on_liars=None  # where nobody knows who lies
            if attackers is None
            else _mean(_on_liars(line, attackers) for line in recorded.rounds if line.get("weights")),
            moved=_mean(_moved(line) for line in recorded.rounds if line.get("weights") and line.get("exact_weights")),
            curve=tuple(curve),
        )


def served_in(seconds: Mapping[str, Any]) -> float:
    """The server's time in a round; 0 where the round was refused, and has none."""
    return sum(seconds.get(part) or 0.0 for part in ("sketch", "weigh", "combine"))


def number(value: Any) -> float:
    """A finite number, and nothing that only looks like one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= HUGE:
        raise TypeError(f"wanted a number, got {shown(value)}")
    return value


def _on_liars(line: Mapping[str, Any], byzantine: list[int]) -> float:
    return sum(weight for client, weight in zip(line["clients"], line["weights"], strict=True) if client in byzantine)


def _moved(line: Mapping[str, Any]) -> float:
    """Half the sum of what each weight differs by: 1 where not one client kept any."""
    return sum(abs(a - b) for a, b in zip(line["weights"], line["exact_weights"], strict=True)) / 2


def _mean(numbers: Iterable[float]) -> float | None:
    there = list(numbers)
    return fmean(there) if there else None
