"""How a run or a sweep goes, on a terminal as bars, elsewhere as plain lines."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from bartizan._util.console import clock, is_terminal

Line = Mapping[str, Any]
LOADING = "Loading the data and the kernels ..."
STARTING = "Starting the workers ..."


class Course:
    """What one run's lines have said so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.round = rounds, 0
        self.accuracy: float | None = None
        self.loss: float | None = None
        self.attackers: float | None = None
        self.news = ""
        self._notes: set[str] = set()
        self.byzantine: set[Any] = set()
        self._times: deque[float] = deque(maxlen=11)

    def see(self, line: Line) -> None:
        if line["kind"] == "run":
            self.byzantine = set(line["byzantine"] or ())
        elif line["kind"] == "round":
            self._times.append(time.monotonic())
            self.round, self.loss = line["round"], line["loss"]
            self.accuracy = line.get("accuracy", self.accuracy)
            note = line.get("note", "")
            self.news = "" if note in self._notes else note  # each once
            self._notes.add(note)
            weights = line["weights"]
            if weights is not None:
                who = zip(line["clients"], weights, strict=True)
                self.attackers = float(sum(weight for client, weight in who if client in self.byzantine))

    @property
    def pace(self) -> float | None:
        """Seconds a round, over the last ten."""
        times = self._times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def left(self) -> float | None:
        return None if self.pace is None else self.pace * (self.rounds - self.round)

    def told(self) -> str:
        """
        >>> course = Course(9)
        >>> course.see({"kind": "round", "round": 5, "loss": 1.5, "weights": None, "accuracy": 0.25})
        >>> course.told()
        'accuracy  25.0%  loss 1.500'
        """
        parts = [] if self.accuracy is None else [f"accuracy {_percent(self.accuracy)}"]
        parts += [] if self.loss is None else [f"loss {self.loss:.3f}"]
        parts += (
            [] if self.attackers is None or not self.byzantine else [f"weight on attackers {_percent(self.attackers)}"]
        )
        return "  ".join(parts)


class PlainRun:
    """A line for each evaluated round."""

    def __init__(self, rounds: int) -> None:
        self.course = Course(rounds)

    def __enter__(self) -> PlainRun:
        print(LOADING, flush=True)
        return self

    def __exit__(self, *gone: object) -> None: ...

    def see(self, line: Line) -> None:
        self.course.see(line)
        if self.course.news and line["kind"] == "round":
            print(f"round {self.course.round}: {self.course.news}", flush=True)
        if "accuracy" in line:
            left = f"  {clock(self.course.left)} left" if self.course.left else ""
            print(f"round {self.course.round:>4} of {self.course.rounds}  {self.course.told()}{left}", flush=True)


class LiveRun:
    """A bar that moves each round."""

    def __init__(self, rounds: int) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self.course = Course(rounds)
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("round {task.completed} of {task.total}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}"),
            TextColumn("[dim]{task.fields[left]}"),
            refresh_per_second=8,
        )
        self.task = self.bar.add_task("", total=rounds, told=LOADING, left="")

    def __enter__(self) -> LiveRun:
        self.bar.start()
        return self

    def __exit__(self, *gone: object) -> None:
        self.bar.stop()

    def see(self, line: Line) -> None:
        self.course.see(line)
        if self.course.news and line["kind"] == "round":
            self.bar.console.print(
                f"round {self.course.round}: {self.course.news}", style="yellow", highlight=False, markup=False
            )
        left = self.course.left
        self.bar.update(
            self.task,
            completed=self.course.round,
            told=self.course.told(),
            left="" if left is None else f"{clock(left)} left",
        )


class PlainSweep:
    """A line for each run that begins or ends."""

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self.rounds, self.courses = rounds, dict[str, Course]()

    def __enter__(self) -> PlainSweep:
        print(STARTING, flush=True)
        return self

    def __exit__(self, *gone: object) -> None: ...

    def see(self, slug: str, line: Line) -> None:
        if line["kind"] == "run":
            self.courses[slug] = Course(self.rounds[slug])
        self.courses[slug].see(line)
        if line["kind"] == "run":
            print(f"{slug}: begun", flush=True)
        elif line["kind"] == "end":
            print(f"{slug}: {line['status']}, best accuracy {_percent(line['best'])}", flush=True)


class LiveSweep:
    """A bar for all, and one for each run at work."""

    def __init__(self, rounds: Mapping[str, int]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.rounds, self.courses = rounds, dict[str, Course]()
        self.started, self.seen, self.ended = time.monotonic(), 0, 0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[told]}"),
            refresh_per_second=4,
        )
        self.all = self.bar.add_task("[bold]all rounds", total=sum(rounds.values()), told=STARTING)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> LiveSweep:
        self.bar.start()
        return self

    def __exit__(self, *gone: object) -> None:
        self.bar.stop()

    def see(self, slug: str, line: Line) -> None:
        if line["kind"] == "run":
            if slug not in self.tasks:
                self.tasks[slug] = self.bar.add_task(slug, total=self.rounds[slug], told="")
            self.courses[slug] = Course(self.rounds[slug])
        course, task = self.courses[slug], self.tasks[slug]
        course.see(line)
        if line["kind"] == "end":
            self.ended += 1
            self.bar.remove_task(self.tasks.pop(slug))
            shown = "-" if not line["converged"] else _percent(line["best"])
            self.bar.console.print(f"{slug}  best accuracy {shown}", highlight=False)
        else:
            self.bar.update(task, completed=course.round, told=course.told())
        done = sum(self.rounds[one] if one not in self.tasks else course.round for one, course in self.courses.items())
        active = [course.pace for course in self.courses.values() if course.pace and course.round < course.rounds]
        pace = sum(active) / len(active) ** 2 if active else None  # those at work share what is left
        left = "" if pace is None else f"{clock(pace * (sum(self.rounds.values()) - done))} left"
        runs = f"{self.ended} of {len(self.rounds)} runs done"
        self.bar.update(self.all, completed=done, told=f"{runs}  {left}")


def of_run(rounds: int) -> PlainRun | LiveRun:
    return LiveRun(rounds) if _terminal() else PlainRun(rounds)


def of_sweep(rounds: Mapping[str, int]) -> PlainSweep | LiveSweep:
    return LiveSweep(rounds) if _terminal() else PlainSweep(rounds)


def _terminal() -> bool:
    if not is_terminal(sys.stdout):
        return False
    try:
        import rich  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        return False
    return True


def _percent(part: float | None) -> str:
    return "    -" if part is None or part != part else f"{100 * part:5.1f}%"
