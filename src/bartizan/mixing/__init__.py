"""Pre-aggregators: mixings of the clients that come before a rule."""

from bartizan.mixing.base import Chain, Mixed, PreAggregator
from bartizan.mixing.bucketing import Bucketing
from bartizan.mixing.clipping import ARC, Clipping
from bartizan.mixing.nnm import NNM

__all__ = ["ARC", "NNM", "Bucketing", "Chain", "Clipping", "Mixed", "PreAggregator"]
