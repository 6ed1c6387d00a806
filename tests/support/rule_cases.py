"""The one table of rules, each with the laws that it obeys; a new rule joins by one line."""

from __future__ import annotations

from dataclasses import dataclass

import bartizan as bz
from bartizan.rules import Rule


@dataclass(frozen=True)
class Case:
    rule: Rule
    permutation: bool = True  # weights follow their clients
    shift: bool = True  # no common shift changes the weights
    scale: bool = True  # no common scale changes the weights
    convex: bool = True  # weights sum to 1
    twins: bool = False  # equal updates get equal weights
    outlier: float = 0.0  # the most weight that one far client gets
    bounded: bool = True  # one far client moves the result no farther than the honest are apart
    least: int = 1  # clients needed with n_byzantine=0

    def __repr__(self) -> str:
        return repr(self.rule)


# n_byzantine is 2 in all of them: every rule works on 13 clients.
CASES = [
    Case(bz.Mean(), twins=True, outlier=1.0, bounded=False),
    Case(bz.Krum(2), least=3),
    Case(bz.MultiKrum(2), least=3),
    Case(bz.MultiKrum(2, n_selected=4), least=3),
    Case(bz.Bulyan(2), least=3),
    Case(bz.GeometricMedian(), twins=True, outlier=1e-3),
    Case(bz.MCA(), twins=True),
    Case(bz.MCA(width=2.0), scale=False, twins=True),
    Case(bz.MCA(start="mean"), twins=True, outlier=1e-3, bounded=False),
    Case(bz.CenteredClipping(), shift=False, convex=False, twins=True, outlier=1e-3),
    Case(bz.CenteredClipping(radius=1.0, steps=5), shift=False, scale=False, convex=False, twins=True, outlier=1e-3),
    Case(bz.MDA(2), permutation=False),  # several sets may share the least diameter: see test_definitions
    Case(bz.SMEA(2)),
    Case(bz.MoNNA(2), shift=False),
    Case(bz.FLTrust(), shift=False, convex=False, twins=True, outlier=1e-3),
    Case(bz.CAF(2), twins=True),
    Case(bz.CGE(2), shift=False),
    Case(bz.SpectralDnC(2)),
    Case(bz.ClippedClustering(), shift=False, convex=False, outlier=1e-3),
    Case(bz.FLAME(), shift=False, convex=False, twins=True, outlier=1e-3),
    Case(bz.NNM(2) >> bz.Krum(2), least=3),
    Case(bz.NNM(2) >> bz.GeometricMedian(), outlier=0.1),
    Case(bz.Bucketing(2) >> bz.GeometricMedian(), permutation=False, outlier=1e-3),
    Case(bz.Clipping(1.0) >> bz.GeometricMedian(), shift=False, scale=False, convex=False, twins=True, outlier=1e-3),
    Case(bz.ARC(2) >> bz.GeometricMedian(), shift=False, convex=False, twins=True, outlier=1e-3),
    Case(bz.NormFilter() >> bz.Mean(), shift=False, twins=True),
    Case(bz.NormFilter(high=2.0) >> bz.FLAME(), shift=False, convex=False, twins=True),
    Case(
        bz.Clipping(9.0) >> bz.NNM(2) >> bz.MultiKrum(2), shift=False, scale=False, convex=False, least=3, outlier=0.01
    ),
]
