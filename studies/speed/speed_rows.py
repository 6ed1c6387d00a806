"""The rows that the benchmark writes, as JSON lines, and how the cost in them grows with M and p."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bartizan._util import jsonl, schema
from studies.estimates import log_slope

Axis = Literal["clients", "dim"]
LETTER: dict[Axis, str] = {"clients": "M", "dim": "p"}
OTHER: dict[Axis, Axis] = {"clients": "dim", "dim": "clients"}


@dataclass(frozen=True)
class BenchRow:
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
        """What was measured; equal for two measurements of the same thing."""
        return self.label, self.rule, self.clients, self.byzantine, self.dim, self.dtype, self.device

    @property
    def failure(self) -> str:
        """Why there is no time: "not run" or "fails"."""
        return "not run" if self.judged.startswith("not run") else "fails"


def load(path: Path) -> list[BenchRow]:
    """Read a file of rows; lines of earlier versions have no checksum."""
    parsed = jsonl.read(
        path,
        lambda row: schema.parse(BenchRow, row),
        advice="Wanted rows that `bartizan bench --json` wrote.",
        checksum_required=False,
        appended=False,
    )
    return parsed.rows


@dataclass(frozen=True)
class Curve:
    """One engine's rows for one rule along one axis, the other held."""

    label: str
    rule: str
    axis: Axis
    held: int
    rows: tuple[BenchRow, ...]

    @property
    def slope(self) -> float:
        """The exponent of the time in the axis."""
        return log_slope([getattr(row, self.axis) for row in self.rows], [row.seconds or 0.0 for row in self.rows])


def curves(rows: Sequence[BenchRow], axis: Axis) -> list[Curve]:
    """Return every curve of at least two points."""
    grouped: dict[tuple[str, str, int], list[BenchRow]] = {}
    for row in rows:
        if row.seconds:
            grouped.setdefault((row.label, row.rule, getattr(row, OTHER[axis])), []).append(row)
    return [
        Curve(label, rule, axis, held, tuple(sorted(line, key=lambda row: getattr(row, axis))))
        for (label, rule, held), line in grouped.items()
        if len({getattr(row, axis) for row in line}) > 1
    ]


def longest(rows: Sequence[BenchRow], axis: Axis) -> list[Curve]:
    """Return the curves along an axis at the value of the other axis that has most points, the larger of two."""
    every = curves(rows, axis)
    points = Counter[int]()
    for curve in every:
        points[curve.held] += len(curve.rows)
    held = max(points, key=lambda value: (points[value], value), default=0)
    return [curve for curve in every if curve.held == held]
