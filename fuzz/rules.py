"""The rules that the campaign draws, and their documented breakdown conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bartizan as bz
from bartizan.rules.coordinatewise import MeaMed, Median, TrimmedMean
from bartizan.rules.preaggregators import PreAggregated
from fuzz.draw import Draw
from tests.support import oracle

RULES: dict[str, Callable[[int], Any]] = {
    "Mean": lambda f: bz.Mean(),
    "Krum": bz.Krum,
    "GeometricMedian": lambda f: bz.GeometricMedian(),
    "Median": lambda f: Median(),
    "MultiKrum": bz.MultiKrum,
    "TrimmedMean": TrimmedMean,
    "CenteredClipping": lambda f: bz.CenteredClipping(radius=9.0),
    "CenteredClipping by the median": lambda f: bz.CenteredClipping(steps=2),
    "CGE": bz.CGE,
    "Bulyan": bz.Bulyan,
    "Bulyan, trimmed": lambda f: bz.Bulyan(f, trim=True),
    "MCA": lambda f: bz.MCA(),
    "MDA": bz.MDA,
    "SMEA": bz.SMEA,
    "CAF": bz.CAF,
    "SpectralDnC": bz.SpectralDnC,
    "ClippedClustering": lambda f: bz.ClippedClustering(),
    "FLAME": lambda f: bz.FLAME(),
    "MoNNA": bz.MoNNA,
    "FLTrust": lambda f: bz.FLTrust(),
    "MeaMed": MeaMed,
    "NNM >> Krum": lambda f: bz.NNM(f) >> bz.Krum(f),
    "NNM >> Median": lambda f: bz.NNM(f) >> Median(),
    "ARC >> Mean": lambda f: bz.ARC(f) >> bz.Mean(),
    "NormFilter >> FLAME": lambda f: bz.NormFilter() >> bz.FLAME(),
    "Clipping >> MultiKrum": lambda f: bz.Clipping(2.0) >> bz.MultiKrum(f),
    "Bucketing >> GeometricMedian": lambda f: bz.Bucketing(2) >> bz.GeometricMedian(),
}


def rule_of(draw: Draw, M: int) -> Any:
    f = draw.below(max(1, M // 2))
    return RULES[draw.pick(list(RULES))](f if not draw.chance(2) else min(f, max(0, (M - 3) // 4)))


def enough(rule: Any, M: int, gone: int) -> bool:
    """Return whether the rule can aggregate when `gone` of M clients are quarantined, as documented."""
    if rule.max_byzantine() is None:
        return 2 * gone < M and _holds(rule, M - gone)
    return _left(rule, M, gone) is not None


def lowered(rule: Any, M: int, gone: int) -> Any:
    """Return the rule as it runs when `gone` of M clients are quarantined."""
    left = _left(rule, M, gone)
    return rule if left is None else rule.with_fewer_byzantine(rule.max_byzantine() - left)


def _left(rule: Any, M: int, gone: int) -> int | None:
    f = rule.max_byzantine()
    if f is None:
        return None
    return oracle.n_byzantine_left(f, gone, lambda g: _holds(rule.with_fewer_byzantine(f - g), M - gone))


def _holds(rule: Any, M: int) -> bool:
    if isinstance(rule, PreAggregated):
        return _holds(rule.first, M) and _holds(rule.then, rule.first.n_mixed(M))
    return bool(rule.least_clients(rule.max_byzantine() or 0) <= M)
