"""Rules that treat each coordinate separately: a random projection mixes coordinates, so none can be projected."""

from bartizan.rules.coordinatewise.base import CoordinateWise
from bartizan.rules.coordinatewise.meamed import MeaMed
from bartizan.rules.coordinatewise.median import Median
from bartizan.rules.coordinatewise.trimmed_mean import TrimmedMean

__all__ = ["CoordinateWise", "MeaMed", "Median", "TrimmedMean"]
