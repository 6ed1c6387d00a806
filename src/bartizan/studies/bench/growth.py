"""How the cost grows: slopes of log seconds against log M and log p."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bartizan.studies.bench.bench_rows import Row

Axis = Literal["clients", "dim"]
AXES: tuple[Axis, Axis] = ("clients", "dim")
OTHER: dict[Axis, Axis] = {"clients": "dim", "dim": "clients"}
LETTER = {"clients": "M", "dim": "p"}


@dataclass(frozen=True)
class Curve:
    """One engine's rows for one rule along one axis, the other held."""

    label: str
    rule: str
    axis: Axis
    held: int
    rows: tuple[Row, ...]

    @property
    def slope(self) -> float:
        """1 where doubling the axis doubles the time."""
        x = np.log([getattr(row, self.axis) for row in self.rows])
        y = np.log([row.seconds for row in self.rows if row.seconds])
        return float(np.polyfit(x, y, 1)[0])


def curves(rows: Sequence[Row], axis: Axis) -> list[Curve]:
    """Every line of at least two points."""
    grouped: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row.seconds:
            grouped.setdefault((row.label, row.rule, getattr(row, OTHER[axis])), []).append(row)
    return [
        Curve(label, rule, axis, held, tuple(sorted(line, key=lambda row: getattr(row, axis))))
        for (label, rule, held), line in grouped.items()
        if len({getattr(row, axis) for row in line}) > 1
    ]


def longest(rows: Sequence[Row], axis: Axis) -> list[Curve]:
    """The lines along an axis with the other held where most points are, at the larger of two alike."""
    every = curves(rows, axis)
    points = Counter[int]()
    for curve in every:
        points[curve.held] += len(curve.rows)
    held = max(points, key=lambda value: (points[value], value), default=0)
    return [curve for curve in every if curve.held == held]
