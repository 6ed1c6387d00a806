"""What the benchmark writes: one row a measurement, as JSON lines, and as a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bartizan._util.arguments import short
from bartizan._util.atomic import write_whole


@dataclass(frozen=True)
class Row:
    """One engine's time for one rule on one size, and whether its answer was right."""

    engine: str
    rule: str
    sketch: str | None
    """None where the engine has no choice of one."""
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
    """Median of seconds over those of the read just before."""
    reads_min: float | None
    reads_max: float | None
    read_seconds: float | None
    """One read of all updates, median in the same run."""
    repeats: int
    extra_bytes: int | None
    """Most memory that a call took beside the updates and its answer; None where that can't be seen."""
    ok: bool
    judged: str
    """Why the answer is right, or what is wrong with it."""
    definition_error: float | None
    """Distance to the rule's definition in float64, the honest spread being 1."""
    mean_error: float | None
    """Distance to the honest mean, the honest spread being 1."""
    machine: str
    version: str

    @property
    def label(self) -> str:
        return self.engine if self.sketch is None else f"{self.engine} {self.sketch}"

    @property
    def place(self) -> tuple[object, ...]:
        """What two measurements of the same thing have in common."""
        return self.label, self.rule, self.clients, self.byzantine, self.dim, self.dtype, self.device


def added(old: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """Old rows and new ones, which take the place of their like."""
    fresh = {row.place: row for row in new}
    kept = [fresh.pop(row.place, row) for row in old]
    return [*kept, *fresh.values()]


def save(path: Path, rows: Iterable[Row]) -> None:
    write_whole(path, "".join(json.dumps(asdict(row)) + "\n" for row in rows))


def load(path: Path) -> list[Row]:
    rows = []
    for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(Row(**json.loads(line)))
        except (ValueError, TypeError) as wrong:
            known = ", ".join(field.name for field in fields(Row))
            raise ValueError(f"{path}, line {n}, is no row of bartizan bench ({known}): {wrong}") from None
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """A table an engine and a rule in each cell: reads, and how many times the fastest of ours."""
    parts = []
    for clients, dim, dtype, device, machine in dict.fromkeys(
        (row.clients, row.dim, row.dtype, row.device, row.machine) for row in rows
    ):
        here = [
            row
            for row in rows
            if (row.clients, row.dim, row.dtype, row.device, row.machine) == (clients, dim, dtype, device, machine)
        ]
        parts.append(f"{clients} clients, {short(dim)} coordinates, {dtype}, {device} ({machine}):\n\n{_table(here)}")
    return "\n\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    rules = list(dict.fromkeys(row.rule for row in rows))
    cells = {(row.label, row.rule): _cell(row) for row in rows}
    lines = [f"| reads of the updates | {' | '.join(rules)} |", f"|---|{'---|' * len(rules)}"]
    for label in dict.fromkeys(row.label for row in rows):
        lines.append(f"| {label} | {' | '.join(cells.get((label, rule), '') for rule in rules)} |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    if row.reads is None or row.seconds is None:
        return "not run" if row.judged.startswith("not run") else "fails"
    return f"{plain(row.reads)} ({seconds(row.seconds)}){'' if row.ok else ', wrong'}"


def plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    if value >= 1:
        return f"{plain(value)} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
