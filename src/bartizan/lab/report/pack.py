"""The big tables of a run, rounded and thinned until a page can carry them."""

from __future__ import annotations

import base64
import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bartizan.lab.report.run_data import Run, mean

CELLS = 3_000_000
"""Bytes of weights in a page, over all runs."""
COLUMNS = (24, 400)
"""Fewest stretches of rounds that a run is drawn with, and most."""
LEVELS, QUARANTINED, ABSENT = 250, 254, 255
DOTS = 900
"""Of sketched against exact weights, for each run."""


def columns(run: Run, budget: float) -> int:
    """How many stretches of rounds fit into so many bytes; 0 where too few would."""
    fit = int(budget // len(run.clients))
    return 0 if fit < min(COLUMNS[0], run.n_rounds) else min(fit, COLUMNS[1], run.n_rounds)


def weights(run: Run, n_columns: int) -> dict[str, Any]:
    """Client by stretch of rounds, one byte each: 0 to 250 up to `top`, or a mark."""
    edges = np.unique(np.linspace(0, run.n_rounds, n_columns + 1).astype(int))
    top = heaviest(run)
    starts = edges[:-1]
    there = np.isfinite(run.weights)
    count = np.add.reduceat(there, starts, axis=0, dtype=np.intp)
    held = np.add.reduceat(np.where(there, run.weights, 0), starts, axis=0, dtype=np.float64) / np.maximum(count, 1)
    cells = np.rint(np.clip(held / top, 0, 1) * LEVELS).astype(np.uint8)
    cells[count == 0] = ABSENT
    cells[np.logical_or.reduceat(run.quarantined, starts, axis=0)] = QUARANTINED
    attackers = run.on_attackers()
    theirs = [mean(attackers[start:end], axis=0) for start, end in pairwise(edges)]
    return {
        "top": rounded(top),
        "edges": edges.tolist(),
        "cells": coded(cells.T),
        "attackers": [rounded(part) for part in theirs],
    }


def heaviest(run: Run) -> float:
    """Where the scale of weights ends: nearly all that are not 0 lie below it."""
    held = run.weights[run.weights > 0]
    return float(np.quantile(held, 0.995)) if held.size else 1.0


def dots(run: Run) -> dict[str, Any] | None:
    """Sketched against exact weights, each pair of bytes once, with who sent the update; None where never compared."""
    ours, exact = run.weights[run.exact_rounds], run.exact
    there = np.isfinite(ours) & np.isfinite(exact)
    if not there.any():
        return None
    top = max(float(ours[there].max()), float(exact[there].max())) or 1.0
    attackers = np.broadcast_to(run.byzantine if run.byzantine is not None else False, ours.shape)
    pairs = np.stack([exact[there] / top * LEVELS, ours[there] / top * LEVELS], axis=1)
    marked = np.column_stack([np.rint(np.clip(pairs, 0, LEVELS)), attackers[there]]).astype(np.uint8)
    once = np.unique(marked, axis=0)
    picked = once[np.linspace(0, len(once) - 1, min(DOTS, len(once))).astype(int)]
    distance = run.distance()
    shown = np.unique(np.linspace(0, len(distance) - 1, min(240, len(distance))).astype(int))
    return {
        "top": rounded(top),
        "dots": coded(picked),
        "rounds": (run.exact_rounds[shown] + 1).tolist(),
        "distance": [rounded(value) for value in distance[shown]],
        "mean": rounded(float(distance.mean())),
    }


def coded(values: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def decoded(text: str) -> bytes:
    return base64.b64decode(text)


def rounded(value: Any, digits: int = 4) -> float | None:
    """To so many digits that count; None for what is no number.

    >>> rounded(0.0123456), rounded(float("nan")), rounded(3.0)
    (0.01235, None, 3.0)
    """
    found = float(value)
    return float(f"{found:.{digits}g}") if math.isfinite(found) else None
