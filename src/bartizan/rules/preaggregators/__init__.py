"""Pre-aggregators: mixings of the clients that come before a rule."""

from bartizan.rules.preaggregators.base import Chain, Mixed, PreAggregator
from bartizan.rules.preaggregators.bucketing import Bucketing
from bartizan.rules.preaggregators.clipping import ARC, Clipping
from bartizan.rules.preaggregators.nnm import NNM

__all__ = ["ARC", "NNM", "Bucketing", "Chain", "Clipping", "Mixed", "PreAggregator"]
