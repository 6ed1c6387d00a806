"""Compile the kernels ahead of the first call."""

from __future__ import annotations

from typing import Any

import numpy as np

from bartizan._util.stopwatch import compile_seconds
from bartizan.aggregate import aggregate
from bartizan.measure import Exact, Rotated
from bartizan.rules import MCA, Bulyan, FLTrust, GeometricMedian, Krum
from bartizan.rules.coordinatewise import Median
from bartizan.rules.preaggregators import NNM

LARGE_ROUND = 300  # clients, for which other kernels compute the weights than for a few


def warm_up(device: str = "cpu") -> float:
    """Compile the kernels of the usual rules, exact and with the default sketch; return the seconds of compiling.

    Numba and Triton keep the kernels on disk, so that one call serves all later processes on this machine. A `device`
    such as "cuda" compiles those for tensors there.
    """
    before = compile_seconds()
    x = np.random.default_rng(0).normal(size=(LARGE_ROUND, 64))
    for dtype in (np.float32, np.float64):
        few, many = _placed(x[:12].astype(dtype), device), _placed(x.astype(dtype), device)
        for reference in (None, few[0]):
            for sketch in (Exact(), Rotated()):
                aggregate(few, Krum(2), sketch=sketch, reference=reference)
            aggregate(few, FLTrust(), reference=reference, trusted=few[1])
        mixed = NNM(2) >> Krum(2)
        for clients, rule in ((few, GeometricMedian()), (few, MCA()), (few, Bulyan(2)), (few, mixed), (many, mixed)):
            aggregate(clients, rule)
        aggregate(many, Krum(2))
        sizes = np.arange(1, len(few) + 1)
        for coordinate_wise in (Median(), NNM(2) >> Median()):
            aggregate(few, coordinate_wise)
            aggregate(few, coordinate_wise, sizes=sizes)
    return compile_seconds() - before


def _placed(x: Any, device: str) -> Any:
    if device == "cpu":
        return x
    import torch

    return torch.from_numpy(x).to(device)
