"""Data sizes and metrics that clients report beside their updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from bartizan._util.text import quoted
from bartizan.measure.client_sizes import SIZE_RANGE, is_size, sizes_of

NUMBERS = (int, float, np.integer, np.floating)


@dataclass(frozen=True)
class SizePolicy:
    """The data size by which each client counts.

    Args:
        sizes: None counts all alike; ``"reported"`` takes what the clients report; a mapping gives each id's size.
        cap: The largest size that a client can claim; needed with ``"reported"``.

    All sizes are from 2^-64 to 2^64, with which no rule computes NaN.
    """

    sizes: Literal["reported"] | Mapping[Any, float] | None = None
    cap: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sizes, Mapping):
            sizes_of(self.sizes, self.sizes)
        elif not (self.sizes is None or (isinstance(self.sizes, str) and self.sizes == "reported")):
            raise ValueError(f"sizes must be None, 'reported' or a mapping from client ids, got {quoted(self.sizes)}.")
        if self.sizes == "reported" and not is_size(self.cap):
            raise ValueError(
                f"sizes='reported' needs size_cap, the most examples that a client can have, {SIZE_RANGE}: "
                "without it, a client that claims a billion would decide every average."
            )

    def of(self, client: Any, reported: Callable[[], Any]) -> float:
        """Return the size of a client; raise ValueError if there is no valid one. `reported` gives its own claim."""
        if self.sizes is None:
            return 1.0
        if isinstance(self.sizes, Mapping):
            if client not in self.sizes:
                raise ValueError("sizes gives no number for this client")
            return float(self.sizes[client])
        claim = reported()
        if not isinstance(claim, NUMBERS) or not is_size(claim):
            raise ValueError(f"it must report its number of examples, {SIZE_RANGE}; got {quoted(claim, 60)}")
        assert self.cap is not None
        return min(float(claim), float(self.cap))

    def __str__(self) -> str:
        if self.sizes == "reported" and self.cap is not None:
            return f"as reported, {float(self.cap)} at most"
        return "one per node" if self.sizes is None else "as given"


def median_metrics(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of every finite number that most clients report.

    No minority of the clients can move a median beyond the others' values.

    >>> median_metrics([{"loss": 1.0}, {"loss": 3.0, "x": 1}, {"loss": 1e9, "accuracy": float("nan")}])
    {'loss': 3.0}
    """
    numbers = [finite_numbers(report) for report in reports]
    names = dict.fromkeys(name for report in numbers for name in report)
    # As floats: the sum of a NumPy integer of a few bits and another one would overflow.
    values = {name: [float(report[name]) for report in numbers if name in report] for name in names}
    return {name: float(median(found)) for name, found in values.items() if 2 * len(found) > len(reports)}


def finite_numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a report that are finite numbers, without integers that no float can hold."""
    return {name: n for name, n in report.items() if isinstance(n, NUMBERS) and _finite(n)}


def _finite(n: Any) -> bool:
    try:
        return math.isfinite(n)
    except OverflowError:
        return False
