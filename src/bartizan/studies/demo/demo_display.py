"""The training demo's table, redrawn while the runs go on; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bartizan._util.console import clock
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs.progress_display import RunProgress
from bartizan.studies.terminal import new_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Line = Mapping[str, Any]


class DemoTable:
    """The last accuracy and the weights on attackers of each run, by attack and rule."""

    def __init__(self, runs: Mapping[str, Experiment]) -> None:
        self.runs = runs
        self.courses: dict[str, RunProgress] = {}
        self.attackers: dict[str, list[float]] = {}
        self.ended: set[str] = set()
        self.started: float | None = None

    def see(self, slug: str, line: Line) -> None:
        """Take in a line of a run's record."""
        self.started = self.started or time.monotonic()
        if line["kind"] == "run":
            self.courses[slug], self.attackers[slug] = RunProgress(self.runs[slug].rounds), []
        course = self.courses[slug]
        course.update(line)
        if line["kind"] == "round" and line["weights"] is not None and course.attackers is not None:
            self.attackers[slug].append(course.attackers)
        elif line["kind"] == "end":
            self.ended.add(slug)

    @property
    def part(self) -> float:
        """How much of all rounds is done, from 0 to 1."""
        done = sum(
            one.rounds if slug in self.ended else self.courses[slug].round if slug in self.courses else 0
            for slug, one in self.runs.items()
        )
        return done / sum(one.rounds for one in self.runs.values())

    @property
    def state(self) -> str:
        """How many runs are done, and the time left at the pace so far."""
        if self.started is None:
            return "starting the workers ..."
        done = f"{len(self.ended)} of {len(self.runs)} runs done"
        if not 0.05 < self.part < 1:
            return done
        return f"{done}, about {clock((time.monotonic() - self.started) * (1 / self.part - 1))} left"

    def table(self) -> Table:
        attacks = list(dict.fromkeys(one.attack.name for one in self.runs.values()))
        heads = [head for attack in attacks for head in (f"{attack}\naccuracy", "\nattackers")]
        table = new_table(["attack:\nrule", *heads], left=["attack:\nrule"])
        by_name = {(one.attack.name, one.rule.name): slug for slug, one in self.runs.items()}
        for rule in dict.fromkeys(one.rule.name for one in self.runs.values()):
            table.add_row(rule, *(text for attack in attacks for text in self._columns(by_name[attack, rule])))
        return table

    def reached(self, slug: str) -> tuple[str, str]:
        """Return a run's accuracy, and its weight on attackers averaged over the rounds."""
        course, attackers = self.courses[slug], self.attackers[slug]
        return (
            "" if course.accuracy is None else f"{100 * course.accuracy:.1f}%",
            f"{100 * sum(attackers) / len(attackers):.0f}%" if attackers else "",
        )

    def _columns(self, slug: str) -> tuple[str, str]:
        if slug not in self.courses:
            return "", ""
        (text, attackers), accuracy = self.reached(slug), self.courses[slug].accuracy
        if accuracy is None:
            return "[dim]...[/]", attackers
        colour = "bold red" if accuracy < 0.3 else "yellow" if accuracy < 0.5 else "green"  # guessing: 0.1
        return f"[{colour}]{text}[/]", attackers


class LiveDemo(DemoTable):
    """Redraw the table after each round."""

    def __init__(self, runs: Mapping[str, Experiment], console: Console) -> None:
        from rich.live import Live

        super().__init__(runs)
        self.live = Live(self._drawn(), console=console, refresh_per_second=4, vertical_overflow="visible")

    def see(self, slug: str, line: Line) -> None:
        super().see(slug, line)
        self.live.update(self._drawn())

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        return Group(self.table(), ProgressBar(total=1.0, completed=self.part, width=40), f" [dim]{self.state}[/]")


class PlainDemo(DemoTable):
    """Print a line for each run that begins or ends."""

    def see(self, slug: str, line: Line) -> None:
        super().see(slug, line)
        name = f"{self.runs[slug].attack.name}, {self.runs[slug].rule.name}"
        if line["kind"] == "run":
            print(f"{name}: started", flush=True)
        elif line["kind"] == "end":
            accuracy, attackers = self.reached(slug)
            print(f"{name}: accuracy {accuracy}, weight on attackers {attackers} ({self.state})", flush=True)


@contextmanager
def display(runs: Mapping[str, Experiment], console: Console) -> Iterator[DemoTable]:
    """Show the table while the runs go on, or at the end where there is no terminal."""
    if not console.is_terminal:
        plain = PlainDemo(runs)
        yield plain
        console.print(plain.table())
        return
    demo = LiveDemo(runs, console)
    with demo.live:
        yield demo
        demo.live.update(demo.table())
