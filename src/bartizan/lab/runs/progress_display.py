"""Show the progress of a run or a sweep: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from bartizan._util.console import clock, is_terminal, rich_console

Line = Mapping[str, Any]


class RunProgress:
    """What the lines of one run have reported so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.round = rounds, 0
        self.accuracy: float | None = None
        self.loss: float | None = None
        self.attackers: float | None = None
        """Total weight of the Byzantine clients."""
        self.byzantine: set[Any] = set()
        self.note = ""
        """The last round's note, unless an earlier round had the same."""
        self._notes: set[str] = set()
        self._times: deque[float] = deque(maxlen=11)

    def update(self, line: Line) -> None:
        """
        >>> progress = RunProgress(9)
        >>> progress.update({"kind": "round", "round": 5, "loss": 1.5, "weights": None, "accuracy": 0.25})
        >>> progress.summary
        'accuracy  25.0%  loss 1.500'
        """
        if line["kind"] == "run":
            self.byzantine = set(line["byzantine"] or ())
        elif line["kind"] == "round":
            self._times.append(time.monotonic())
            self.round, self.loss = line["round"], line["loss"]
            self.accuracy = line.get("accuracy", self.accuracy)
            note = line.get("note", "")
            self.note = "" if note in self._notes else note
            self._notes.add(note)
            if line["weights"] is not None:
                weights = zip(line["clients"], line["weights"], strict=True)
                self.attackers = float(sum(weight for client, weight in weights if client in self.byzantine))

    @property
    def pace(self) -> float | None:
        """Seconds a round, over the last ten."""
        times = self._times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def summary(self) -> str:
        """Accuracy, loss and weight on attackers, as far as they are known."""
        parts = [] if self.accuracy is None else [f"accuracy {_percent(self.accuracy)}"]
        parts += [] if self.loss is None else [f"loss {self.loss:.3f}"]
        if self.attackers is not None and self.byzantine:
            parts.append(f"weight on attackers {_percent(self.attackers)}")
        return "  ".join(parts)


class Display:
    """Print a line for each evaluated round of a single run, or for each run of a sweep that begins or ends.

    `rounds` holds the number of rounds of each run, by the name of its folder.
    """

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self.rounds = rounds
        self.runs: dict[str, RunProgress] = {}
        self.ended: set[str] = set()
        self.start = "Loading the data and the kernels ..." if self.single else "Starting the workers ..."

    @property
    def single(self) -> bool:
        return len(self.rounds) == 1

    @property
    def left(self) -> str:
        """The time that is left at the pace of the runs at work, which share what is not done."""
        paces = [run.pace for run in self.runs.values() if run.pace and run.round < run.rounds]
        todo = sum(self.rounds.values()) - self.done
        return f"{clock(sum(paces) / len(paces) ** 2 * todo)} left" if paces else ""

    @property
    def done(self) -> int:
        """Rounds that are done, of all runs."""
        return sum(self.rounds[name] if name in self.ended else run.round for name, run in self.runs.items())

    def __enter__(self) -> Display:
        print(self.start, flush=True)
        return self

    def __exit__(self, *raised: object) -> None: ...

    def update(self, name: str, line: Line) -> None:
        """Take one line of the run with this name."""
        if line["kind"] == "run":  # its first line, also when it begins again after its process died
            self.runs[name] = RunProgress(self.rounds[name])
        run = self.runs[name]
        run.update(line)
        if line["kind"] == "end":
            self.ended.add(name)
        self.show(name, run, line)

    def show(self, name: str, run: RunProgress, line: Line) -> None:
        if self.single:
            if run.note and line["kind"] == "round":
                print(f"round {run.round}: {run.note}", flush=True)
            if "accuracy" in line:
                print(f"round {run.round:>4} of {run.rounds}  {run.summary}  {self.left}".rstrip(), flush=True)
        elif line["kind"] == "run":
            print(f"{name}: begun", flush=True)
        elif line["kind"] == "end":
            print(f"{name}: {line['status']}, best accuracy {_percent(line['best'])}", flush=True)


class LiveDisplay(Display):
    """Draw a bar for each run at work, and in a sweep one for all."""

    def __init__(self, rounds: Mapping[str, int]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(rounds)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[text]}", markup=False),
            console=rich_console("A progress bar"),
            refresh_per_second=4,
        )
        self.total = self.bars.add_task("rounds", total=sum(rounds.values()), text=self.start)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> LiveDisplay:
        self.bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.bars.stop()

    def show(self, name: str, run: RunProgress, line: Line) -> None:
        if self.single:
            if run.note and line["kind"] == "round":
                self.bars.console.print(f"round {run.round}: {run.note}", style="yellow", markup=False)
            self.bars.update(self.total, completed=run.round, text=f"{run.summary}  {self.left}")
            return
        if line["kind"] == "end":
            self.bars.remove_task(self.tasks.pop(name))
            best = _percent(line["best"] if line["converged"] else None)
            self.bars.console.print(f"{name}  best accuracy {best}", markup=False)
        else:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=run.rounds, text="")
            self.bars.update(self.tasks[name], completed=run.round, text=run.summary)
        text = f"{len(self.ended)} of {len(self.rounds)} runs done  {self.left}"
        self.bars.update(self.total, completed=self.done, text=text)


def display(rounds: Mapping[str, int]) -> Display:
    """A display for runs of so many rounds, by the names of their folders."""
    if is_terminal(sys.stdout):
        try:
            return LiveDisplay(rounds)
        except ModuleNotFoundError:  # rich, of the extra `cli`
            pass
    return Display(rounds)


def _percent(part: float | None) -> str:
    return "    -" if part is None or part != part else f"{100 * part:5.1f}%"
