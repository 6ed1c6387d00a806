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
from bartizan.measure.span_guarantee import Guarantee, guarantee, lane_leverage, rotated_span, row_spread

__all__ = [
    "Achlioptas",
    "Exact",
    "Gaussian",
    "Guarantee",
    "Projection",
    "Rotated",
    "Sketch",
    "collision_bound",
    "collision_odds",
    "distortion",
    "embedding_dimension",
    "guarantee",
    "lane_leverage",
    "pairwise_dimension",
    "pairwise_distortion",
    "rotated_span",
    "row_spread",
]
