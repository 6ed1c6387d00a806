"""Show the progress of a run or a sweep."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bartizan._util.console import ProgressLine, clock, encodable
from bartizan._util.text import short
from bartizan.lab.metrics import metric_of

Line = Mapping[str, Any]


@dataclass
class RunProgress:
    """The first line of a run, its last round, and the notes that were shown."""

    first: Line
    round: int = 0
    notes: set[str] = field(default_factory=set)


class Display:
    """Print a line for each evaluated round of a single run, or for each run of a sweep that begins or ends.

    On a terminal a last line, rewritten in place, shows the rounds that are done and the time that is left.

    Args:
        rounds: The number of rounds of each run, by the name of its folder.
        begins: Whether runs of a sweep that begin get a line.
    """

    def __init__(self, rounds: Mapping[str, int], *, begins: bool = True) -> None:
        self.rounds, self.begins = rounds, begins
        self.runs: dict[str, RunProgress] = {}
        self.ended: set[str] = set()
        self._times: deque[float] = deque(maxlen=33)  # of the last rounds of all runs
        self._line = ProgressLine("rounds", delay=0, plain=False)

    def __enter__(self) -> Display:
        self.print("Loading the data and the kernels ..." if self.single else "Starting the workers ...")
        return self

    def __exit__(self, *raised: object) -> None:
        self._line.close()

    @property
    def single(self) -> bool:
        return len(self.rounds) == 1

    @property
    def done(self) -> int:
        """Return the number of finished rounds of all runs."""
        return sum(self.rounds[name] if name in self.ended else run.round for name, run in self.runs.items())

    @property
    def status(self) -> str:
        """Return the finished rounds, and the time left at the pace of the last ones."""
        total = sum(self.rounds.values())
        parts = [f"{self.done:,} of {total:,}"]
        if not self.single:
            parts.append(f"{len(self.ended)} of {len(self.rounds)} runs done")
        if len(self._times) > 1:
            pace = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
            parts.append(f"{clock(pace * (total - self.done))} left")
        return ", ".join(parts)

    def update(self, name: str, line: Line) -> None:
        """Add one line of the run with this name."""
        if line["kind"] == "run":  # its first line, also when it begins again after its process died
            self.runs[name] = RunProgress(line)
            if self.begins and not self.single:
                self.print(f"{name}: begun")
        run = self.runs[name]
        metric = metric_of(run.first)
        if line["kind"] == "round":
            run.round = line["round"]
            self._times.append(time.monotonic())
            if self.single and (note := short(line.get("note"))) not in ("", *run.notes):
                run.notes.add(note)
                self.print(f"round {run.round}: {note}")
            if self.single and metric.name in line:
                self.print(f"round {run.round:>4} of {self.rounds[name]}  {summary(run.first, line)}")
        elif line["kind"] == "end":
            self.ended.add(name)
            if not self.single:
                best = f"best {metric.name} {metric.shown(line.get('best'))}"
                self.print(f"{name}: {short(line.get('status'), 60)}, {best}")
        self._line.show(self.status)

    def print(self, text: str) -> None:
        """Print a line that stays, above the one that is rewritten."""
        self._line.close()
        print(encodable(text, sys.stdout), flush=True)


def summary(first: Line, line: Line) -> str:
    """Return the accuracy or perplexity, the loss and the weight on attackers of a round, as far as they are known.

    >>> first = {"kind": "run", "byzantine": [7]}
    >>> summary(first, {"kind": "round", "clients": [3, 7], "weights": [0.75, 0.25], "accuracy": 0.5, "loss": 1.5})
    'accuracy  50.0%  loss 1.500  weight on attackers  25.0%'
    """
    metric, byzantine, parts = metric_of(first), set(first.get("byzantine") or ()), []
    if line.get(metric.name) is not None:
        parts.append(f"{metric.name} {metric.shown(line[metric.name]):>6}")
    if line.get("loss") is not None:
        parts.append(f"loss {line['loss']:.3f}")
    if byzantine and line.get("weights") is not None:
        weights = zip(line["clients"], line["weights"], strict=True)
        theirs = sum(weight or 0 for client, weight in weights if client in byzantine)
        parts.append(f"weight on attackers {theirs:6.1%}")
    return "  ".join(parts)
