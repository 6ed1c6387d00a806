"""The 95% interval of a mean of few numbers, by Student's distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def interval(numbers: Sequence[float], least: int = 5) -> float | None:
    """Return half of the 95% interval of a mean; None below `least` numbers.

    >>> round(interval([0.0, 1.0, 2.0, 3.0, 4.0]), 2)  # 2.776 standard errors
    1.96
    """
    if len(numbers) < max(2, least):
        return None
    return student_quantile(len(numbers) - 1) * float(np.std(numbers, ddof=1)) / math.sqrt(len(numbers))


def student_quantile(freedom: int, inside: float = 0.95) -> float:
    """Return x with P(|t| < x) = `inside` for Student's t with so many degrees of freedom, by bisection.

    >>> round(student_quantile(1), 3), round(student_quantile(4), 3), round(student_quantile(30), 3)
    (12.706, 2.776, 2.042)
    """
    low, high = 0.0, math.pi / 2  # of the angle atan(x / sqrt(freedom))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability(middle, freedom) < inside else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _probability(angle: float, freedom: int) -> float:
    """Return P(|t| < sqrt(freedom) tan(angle)) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
