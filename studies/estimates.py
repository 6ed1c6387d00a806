"""Statistics of a few numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats


def interval(numbers: Sequence[float], least: int = 5) -> float | None:
    """Return half of the 95% interval of a mean, by Student's distribution; None below `least` numbers.

    >>> round(interval([0.0, 1.0, 2.0, 3.0, 4.0]), 2)  # 2.776 standard errors
    1.96
    """
    if len(numbers) < least:
        return None
    return float(stats.t.ppf(0.975, len(numbers) - 1) * stats.sem(numbers))


def log_slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Return the slope of log y against log x: 1 where doubling x doubles y.

    >>> round(log_slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    return float(stats.linregress(np.log(list(x)), np.log(list(y))).slope)
