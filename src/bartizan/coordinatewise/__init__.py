"""Rules that look at each coordinate by itself. A random projection mixes the coordinates, so none can be projected."""

from bartizan.coordinatewise.base import CoordinateWise
from bartizan.coordinatewise.meamed import MeaMed
from bartizan.coordinatewise.median import Median
from bartizan.coordinatewise.trimmed_mean import TrimmedMean

__all__ = ["CoordinateWise", "MeaMed", "Median", "TrimmedMean"]
