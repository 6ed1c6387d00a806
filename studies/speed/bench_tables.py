"""Show benchmark rows: line by line as they are measured, as Markdown, and remarks on failures and growth."""

from __future__ import annotations

from collections.abc import Sequence

from bartizan._util.arguments import short
from bartizan._util.console import ProgressLine
from studies.speed.speed_rows import LETTER, OTHER, BenchRow, longest
from studies.tables import duration, markdown_table, multiple

HEADS = ("rule", "engine", "reads", "least .. most", "time", "extra", "ok")
LINE = "{:<17} {:<20} {:>7} {:>17} {:>8} {:>10} {:>3}"
LEGEND = """
reads: time of a whole call, in reads of all updates in the same run (median).
extra: peak memory of a call beside the updates and the answer.
ok: = meets the rule's definition in float64, ~ as close to the honest mean as
an honest client, x neither."""


class RowPrinter:
    """Print each row when it is measured, and the progress on stderr."""

    def __init__(self) -> None:
        self.progress = ProgressLine("bench")
        self.last: BenchRow | None = None

    def add(self, row: BenchRow) -> None:
        self.progress.close()
        if self.last is None or (self.last.clients, self.last.dim) != (row.clients, row.dim):
            size = f"{row.clients} clients, {row.byzantine} of them attackers, {short(row.dim)} coordinates"
            print(f"\n{size}\n{row.dtype} on {row.device}: {row.machine}\n\n{LINE.format(*HEADS)}")
        elif self.last.rule != row.rule:
            print()
        print(LINE.format(row.rule, row.label, *_columns(row)), flush=True)
        self.last = row

    def close(self) -> None:
        self.progress.close()
        print(LEGEND)


def _columns(row: BenchRow) -> list[str]:
    extra = "" if row.extra_bytes is None else f"{row.extra_bytes / 2**20:,.0f} MiB"
    mark = "x" if not row.ok else "=" if row.judged.startswith("meets") else "~"
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
