"""The benchmark on a terminal: a table that grows, and what is being done just now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bartizan._util.arguments import short
from bartizan.studies.bench.bench_rows import Row, plain, seconds
from bartizan.studies.bench.growth import AXES, LETTER, OTHER, longest

if TYPE_CHECKING:
    from rich.table import Table

LEGEND = """
reads: time of a whole call, in reads of all updates in the same run (median).
extra: peak memory of a call beside the updates and the answer.
ok: [green]=[/] meets the rule's definition in float64, [green]~[/] lies as close to the
honest mean as an honest client, [bold red]x[/] does neither."""


class Screen:
    """A live table of the size that is being measured, below those that are done."""

    def __init__(self, live: Any) -> None:
        from rich.spinner import Spinner

        self.live, self.spinner = live, Spinner("dots")
        self.rows: list[Row] = []

    def notice(self, text: str) -> None:
        self.spinner.update(text=f" {text} ...")
        self._draw()

    def show(self, row: Row) -> None:
        if self.rows and _size(self.rows[0]) != _size(row):
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
def screen() -> Iterator[Screen]:
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("bartizan bench needs rich: pip install 'bartizan[cli]'") from missing
    console = Console()
    with Live("", console=console, refresh_per_second=4, vertical_overflow="visible") as live:
        shown = Screen(live)
        try:
            yield shown
        finally:
            shown.finish()
    console.print(LEGEND, highlight=False)


def table(rows: Sequence[Row]) -> Table:
    """The rows of one size."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    first = rows[0]
    title = f"{first.clients} clients, {first.byzantine} of them attackers, {short(first.dim)} coordinates"
    out = Table(
        title=f"{title}\n{first.dtype} on {first.device}: {first.machine}",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    out.add_column("rule", no_wrap=True)
    out.add_column("engine", no_wrap=True)
    for name in ("reads", "least .. most", "time", "extra", "ok"):
        out.add_column(name, no_wrap=True, justify="right")
    last: str | None = None
    for row in rows:
        if last not in (None, row.rule):
            out.add_section()
        out.add_row("" if row.rule == last else row.rule, row.label, *_cells(row))
        last = row.rule
    return out


def _size(row: Row) -> tuple[int, int]:
    return row.clients, row.dim


def _cells(row: Row) -> list[str]:
    extra = "" if row.extra_bytes is None else f"{row.extra_bytes / 2**20:,.0f} MiB"
    mark = "[bold red]x[/]" if not row.ok else "[green]=[/]" if row.judged.startswith("meets") else "[green]~[/]"
    if row.reads is None or row.seconds is None or row.reads_min is None or row.reads_max is None:
        return ["", "", "not run" if row.judged.startswith("not run") else "fails", extra, mark]
    spread = "once" if row.repeats == 1 else f"{plain(row.reads_min)} .. {plain(row.reads_max)}"
    return [plain(row.reads), spread, seconds(row.seconds), extra, mark]


def remarks(rows: Sequence[Row]) -> list[str]:
    """What is wrong, and how the cost grows where several sizes were measured."""
    wrong = [
        f"{row.label}, {row.rule}, M={row.clients}, p={short(row.dim)}: {row.judged}" for row in rows if not row.ok
    ]
    slopes: dict[str, list[str]] = {}
    for axis in AXES:
        for curve in longest(rows, axis):
            slope = f"{LETTER[axis]}^{curve.slope:.2f} at {LETTER[OTHER[axis]]}={short(curve.held)}"
            slopes.setdefault(f"{curve.rule}, {curve.label}", []).append(slope)
    return [*wrong, *(f"{what}: seconds grow like {' and '.join(grown)}" for what, grown in slopes.items())]
