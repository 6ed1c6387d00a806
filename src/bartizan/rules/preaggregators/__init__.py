"""Pre-aggregators: they replace clients by mixtures of clients before a rule is applied."""

from bartizan.rules.preaggregators.base import Chain, Mixed, PreAggregator
from bartizan.rules.preaggregators.bucketing import Bucketing
from bartizan.rules.preaggregators.clipping import ARC, Clipping
from bartizan.rules.preaggregators.nnm import NNM

__all__ = ["ARC", "NNM", "Bucketing", "Chain", "Clipping", "Mixed", "PreAggregator"]
