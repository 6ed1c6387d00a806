"""Show the progress of a run or a sweep."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from bartizan._util.console import ProgressLine, clock, encodable
from bartizan._util.text import short
from bartizan.lab.metrics import ACCURACY, METRICS

Line = Mapping[str, Any]


class RunProgress:
    """The state of one run, from its lines so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.round = rounds, 0
        self.reached: tuple[str, float | None] | None = None  # the name of the metric and its last value
        self.loss: float | None = None
        self.attackers: float | None = None  # total weight of the Byzantine clients
        self.byzantine: set[Any] = set()
        self.note = ""  # the last round's note, unless an earlier round had the same
        self._notes: set[str] = set()
        self._times: deque[float] = deque(maxlen=11)

    def update(self, line: Line) -> None:
        """Add a line.

        >>> progress = RunProgress(9)
        >>> progress.update({"kind": "round", "round": 5, "loss": 1.5, "weights": None, "accuracy": 0.25})
        >>> progress.summary
        'accuracy  25.0%  loss 1.500'
        """
        if line["kind"] == "run":
            self.byzantine = set(line.get("byzantine") or ())
        elif line["kind"] == "round":
            self._times.append(time.monotonic())
            self.round, self.loss = line["round"], line.get("loss")
            self.reached = measured(line) or self.reached
            note = short(line.get("note"))
            self.note = "" if note in self._notes else note
            self._notes.add(note)
            if line.get("weights") is not None:
                weights = zip(line["clients"], line["weights"], strict=True)
                self.attackers = float(sum(weight or 0 for client, weight in weights if client in self.byzantine))

    @property
    def pace(self) -> float | None:
        """Return the seconds per round, over the last ten."""
        times = self._times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def summary(self) -> str:
        """Return accuracy or perplexity, loss and weight on attackers, as far as they are known."""
        parts = []
        if self.reached is not None and self.reached[1] is not None:
            parts.append(f"{self.reached[0]} {_shown(*self.reached)}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.attackers is not None and self.byzantine:
            parts.append(f"weight on attackers {_percent(self.attackers)}")
        return "  ".join(parts)


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
        """Return the finished rounds, and the time left at the pace of the running ones."""
        total = sum(self.rounds.values())
        parts = [f"{self.done:,} of {total:,}"]
        if not self.single:
            parts.append(f"{len(self.ended)} of {len(self.rounds)} runs done")
        paces = [run.pace for run in self.runs.values() if run.pace and run.round < run.rounds]
        if paces:  # they run in parallel
            parts.append(f"{clock(sum(paces) / len(paces) ** 2 * (total - self.done))} left")
        return ", ".join(parts)

    def update(self, name: str, line: Line) -> None:
        """Add one line of the run with this name."""
        if line["kind"] == "run":  # its first line, also when it begins again after its process died
            self.runs[name] = RunProgress(self.rounds[name])
        run = self.runs[name]
        run.update(line)
        if line["kind"] == "end":
            self.ended.add(name)
        if self.single:
            if run.note and line["kind"] == "round":
                self.print(f"round {run.round}: {run.note}")
            if measured(line):
                self.print(f"round {run.round:>4} of {run.rounds}  {run.summary}")
        elif line["kind"] == "run":
            if self.begins:
                self.print(f"{name}: begun")
        elif line["kind"] == "end":
            metric = run.reached[0] if run.reached else ACCURACY.name
            best = f"best {metric} {_shown(metric, line.get('best'))}"
            self.print(f"{name}: {short(line.get('status'), 60)}, {best}")
        self._line.show(self.status)

    def print(self, text: str) -> None:
        """Print a line that stays, above the one that is rewritten."""
        self._line.close()
        print(encodable(text, sys.stdout), flush=True)


def measured(line: Line) -> tuple[str, float | None] | None:
    """Return name and value of the metric in a round's line, if it was tested."""
    return next(((name, line[name]) for name in METRICS if name in line), None)


def _shown(metric: str, value: float | None) -> str:
    if metric == ACCURACY.name:
        return _percent(value)
    return "    -" if value is None or value != value else f"{value:5.2f}"


def _percent(part: float | None) -> str:
    return "    -" if part is None or part != part else f"{100 * part:5.1f}%"
