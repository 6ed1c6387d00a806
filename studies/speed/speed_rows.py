"""The rows that `speed` writes, as JSON lines, and prints, one per engine and rule as it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bartizan._util.arguments import short
from bartizan._util.console import ProgressLine
from studies.rows import read_rows
from studies.tables import duration, multiple

HEADS = ("rule", "engine", "reads", "least .. most", "time", "extra", "ok")
LINE = "{:<17} {:<20} {:>7} {:>17} {:>8} {:>10} {:>3}"
LEGEND = """
reads: time of a whole call, in reads of all updates in the same run (median).
extra: peak memory of a call beside the updates and the answer.
ok: = meets the rule's definition in float64, ~ as close to the honest mean as
an honest client, x neither."""


@dataclass(frozen=True)
class SpeedRow:
    """One engine's time for one rule on one size, and whether its answer was right."""

    engine: str
    rule: str
    sketch: str | None
    """None where the engine has no sketch."""
    clients: int
    byzantine: int
    dim: int
    dtype: str
    device: str
    seconds: float | None
    """Median of the repeats; None where the engine failed."""
    seconds_min: float | None
    seconds_max: float | None
    reads: float | None
    """Median of each call's seconds over those of the read just before it."""
    reads_min: float | None
    reads_max: float | None
    read_seconds: float | None
    """One read of all updates, median in the same run."""
    repeats: int
    extra_bytes: int | None
    """Peak memory of a call beside the updates and its answer; None where the system does not report it."""
    ok: bool
    judged: str
    """Why the answer is right, or what is wrong with it."""
    definition_error: float | None
    """Distance to the rule's definition in float64, relative to the honest spread."""
    mean_error: float | None
    """Distance to the honest mean, relative to the honest spread."""
    machine: str
    version: str
    run: str = ""
    """When the command that measured the row was started; times are compared within one run."""

    @property
    def label(self) -> str:
        return self.engine if self.sketch is None else f"{self.engine} {self.sketch}"

    @property
    def subject(self) -> tuple[object, ...]:
        """The thing measured; equal for two measurements of the same thing."""
        return self.label, self.rule, self.clients, self.byzantine, self.dim, self.dtype, self.device

    @property
    def failure(self) -> str:
        """The reason why there is no time: "not run" or "fails"."""
        return "not run" if self.judged.startswith("not run") else "fails"


load = partial(read_rows, kind=SpeedRow, advice="Wanted rows that `python -m studies speed --json` wrote.")


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
