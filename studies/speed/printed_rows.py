"""The lines that `speed` prints, one per engine and rule as it is measured."""

from __future__ import annotations

from bartizan._util.arguments import short
from bartizan._util.console import ProgressLine
from studies.speed.speed_rows import SpeedRow
from studies.tables import duration, multiple

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
        self.progress = ProgressLine("speed")
        self.last: SpeedRow | None = None

    def add(self, row: SpeedRow) -> None:
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


def _columns(row: SpeedRow) -> list[str]:
    extra = "" if row.extra_bytes is None else f"{row.extra_bytes / 2**20:,.0f} MiB"
    mark = "x" if not row.ok else "=" if row.judged.startswith("meets") else "~"
    if row.reads is None or row.seconds is None or row.reads_min is None or row.reads_max is None:
        return ["", "", row.failure, extra, mark]
    spread = "once" if row.repeats == 1 else f"{multiple(row.reads_min)} .. {multiple(row.reads_max)}"
    return [multiple(row.reads), spread, duration(row.seconds), extra, mark]
