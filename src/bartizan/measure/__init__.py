"""Sketches: linear maps from p coordinates to k, and their guarantees."""

from bartizan.measure.achlioptas import Achlioptas
from bartizan.measure.base import Projection, Sketch
from bartizan.measure.exact import Exact
from bartizan.measure.gaussian import Gaussian
from bartizan.measure.guarantees import (
    collision_bound,
    collision_odds,
    distortion,
    embedding_dimension,
    pairwise_dimension,
    pairwise_distortion,
)
from bartizan.measure.rotated import Rotated

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
