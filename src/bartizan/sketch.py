"""Sketches: linear maps from p coordinates to k, and their guarantees."""

from bartizan.measure import *  # noqa: F403
from bartizan.measure import __all__ as __all__
