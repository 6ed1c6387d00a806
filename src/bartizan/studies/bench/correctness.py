"""Check an engine's answer against the rule's definition in float64 and against the honest mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bartizan._util.types import Floats
from bartizan.studies.bench.engines import Answer, Engine
from bartizan.studies.bench.problem import Problem

FACTOR = 1.05  # how much farther from the honest mean than the definition, or an honest client, an answer may be


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right and why; errors are relative to the honest spread."""

    ok: bool
    judged: str
    definition_error: float | None = None
    mean_error: float | None = None


def judged(problem: Problem, engine: Engine, answer: Answer, defined: Floats) -> Verdict:
    """Judge an answer: an exact engine must meet the definition, `defined` weights; others may instead be as close to
    the honest mean as an honest client.

    If the engine returns weights, they must combine to its update, whatever the sketch.
    """
    if tuple(answer.update.shape) != (problem.dim,):
        return Verdict(False, f"wrong shape: {tuple(answer.update.shape)}")
    tolerance = 1e-2 if "16" in problem.dtype else 1e-4
    own = [] if answer.weights is None else [answer.weights]
    distances = problem.distances(answer.update, np.stack([defined, problem.mean_weights, *own])) / problem.spread
    to_definition, to_mean = float(distances[0]), float(distances[1])
    if not np.isfinite(distances).all():
        return Verdict(False, "not finite")

    def verdict(ok: bool, why: str) -> Verdict:
        return Verdict(ok, why, to_definition, to_mean)

    if own:
        w = own[0]
        if w.shape != (problem.clients,) or (w < 0).any() or w.sum() > 1 + 1e-9:
            return verdict(False, "the weights are not one a client, none negative, with a sum of at most 1")
        if distances[2] > tolerance:
            return verdict(False, f"the update is {distances[2]:.2g} spreads from what its own weights make")
    if to_definition <= tolerance:
        return verdict(True, "meets the definition")
    if engine.exact:
        return verdict(False, f"{to_definition:.2g} spreads from the definition")
    bound = FACTOR * max(1.0, problem.distance_to_mean(defined))
    if to_mean <= bound:
        return verdict(True, "as close to the honest mean as an honest client")
    return verdict(False, f"{to_mean:.2g} spreads from the honest mean, wanted {bound:.2g} at most")
