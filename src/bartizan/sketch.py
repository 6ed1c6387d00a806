"""Sketches: linear maps from p coordinates to k, and their guarantees."""

from bartizan.measure import (
    Achlioptas,
    Exact,
    Gaussian,
    Projection,
    Rotated,
    Sketch,
    collision_bound,
    collision_odds,
    distortion,
    embedding_dimension,
    pairwise_dimension,
    pairwise_distortion,
)

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
