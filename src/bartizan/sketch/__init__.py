"""Sketches: linear maps from p coordinates to k, and their guarantees."""

from bartizan.sketch.base import Projection, Sketch
from bartizan.sketch.exact import Exact
from bartizan.sketch.guarantees import (
    collision_bound,
    collision_odds,
    distortion,
    embedding_dimension,
    pairwise_dimension,
    pairwise_distortion,
)
from bartizan.sketch.projections import Achlioptas, Gaussian, Rotated

__all__ = [
    "Achlioptas",
    "Exact",
    "Gaussian",
    "Projection",
    "Rotated",
    "Sketch",
    "collision_bound",
    "collision_odds",
    "distortion",
    "embedding_dimension",
    "pairwise_dimension",
    "pairwise_distortion",
]
