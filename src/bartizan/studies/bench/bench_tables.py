"""Show benchmark rows: a live table on a terminal, Markdown, and remarks on failures and growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bartizan._util.arguments import short
from bartizan.studies.bench.bench_rows import LETTER, OTHER, BenchRow, longest
from bartizan.studies.formatting import duration, markdown_table, multiple
from bartizan.studies.terminal import new_console, new_table, spinner_name

if TYPE_CHECKING:
    from rich.table import Table

LEGEND = """
reads: time of a whole call, in reads of all updates in the same run (median).
extra: peak memory of a call beside the updates and the answer.
ok: [green]=[/] meets the rule's definition in float64, [green]~[/] as close to the honest
mean as an honest client, [bold red]x[/] neither."""


class LiveTable:
    """A table of the size that is being measured, below the tables of earlier sizes."""

    def __init__(self, live: Any) -> None:
        from rich.spinner import Spinner

        self.live, self.spinner = live, Spinner(spinner_name())
        self.rows: list[BenchRow] = []

    def notice(self, text: str) -> None:
        self.spinner.update(text=f" {text} ...")
        self._draw()

    def add(self, row: BenchRow) -> None:
        if self.rows and (self.rows[0].clients, self.rows[0].dim) != (row.clients, row.dim):
            self.live.console.print(table(self.rows))
            self.rows = []
        self.rows.append(row)
        self._draw()

    def finish(self) -> None:
        self.live.update(table(self.rows) if self.rows else "")

    def _draw(self) -> None:
        from rich.console import Group

        self.live.update(Group(table(self.rows), self.spinner) if self.rows else self.spinner)


@contextmanager
def live_table() -> Iterator[LiveTable]:
    """Show a live table, and the legend at the end."""
    console = new_console("bench")
    from rich.live import Live

    with Live("", console=console, refresh_per_second=4, vertical_overflow="visible") as live:
        shown = LiveTable(live)
        try:
            yield shown
        finally:
            shown.finish()
    console.print(LEGEND)


def table(rows: Sequence[BenchRow]) -> Table:
    """Return the rows of one size as a rich table."""
    first = rows[0]
    size = f"{first.clients} clients, {first.byzantine} of them attackers, {short(first.dim)} coordinates"
    heads = ("rule", "engine", "reads", "least .. most", "time", "extra", "ok")
    out = new_table(heads, f"{size}\n{first.dtype} on {first.device}: {first.machine}", left=heads[:2])
    for rule, of in groupby(rows, key=lambda row: row.rule):
        for i, row in enumerate(of):
            out.add_row("" if i else rule, row.label, *_cells(row))
        out.add_section()
    return out


def _cells(row: BenchRow) -> list[str]:
    extra = "" if row.extra_bytes is None else f"{row.extra_bytes / 2**20:,.0f} MiB"
    mark = "[bold red]x[/]" if not row.ok else "[green]=[/]" if row.judged.startswith("meets") else "[green]~[/]"
    if row.reads is None or row.seconds is None or row.reads_min is None or row.reads_max is None:
        return ["", "", row.failure, extra, mark]
    spread = "once" if row.repeats == 1 else f"{multiple(row.reads_min)} .. {multiple(row.reads_max)}"
    return [multiple(row.reads), spread, duration(row.seconds), extra, mark]


def remarks(rows: Sequence[BenchRow]) -> list[str]:
    """Return what is wrong, and how the cost grows where several sizes were measured."""
    wrong = [
        f"{row.label}, {row.rule}, M={row.clients}, p={short(row.dim)}: {row.judged}" for row in rows if not row.ok
    ]
    slopes: dict[str, list[str]] = {}
    for axis, letter in LETTER.items():
        for curve in longest(rows, axis):
            slope = f"{letter}^{curve.slope:.2f} at {LETTER[OTHER[axis]]}={short(curve.held)}"
            slopes.setdefault(f"{curve.rule}, {curve.label}", []).append(slope)
    return [*wrong, *(f"{what}: seconds grow like {' and '.join(grown)}" for what, grown in slopes.items())]


def markdown(rows: Sequence[BenchRow]) -> str:
    """Return one table a size and machine: reads and time, a line an engine and a column a rule."""
    groups: dict[str, list[BenchRow]] = {}
    for row in rows:
        size = f"{row.clients} clients, {short(row.dim)} coordinates, {row.dtype}, {row.device} ({row.machine})"
        groups.setdefault(size, []).append(row)
    return "\n\n".join(f"{size}:\n\n{_markdown_table(here)}" for size, here in groups.items())


def _markdown_table(rows: Sequence[BenchRow]) -> str:
    rules = list(dict.fromkeys(row.rule for row in rows))
    cells = {(row.label, row.rule): _markdown_cell(row) for row in rows}
    labels = dict.fromkeys(row.label for row in rows)
    body = [[label, *(cells.get((label, rule), "") for rule in rules)] for label in labels]
    return markdown_table(["reads of the updates", *rules], body)


def _markdown_cell(row: BenchRow) -> str:
    if row.reads is None or row.seconds is None:
        return row.failure
    return f"{multiple(row.reads)} ({duration(row.seconds)}){'' if row.ok else ', wrong'}"
