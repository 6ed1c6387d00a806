"""The bounds of the paper's theorems as functions, and experiments that measure them: `bartizan theory`."""

from bartizan.studies.theory.bounds import (
    aggregation_bound,
    convex_bound,
    convex_step,
    error_floor,
    inflation,
    nonconvex_bound,
    nonconvex_step,
)

__all__ = [
    "aggregation_bound",
    "convex_bound",
    "convex_step",
    "error_floor",
    "inflation",
    "nonconvex_bound",
    "nonconvex_step",
]
