"""Statistics of a few numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy import stats


def log_slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Return the slope of log y against log x: 1 where doubling x doubles y.

    >>> round(log_slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    return float(stats.linregress(np.log(list(x)), np.log(list(y))).slope)
