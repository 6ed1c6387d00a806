"""Rounds of few clients beside a buffer that remembers the others, and beside one that does not wait for the slow.

python -m studies buffered --out studies/results/buffered.json     # twenty minutes on one core
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from bartizan.lab.config.experiment import Experiment
from bartizan.lab.training.training_loop import Training
from bartizan.lab.training.virtual_time import BufferedTraining
from studies.options import command
from studies.rows import write_json
from studies.tables import markdown_table

BASE = {
    "device": "cpu",
    "split": {"kind": "iid"},
    "clients": {"count": 50, "byzantine": 10, "work": "steps", "local": 5},
    "evaluation": {"every": 2, "exact_weights": False},
}
RULE = {"name": "arc >> caf"}
FEW = {"clients": {"participation": 0.1}, "rounds": 100}
SLOW = {"clients": {"speed": 10}, "evaluation": {"every": 1}}
# name -> what a run changes
SETTINGS: dict[str, dict[str, Any]] = {
    "rounds of 5, mean": FEW | {"rule": {"name": "mean"}},
    "rounds of 5, default rule for f = 1": FEW | {"rule": RULE | {"n_byzantine": 1}},
    "rounds of 5, default rule for the true f": FEW | {"rule": RULE},
    "buffer of 5, remembered in the judgement": FEW | {"rule": RULE, "server": {"buffer": 5, "remember": "judge"}},
    "buffer of 5, remembered in the sum": FEW | {"rule": RULE, "server": {"buffer": 5, "remember": "sum"}},
    "rounds of 50, ten times slower clients": SLOW | {"rule": RULE, "rounds": 12},
    "buffer of 25, ten times slower clients": SLOW | {"rule": RULE, "rounds": 48, "server": {"buffer": 25}},
}
ATTACKS = {
    "no attack": {"name": "none"},
    "sign-flip": {"name": "sign-flip"},
    "alie": {"name": "alie"},
}
GOAL = 0.75


def buffered(*, seeds: int = 3, out: Path | None = None) -> None:
    """Train on the package's Fashion-MNIST with 50 clients, of which 10 attack and see all honest updates.

    In a round of 5 the rule withstands a fifth of the clients, f = 1, or is told the true number, as far as it can take
    it: more than 2 of 5 are too many. A buffer's rule withstands all 10. Kept are the last accuracy
    of each seed, the lowest of the second half of its rounds, and the virtual time to an accuracy of 75%.
    """
    torch.set_num_threads(1)
    rows = []
    for setting, changes in SETTINGS.items():
        for attack, chosen in ATTACKS.items():
            runs = [trained(changes, chosen, seed) for seed in range(seeds)]
            rows.append({"setting": setting, "attack": attack, **{key: [run[key] for run in runs] for key in runs[0]}})
            print(rows[-1], flush=True)
            write_json(out, rows)
    print(table(rows))


add_to = command(buffered)


def trained(changes: dict[str, Any], attack: dict[str, Any], seed: int) -> dict[str, float | None]:
    """Return what is kept of one run."""
    sections = {name: changes[name] for name in changes.keys() - BASE.keys()}
    sections |= {name: {**BASE[name], **changes.get(name, {})} for name in BASE if isinstance(BASE[name], dict)}
    experiment = Experiment.of({"device": "cpu", "seed": seed, "attack": attack, **sections})
    training = (BufferedTraining if experiment.server.buffer else Training)(experiment, "cpu")
    seen: list[tuple[float, float]] = []
    for t in range(1, experiment.rounds + 1):
        line = training.round(t)
        if "accuracy" in line:
            seen.append((line.get("time", float(t)), line["accuracy"]))
        if training.diverged:
            break
    accuracies = [accuracy for _, accuracy in seen]
    reached = next((time for time, accuracy in seen if accuracy >= GOAL), None)
    lowest = 0.0 if training.diverged else min(accuracies[len(accuracies) // 2 :])
    return {"last": 0.0 if training.diverged else accuracies[-1], "lowest": lowest, "time": reached}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the last and the lowest accuracy and the time to 75%, by setting and attack: means over the seeds."""

    def percent(values: Sequence[float]) -> str:
        return f"{100 * mean(values):.1f}% ± {100 * stdev(values):.1f}"

    def times(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{mean(known):.0f}" if len(known) == len(values) else f"{len(known)} of {len(values)} runs reach it"

    heads = ["", "attack", "last accuracy", "lowest of the second half", "virtual time to 75%"]
    body = [
        [row["setting"], row["attack"], percent(row["last"]), percent(row["lowest"]), times(row["time"])]
        for row in rows
    ]
    return markdown_table(heads, body, right=heads[2:])
