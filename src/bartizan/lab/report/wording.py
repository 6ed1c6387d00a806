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


def points(value: float) -> str:
    """Return a difference of fractions in percentage points.

    >>> points(0.05), points(0.0071), points(0.01)
    ('5 points', '0.7 points', '1 point')
    """
    shown = tenths(100 * value).removesuffix(".0")
    return f"{shown} {'point' if shown == '1' else 'points'}"


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


def difference(value: float, metric: Metric) -> str:
    """Return a difference of two values of a metric.

    >>> from bartizan.lab.metrics import PERPLEXITY
    >>> difference(0.05, ACCURACY), difference(0.051, PERPLEXITY)
    ('5 points', '0.05')
    """
    return points(value) if metric == ACCURACY else level(value, metric)


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


def duration(seconds: float) -> str:
    """Return seconds with a unit.

    >>> duration(1.234), duration(0.0021), duration(3e-5)
    ('1.23 s', '2.1 ms', '30 µs')
    """
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if seconds * f >= 1), ("µs", 1e6))
    return f"{seconds * factor:.3g} {unit}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words.

    >>> listed(["krum", "mca", "mean"])
    'krum, mca and mean'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def capital(sentence: str) -> str:
    """Begin with a capital, unless the first word is an abbreviation.

    >>> capital("krum and mca"), capital("mca"), capital("one seed")
    ('Krum and mca', 'mca', 'One seed')
    """
    word = sentence.split()[0].strip(",")
    return sentence if len(word) <= 3 and word != "one" else sentence[:1].upper() + sentence[1:]
