"""Rules by their names, set to withstand a number of attackers."""

from __future__ import annotations

from functools import reduce
from operator import rshift

from bartizan import registry
from bartizan.errors import TooFewClientsError
from bartizan.rules import Rule
from bartizan.rules.coordinatewise import CoordinateWise


def rule_named(name: str, n_byzantine: int) -> Rule | CoordinateWise:
    """Return a rule by name, with the number of attackers if it takes one.

    >>> rule_named("nnm >> mca", 3)
    NNM(n_byzantine=3) >> MCA(width=None, tolerance=1e-08, max_steps=1000, start='medoid')
    """
    made: Rule | CoordinateWise = reduce(
        rshift, (registry.build(kind, {"n_byzantine": n_byzantine}) for kind in registry.rule_classes(name))
    )
    return made


def most_accepted(rule: str, n_clients: int, most: int) -> int:
    """Return the largest number of attackers, up to `most`, that the rule's condition allows.

    >>> most_accepted("bulyan", 50, 25)
    11
    """
    for f in range(most, 0, -1):
        try:
            rule_named(rule, f).check(n_clients)
        except TooFewClientsError:
            continue
        return f
    return 0
