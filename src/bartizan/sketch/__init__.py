"""Sketches: linear maps from p coordinates to k, and their guarantees."""

from bartizan.sketch.achlioptas import Achlioptas
from bartizan.sketch.base import Projection, Sketch
from bartizan.sketch.exact import Exact
from bartizan.sketch.gaussian import Gaussian
from bartizan.sketch.guarantees import (
    collision_bound,
    collision_odds,
    distortion,
    embedding_dimension,
    pairwise_dimension,
    pairwise_distortion,
)
from bartizan.sketch.rotated import Rotated

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
