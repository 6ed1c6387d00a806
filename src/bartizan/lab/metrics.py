"""The metrics of a model on test data: accuracy of images, perplexity of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number of which a higher, or a lower, one is better.

    >>> ACCURACY.best([0.3, math.nan, 0.7]), PERPLEXITY.best([9.0, math.nan, 7.5])
    (0.7, 7.5)
    """

    name: str
    lower_is_better: bool = False

    @property
    def sign(self) -> int:
        """Return the factor that makes a higher number the better one."""
        return -1 if self.lower_is_better else 1

    def merit(self, value: float) -> float:
        """Return a number of which a higher one is better; minus infinity for NaN."""
        return -math.inf if math.isnan(value) else self.sign * value

    def best(self, values: Iterable[float]) -> float:
        return max(values, key=self.merit, default=math.nan)

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of the finite values."""
        return min((value for value in values if math.isfinite(value)), key=self.merit, default=math.nan)

    def shown(self, value: float | None) -> str:
        """Return a value as text.

        >>> ACCURACY.shown(0.8125), PERPLEXITY.shown(8.125), PERPLEXITY.shown(None)
        ('81.2%', '8.12', '-')
        """
        if value is None or math.isnan(value):
            return "-"
        return f"{value:.2f}" if self.lower_is_better else f"{value:.1%}"


ACCURACY = Metric("accuracy")
PERPLEXITY = Metric("perplexity", lower_is_better=True)
METRICS = {metric.name: metric for metric in (ACCURACY, PERPLEXITY)}


def metric_of(run: Mapping[str, Any]) -> Metric:
    """Return the metric that a run's first line names; accuracy in files that name none."""
    return METRICS[run.get("metric") or ACCURACY.name]
