"""The rules that the campaign draws, those of the registry and more, and when they may aggregate."""

from hypothesis import strategies as st

import bartizan as bz
from bartizan import registry
from bartizan.rules.preaggregators import PreAggregated
from tests.support import oracle


def _of(rule):
    return rule if "n_byzantine" in rule.__dataclass_fields__ else lambda f: rule()


RULES = {name: _of(each.find(name)) for each in (registry.RULES, registry.COORDINATEWISE) for name in each.built_in} | {
    "centered-clipping": lambda f: bz.CenteredClipping(radius=9.0),
    "centered-clipping by the median": lambda f: bz.CenteredClipping(steps=2),
    "bulyan, trimmed": lambda f: bz.Bulyan(f, trim=True),
    "nnm >> krum": lambda f: bz.NNM(f) >> bz.Krum(f),
    "nnm >> median": lambda f: bz.NNM(f) >> bz.coordinatewise.Median(),
    "arc >> mean": lambda f: bz.ARC(f) >> bz.Mean(),
    "norm-filter >> flame": lambda f: bz.NormFilter() >> bz.FLAME(),
    "clipping >> multi-krum": lambda f: bz.Clipping(2.0) >> bz.MultiKrum(f),
    "bucketing >> geometric-median": lambda f: bz.Bucketing(2) >> bz.GeometricMedian(),
}
MAKERS = st.sampled_from(list(RULES.values()))


@st.composite
def rules(draw, M):
    """Draw a rule for M clients; in half of the cases its budget is one that every rule admits."""
    f, make = draw(st.integers(0, max(0, M // 2 - 1))), draw(MAKERS)
    return make(min(f, max(0, (M - 3) // 4)) if draw(st.booleans()) else f)


def enough(rule, M, gone):
    """Return whether the rule can aggregate when `gone` of M clients are quarantined, as documented."""
    if rule.max_byzantine() is None:
        return 2 * gone < M and _holds(rule, M - gone)
    return _left(rule, M, gone) is not None


def lowered(rule, M, gone):
    """Return the rule as it runs when `gone` of M clients are quarantined."""
    left = _left(rule, M, gone)
    return rule if left is None else rule.with_fewer_byzantine(rule.max_byzantine() - left)


def _left(rule, M, gone):
    f = rule.max_byzantine()
    return (
        f
        if f is None
        else oracle.n_byzantine_left(f, gone, lambda g: _holds(rule.with_fewer_byzantine(f - g), M - gone))
    )


def _holds(rule, M):
    if isinstance(rule, PreAggregated):
        return _holds(rule.first, M) and _holds(rule.then, rule.first.n_mixed(M))
    return rule.least_clients(rule.max_byzantine() or 0) <= M
