"""Statistics of a few numbers: the interval of a mean, rank correlation, and the exponent of a growth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, correlation, linear_regression, stdev


def interval(numbers: Sequence[float]) -> float | None:
    """Return half of the 95% interval of a mean, by Student's distribution; None below five numbers.

    The quantile is Cornish and Fisher's expansion, right to 0.3% from 4 degrees of freedom on.

    >>> round(interval([0.0, 1.0, 2.0, 3.0, 4.0]), 2)  # 2.776 standard errors
    1.96
    """
    n = len(numbers)
    if n < 5:
        return None
    z, v = NormalDist().inv_cdf(0.975), n - 1
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return t * stdev(numbers) / math.sqrt(n)


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, equal values sharing their mean rank; None where one side is all equal.

    >>> round(spearman([1, 2, 3, 4], [10, 30, 20, 40]), 9), round(spearman([0, 0, 5], [1, 1, 9]), 9)
    (0.8, 1.0)
    >>> spearman([1, 1], [1, 2])
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return correlation(_ranks(x), _ranks(y))


def log_slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Return the slope of log y against log x: 1 where doubling x doubles y.

    >>> round(log_slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    return linear_regression([math.log(one) for one in x], [math.log(one) for one in y]).slope


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
