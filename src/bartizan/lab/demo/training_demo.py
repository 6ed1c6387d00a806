"""`bartizan demo`: train with the mean and with robust rules, on real images, with 15 attackers among 50 clients."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from bartizan import records
from bartizan._util.text import short
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.report.wording import percent
from bartizan.lab.runs.progress_display import Display
from bartizan.lab.runs.sweep import sweep

ROUNDS = 40
ATTACKS = ("sign-flip", "lie")
RULES = ("mean", "krum", "geometric-median", "mca")
# Small enough that all runs take less than a minute on two cores.
SETTINGS: dict[str, Any] = {
    "name": "demo",
    "device": "cpu",
    "split.beta": 0.6,
    "model.name": "cnn",
    "clients.count": 50,
    "clients.byzantine": 0.3,
    "clients.batch": 16,
    "sketch.name": "rotated",
    "sketch.k": 4096,
    "server.optimiser": "momentum",
    "server.step_size": 0.03,
}
LEGEND = """\
accuracy: on 2,000 test images that no client has; guessing gives 10%.
attackers: the weight of the 15 attackers, averaged over the rounds.
Sign flips are far from the honest updates, and robust rules leave them out. LIE stays
among them, where distances do not tell it apart: it can get most of the weight.
More: bartizan demo --attacks gaussian,foe --rules mean,bulyan; bartizan list"""


def experiments(
    attacks: Sequence[str] = ATTACKS, rules: Sequence[str] = RULES, rounds: int = ROUNDS
) -> list[Experiment]:
    """Return one experiment for each attack and rule; before them the mean without attack, by which they are judged."""
    base = Experiment().changed({**SETTINGS, "rounds": rounds})
    clean = base.changed({"attack.name": "none", "rule.name": "mean"}).runs()
    grid = base.changed({"grid": {"attack.name": list(attacks), "rule.name": list(rules)}}).runs()
    return [*clean, *(one for one in grid if one.id != clean[0].id)]


def place(folder: Path, runs: Sequence[Experiment]) -> Path:
    """Return the folder of these runs; other runs have another, so that a report shows only its own."""
    ids = " ".join(sorted(one.id for one in runs))
    return folder / f"{len(runs)}-runs-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"


def run(folder: Path, runs: Sequence[Experiment], workers: int | None = None) -> int:
    """Train all, show the progress, print a table and write the report; return 1 if a run failed."""
    try:
        import torch  # noqa: F401 - the workers need it
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("bartizan demo needs torch: pip install 'bartizan[lab]'") from missing

    started = time.perf_counter()
    print(
        "50 clients train a small network on 10,000 images of clothes; 15 of them are attackers.\n"
        "The server takes the mean, or a robust rule on updates projected to k=4096 (PDR)."
    )
    with Display({one.slug: one.rounds for one in runs}) as progress:
        outcomes = sweep(runs, place(folder, runs), workers=workers, resume=False, watch=progress.update)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        print(f"{outcome.folder.name}: {short(outcome.error)}", file=sys.stderr)
    if len(failed) < len(outcomes):
        from bartizan.lab import report

        print(f"\n{table([records.read(outcome.folder) for outcome in outcomes if not outcome.error])}\n{LEGEND}")
        target = folder / "report.html"
        made = report.write(place(folder, runs), target, title="50 clients, 15 of them attackers")
        print(f"\n{fill(made.headline, 88)}\nReport, to be opened in a browser: {made.page.resolve()}")
    print(f"Done in {time.perf_counter() - started:.0f} s.")
    return 1 if failed else 0


def table(recorded: Sequence[records.Recorded]) -> str:
    """Return the last accuracy of each run and its weight on attackers, mean over the rounds, by rule and attack."""
    cells: dict[str, dict[str, tuple[str, str]]] = {}
    for one in recorded:
        config, attack = one.run["config"], one.run["config"]["attack"]["name"]
        accuracies = [line["accuracy"] for line in one.rounds if line.get("accuracy") is not None]
        weight = "-" if attack == "none" else f"{_weight_on_attackers(one):.0%}"
        cells.setdefault(config["rule"]["name"], {})[attack] = percent(accuracies[-1]) if accuracies else "-", weight
    attacks = list(dict.fromkeys(attack for by_attack in cells.values() for attack in by_attack))
    lines = [["attack:", *(text for attack in attacks for text in (attack, ""))]]
    lines += [["rule", *(text for _ in attacks for text in ("accuracy", "attackers"))]]
    lines += [
        [rule, *(text for attack in attacks for text in by_attack.get(attack, ("", "")))]
        for rule, by_attack in cells.items()
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
    return "\n".join([*shown[:2], "-" * len(shown[1]), *shown[2:]])


def _weight_on_attackers(recorded: records.Recorded) -> float:
    """Return the attackers' part of the weight, mean over the rounds."""
    attackers = set(recorded.run["byzantine"])
    rounds = [zip(line["clients"], line["weights"], strict=True) for line in recorded.rounds if line.get("weights")]
    return fmean(sum(weight or 0.0 for client, weight in one if client in attackers) for one in rounds)
