"""The two peers under one signature, and the random updates that all are given."""

import byzpy.pre_aggregators as byzpy_pre
import numpy as np
import torch
from byzpy.aggregators import coordinate_wise, geometric_wise, norm_wise

from bartizan import aggregate
from studies.speed.other_libraries import byzfl_rules

__all__ = ["byzfl", "byzpy", "byzpy_pre", "coordinate_wise", "draw", "geometric_wise", "norm_wise", "ours"]

byzfl = byzfl_rules()

# (M, f, p) as in the papers: clients, attackers, coordinates.
SHAPES = [(9, 0, 10), (7, 1, 3), (8, 2, 20), (11, 3, 50), (12, 4, 5)]
WITH_ATTACKERS = SHAPES[1:]


def draw(seed, M, f, p):
    """Gaussian clients, f of whom are moved together: not at all, somewhat, or far, by turns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(M, p))
    x[rng.choice(M, f, replace=False)] += (0, 3, 1000)[seed % 3] * rng.normal(size=p)
    return x


def ours(x, rule, **settings):
    return aggregate(x, rule, **settings).update


def byzpy(rule, x):
    """ByzPy takes a list of tensors; a pre-aggregator gives one back."""
    rows = [torch.from_numpy(row.copy()) for row in x]
    if hasattr(rule, "pre_aggregate"):
        return torch.stack(rule.pre_aggregate(rows)).numpy()
    return rule.aggregate(rows).numpy()
