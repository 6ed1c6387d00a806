"""The demo's table, filling while the runs go on; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bartizan._util.console import clock
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs.progress_display import RunProgress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Line = Mapping[str, Any]


class Screen:
    """What each run has said last, by attack and rule."""

    def __init__(self, runs: Mapping[str, Experiment]) -> None:
        self.runs = runs
        self.courses: dict[str, RunProgress] = {}
        self.attackers: dict[str, list[float]] = {}
        self.ended: set[str] = set()
        self.started: float | None = None

    def see(self, slug: str, line: Line) -> None:
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
        """How much of all rounds is done."""
        done = sum(
            one.rounds if slug in self.ended else self.courses[slug].round if slug in self.courses else 0
            for slug, one in self.runs.items()
        )
        return done / sum(one.rounds for one in self.runs.values())

    @property
    def state(self) -> str:
        """How many runs are done, and what the rest will take at the pace so far."""
        if self.started is None:
            return "starting the workers ..."
        done = f"{len(self.ended)} of {len(self.runs)} runs done"
        if not 0.05 < self.part < 1:
            return done
        return f"{done}, about {clock((time.monotonic() - self.started) * (1 / self.part - 1))} left"

    def table(self) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        attacks = list(dict.fromkeys(one.attack.name for one in self.runs.values()))
        rules = list(dict.fromkeys(one.rule.name for one in self.runs.values()))
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("attack:\nrule", no_wrap=True)
        for attack in attacks:
            for head in (f"{attack}\naccuracy", "\nattackers"):
                table.add_column(head, justify="right", no_wrap=True)
        by_name = {(one.attack.name, one.rule.name): slug for slug, one in self.runs.items()}
        for rule in rules:
            table.add_row(rule, *(text for attack in attacks for text in self._cells(by_name[attack, rule])))
        return table

    def reached(self, slug: str) -> tuple[str, str]:
        """A run's accuracy, and the weight on attackers averaged over its rounds."""
        course, attackers = self.courses[slug], self.attackers[slug]
        return (
            "" if course.accuracy is None else f"{100 * course.accuracy:.1f}%",
            f"{100 * sum(attackers) / len(attackers):.0f}%" if attackers else "",
        )

    def _cells(self, slug: str) -> tuple[str, str]:
        if slug not in self.courses:
            return "", ""
        accuracy, attackers = self.reached(slug)
        return _coloured(accuracy, self.courses[slug].accuracy), attackers


class Live(Screen):
    """A table that is drawn anew after each round."""

    def __init__(self, runs: Mapping[str, Experiment], console: Console) -> None:
        from rich.live import Live as Display

        super().__init__(runs)
        self.display = Display(self._drawn(), console=console, refresh_per_second=4, vertical_overflow="visible")

    def see(self, slug: str, line: Line) -> None:
        super().see(slug, line)
        self.display.update(self._drawn())

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        return Group(self.table(), ProgressBar(total=1.0, completed=self.part, width=40), f" [dim]{self.state}[/]")


class Plain(Screen):
    """A line for each run that begins or ends."""

    def see(self, slug: str, line: Line) -> None:
        super().see(slug, line)
        name = f"{self.runs[slug].attack.name}, {self.runs[slug].rule.name}"
        if line["kind"] == "run":
            print(f"{name}: begun", flush=True)
        elif line["kind"] == "end":
            accuracy, attackers = self.reached(slug)
            print(f"{name}: accuracy {accuracy}, weight on attackers {attackers} ({self.state})", flush=True)


@contextmanager
def screen(runs: Mapping[str, Experiment], console: Console) -> Iterator[Screen]:
    """The table, live or at the end."""
    if not console.is_terminal:
        plain = Plain(runs)
        yield plain
        console.print(plain.table())
        return
    live = Live(runs, console)
    with live.display:
        yield live
        live.display.update(live.table())


def _coloured(text: str, accuracy: float | None) -> str:
    """Ten classes: guessing is right in a tenth."""
    if accuracy is None:
        return "[dim]...[/]"
    return f"[{'bold red' if accuracy < 0.3 else 'yellow' if accuracy < 0.5 else 'green'}]{text}[/]"
