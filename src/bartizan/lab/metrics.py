"""What a model is judged by on test data: accuracy of images, perplexity of text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number that is better the higher or the lower it is.

    >>> ACCURACY.best([0.3, math.nan, 0.7]), PERPLEXITY.best([9.0, math.nan, 7.5])
    (0.7, 7.5)
    """

    name: str
    lower_is_better: bool = False

    @property
    def sign(self) -> int:
        """What makes a higher number the better one."""
        return -1 if self.lower_is_better else 1

    def merit(self, value: float) -> float:
        """A number that is the higher the better; minus infinity where nothing is known."""
        return -math.inf if math.isnan(value) else self.sign * value

    def best(self, values: Iterable[float]) -> float:
        return max(values, key=self.merit, default=math.nan)

    def worst(self, values: Iterable[float]) -> float:
        """The worst of the known values."""
        return min((value for value in values if math.isfinite(value)), key=self.merit, default=math.nan)


ACCURACY = Metric("accuracy")
PERPLEXITY = Metric("perplexity", lower_is_better=True)
METRICS = {metric.name: metric for metric in (ACCURACY, PERPLEXITY)}
