"""Sketches: linear maps from p coordinates to k, and their guarantees."""

from bartizan.measure.guarantees import (
    collision_bound,
    collision_odds,
    distortion,
    embedding_dimension,
    pairwise_dimension,
    pairwise_distortion,
)
from bartizan.measure.sketches import Achlioptas, Exact, Gaussian, Projection, Rotated, Sketch

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
