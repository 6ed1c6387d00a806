"""The sentences at the top of the page: the verdicts of an experiment, the suspects of a deployment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bartizan.judge.reputation import Reputation
from bartizan.lab.metrics import METRICS
from bartizan.lab.report.groups import GridCell
from bartizan.lab.report.run_data import Run
from bartizan.lab.report.verdicts import advice, definition, headline
from bartizan.lab.report.wording import counted, listed

MAX_NAMED_SUSPECTS = 4
"""Suspects that a sentence names, at most."""


def findings(runs: Sequence[Run], cells: Sequence[GridCell]) -> list[str]:
    """Return the sentences, the headline first."""
    if not runs:
        return ["No run could be read."]
    if all(run.byzantine is None for run in runs):
        name = f"{runs[0].name or runs[0].folder}: " if len(runs) > 1 else ""
        return [name + _suspects(runs[0])]
    if not cells:
        return [f"None of {counted(len(runs), 'run')} was evaluated yet."]
    sentences = []
    for metric in METRICS.values():
        if own := [cell for cell in cells if cell.metric == metric]:
            several = f"By {metric.name}: " if len(own) < len(cells) else ""
            sentences += [several + headline(own), *advice(own), *definition(own)]
    if any(run.status == "unfinished" for run in runs):
        sentences[0] = f"So far, with unfinished runs: {sentences[0]}"
    return sentences


def _suspects(run: Run) -> str:
    """Name the suspects of a run whose attackers are not known."""
    if not run.n_rounds:
        return "No round is done yet."
    suspects = reputation_of(run).suspects()
    if suspects:
        named = [f"{run.clients[one.node]} ({one.record})" for one in suspects[:MAX_NAMED_SUSPECTS]]
        named += [f"{len(suspects) - MAX_NAMED_SUSPECTS} more"] if len(suspects) > MAX_NAMED_SUSPECTS else []
        return f"{counted(len(suspects), 'suspect')} among {counted(len(run.clients), 'client')}: {listed(named)}."
    if not run.weighs:
        why = "The rule gives no weights" if run.coordinatewise else "No round gave weights"
        return f"{why}, so there are no suspects."
    return f"No suspects: chance explains how often each of {len(run.clients)} clients was left out."


def reputation_of(run: Run) -> Reputation:
    """Return the reputation of each client, by its position, after all rounds of a run."""
    reputation = Reputation()
    for t, (weights, quarantined) in enumerate(zip(run.weights, run.quarantined, strict=True)):
        judged = {int(i): float(weights[i]) for i in np.flatnonzero(np.isfinite(weights))}
        sizes = {} if run.sizes is None else {i: float(run.sizes[t, i]) for i in judged}
        reputation.add(
            judged,
            {int(i): "" for i in np.flatnonzero(quarantined)},
            {int(i): "" for i in np.flatnonzero(run.failed[t])},
            took_part=map(int, np.flatnonzero(run.present[t])),
            sizes=sizes if sizes and all(size > 0 for size in sizes.values()) else None,
        )
    return reputation
