"""Numbers and lists as words, as the report's sentences have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

from bartizan.lab.metrics import ACCURACY, Metric


def tenths(value: float) -> str:
    """Round to one decimal, halves up, as the page's script does.

    >>> tenths(74.25), tenths(80)
    ('74.3', '80.0')
    """
    if not abs(value) < 1e9:
        return f"{value:.3g}"
    return str(Decimal(value).quantize(Decimal("0.1"), ROUND_HALF_UP))


def percent(value: float) -> str:
    """Return a fraction in per cent.

    >>> percent(0.8125), percent(0.7425), percent(0.3)
    ('81.3%', '74.3%', '30%')
    """
    return "not known" if math.isnan(value) else f"{tenths(100 * value).removesuffix('.0')}%"


def level(value: float, metric: Metric) -> str:
    """Return a value of a metric.

    >>> from bartizan.lab.metrics import PERPLEXITY
    >>> level(0.8125, ACCURACY), level(8.125, PERPLEXITY), level(3e40, PERPLEXITY)
    ('81.3%', '8.13', '3.0e+40')
    """
    if metric == ACCURACY:
        return percent(value)
    if not abs(value) < 1e6:
        return "not known" if math.isnan(value) else f"{value:.1e}"
    return f"{Decimal(value).quantize(Decimal('0.01'), ROUND_HALF_UP):,}"


def difference(value: float, metric: Metric = ACCURACY) -> str:
    """Return a difference of two values of a metric, of accuracies in percentage points.

    >>> from bartizan.lab.metrics import PERPLEXITY
    >>> difference(0.05), difference(0.0071), difference(0.01), difference(0.051, PERPLEXITY)
    ('5 points', '0.7 points', '1 point', '0.05')
    """
    if metric != ACCURACY:
        return level(value, metric)
    shown = tenths(100 * value).removesuffix(".0")
    return f"{shown} {'point' if shown == '1' else 'points'}"


def span(ends: Sequence[float], metric: Metric = ACCURACY) -> str:
    """Return accuracies or perplexities as one text; an infinite one is a run that did not converge.

    >>> span([0.769]), span([0.1, 0.8, -math.inf]), span([-math.inf])
    ('76.9%', '10% to 80%, or not converged', 'not converged')
    >>> from bartizan.lab.metrics import PERPLEXITY
    >>> span([7.5, 9.25, math.inf], PERPLEXITY)
    '7.50 to 9.25, or not converged'
    """
    known = [end for end in ends if math.isfinite(end)]
    shown = list(dict.fromkeys(level(end, metric) for end in (min(known), max(known)))) if known else []
    lost = ["not converged"] if any(map(math.isinf, ends)) else []
    return ", or ".join(filter(None, [" to ".join(shown), *lost])) or "not known"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words.

    >>> listed(["krum", "mca", "mean"])
    'krum, mca and mean'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
