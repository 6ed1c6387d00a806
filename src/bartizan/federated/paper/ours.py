"""What one of our runs of a cell came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bartizan import results


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

    @property
    def ended(self) -> bool:
        return self.diverged or self.done == self.planned

    @classmethod
    def of(cls, recorded: results.Recorded) -> Ours:
        config, end = recorded.run["config"], recorded.end
        seen = [line["accuracy"] for line in recorded.rounds if line.get("accuracy") is not None]
        best = 100 * max(seen) if seen else None
        failed = end is not None and not end["converged"]
        served = [time for line in recorded.rounds if (time := served_in(line["seconds"]))]
        sizes = recorded.run.get("sizes")
        return cls(
            seed=config["seed"],
            accuracy=None if failed else best,
            seconds=median(served) if served else None,
            done=len(recorded.rounds),
            planned=config["rounds"],
            diverged=end is not None and end["status"] == "diverged",
            machine=recorded.run.get("machine") or "",
            best=best,
            images=sum(sizes) if sizes else None,
            on_liars=_mean(
                _on_liars(line, recorded.run["byzantine"]) for line in recorded.rounds if line.get("weights")
            ),
            moved=_mean(_moved(line) for line in recorded.rounds if line.get("weights") and line.get("exact_weights")),
        )


def served_in(seconds: Mapping[str, Any]) -> float:
    """The server's time in a round; 0 where the round was refused, and has none."""
    return sum(seconds.get(part) or 0.0 for part in ("sketch", "weigh", "combine"))


def _on_liars(line: Mapping[str, Any], byzantine: list[int]) -> float:
    return sum(weight for client, weight in zip(line["clients"], line["weights"], strict=True) if client in byzantine)


def _moved(line: Mapping[str, Any]) -> float:
    """Half the sum of what each weight differs by: 1 where not one client kept any."""
    return sum(abs(a - b) for a, b in zip(line["weights"], line["exact_weights"], strict=True)) / 2


def _mean(numbers: Iterable[float]) -> float | None:
    there = list(numbers)
    return fmean(there) if there else None
