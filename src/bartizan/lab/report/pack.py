"""The large tables of a run, rounded and thinned for the page."""

from __future__ import annotations

import base64
import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan.lab.report.run_data import Run, mean

MAX_WEIGHT_BYTES = 3_000_000
"""Bytes of weights in a page, over all runs, at most."""
MIN_COLUMNS, MAX_COLUMNS = 24, 400
"""Intervals of rounds in which a run is drawn, at least and at most."""
LEVELS, QUARANTINED, ABSENT = 250, 254, 255
MAX_DOTS = 900
"""Dots of sketched against exact weights per run, at most."""


def columns(run: Run, budget: float) -> int:
    """Return how many intervals of rounds fit into `budget` bytes; 0 if too few would."""
    fit = int(budget // len(run.clients))
    return 0 if fit < min(MIN_COLUMNS, run.n_rounds) else min(fit, MAX_COLUMNS, run.n_rounds)


def weights(run: Run, n_columns: int) -> dict[str, Any]:
    """Return mean weights by client and interval of rounds, one byte each: 0 to 250 for 0 to `top`, or a mark."""
    edges = np.unique(np.linspace(0, run.n_rounds, n_columns + 1).astype(int))
    starts = edges[:-1]
    top = top_weight(run)
    known = np.isfinite(run.weights)
    count = np.add.reduceat(known, starts, axis=0, dtype=np.intp)
    total = np.add.reduceat(np.where(known, run.weights, 0), starts, axis=0, dtype=np.float64)
    levels = np.rint(np.clip(total / np.maximum(count, 1) / top, 0, 1) * LEVELS).astype(np.uint8)
    levels[count == 0] = ABSENT
    levels[np.logical_or.reduceat(run.quarantined, starts, axis=0)] = QUARANTINED
    attackers = run.on_attackers()
    return {
        "top": rounded(top),
        "edges": edges.tolist(),
        "cells": base64_of(levels.T),
        "attackers": rounded([mean(attackers[start:end], axis=0) for start, end in pairwise(edges)]),
    }


def top_weight(run: Run) -> float:
    """Return the end of the scale of weights: not the largest, since one such weight would leave all others pale."""
    positive = run.weights[run.weights > 0]
    return float(np.quantile(positive, 0.995)) if positive.size else 1.0


def compared(run: Run) -> dict[str, Any] | None:
    """Return sketched against exact weights, each pair once, and their distance by round; None if never compared."""
    ours, exact = run.weights[run.exact_rounds], run.exact
    known = np.isfinite(ours) & np.isfinite(exact)
    if not known.any():
        return None
    top = max(float(ours[known].max()), float(exact[known].max())) or 1.0
    attackers = np.broadcast_to(run.byzantine if run.byzantine is not None else False, ours.shape)
    pairs = np.stack([exact[known] / top * LEVELS, ours[known] / top * LEVELS], axis=1)
    marked = np.column_stack([np.rint(np.clip(pairs, 0, LEVELS)), attackers[known]]).astype(np.uint8)
    distance = run.distance()
    rounds = _spaced(len(distance), 240)
    once = np.unique(marked, axis=0)
    return {
        "top": rounded(top),
        "dots": base64_of(once[_spaced(len(once), MAX_DOTS)]),
        "rounds": (run.exact_rounds[rounds] + 1).tolist(),
        "distance": rounded(distance[rounds]),
        "mean": rounded(distance.mean()),
    }


def base64_of(values: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def rounded(value: Any, digits: int = 4) -> Any:
    """Return all floats of a value with so many significant digits, ready for JSON; None for NaN and infinities.

    >>> rounded([0.0123456, float("nan")]), rounded({"a": 3.0, "b": 12345, "c": "d"})
    ([0.01235, None], {'a': 3.0, 'b': 12345, 'c': 'd'})
    """
    if isinstance(value, dict):
        return {key: rounded(one, digits) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [rounded(one, digits) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value


def _spaced(length: int, most: int) -> npt.NDArray[np.intp]:
    """Return at most `most` evenly spaced indices into so many values."""
    return np.unique(np.linspace(0, length - 1, min(most, length)).astype(np.intp))
