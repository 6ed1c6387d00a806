"""`bartizan demo`: train with the mean and with robust rules, on real images, with 15 attackers among 50 clients."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bartizan.lab.config.experiment import Experiment
from bartizan.lab.runs.sweep import sweep
from bartizan.studies.demo.demo_display import display
from bartizan.studies.terminal import new_console

ROUNDS = 40
ATTACKS = ("sign-flip", "lie")
RULES = ("mean", "krum", "geometric-median", "mca")
# Small enough that all runs take less than two minutes on two cores.
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
LEGEND = """
accuracy: on 2,000 test images that no client has; guessing gives 10%.
attackers: the weight of the 15 attackers, averaged over the rounds.
Sign flips are far from the honest updates, and robust rules leave them out. LIE stays
among them, where distances do not tell it apart: rules that trust few suffer most.
More: bartizan demo --attacks gaussian,foe --rules mean,bulyan; bartizan list"""


def experiments(
    attacks: Sequence[str] = ATTACKS, rules: Sequence[str] = RULES, rounds: int = ROUNDS
) -> list[Experiment]:
    """Return one experiment for each attack and rule."""
    grid = {"attack.name": list(attacks), "rule.name": list(rules)}
    return Experiment().changed({**SETTINGS, "rounds": rounds, "grid": grid}).runs()


def place(folder: Path, runs: Sequence[Experiment]) -> Path:
    """Return the folder of these runs; other runs have another, so that a report shows only its own."""
    ids = " ".join(sorted(one.id for one in runs))
    return folder / f"{len(runs)}-runs-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"


def run(folder: Path, runs: Sequence[Experiment], workers: int | None = None) -> int:
    """Train all, show the progress and write the report; return 1 if a run failed."""
    try:
        import torch  # noqa: F401 - the workers need it
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(f"bartizan demo needs {missing.name}: pip install 'bartizan[lab]'") from missing

    console = new_console("demo", "lab")
    started = time.perf_counter()
    by_slug = {one.slug: one for one in runs}
    console.print(
        "[bold]50 clients[/bold] train a small network on 10,000 images of clothes; 15 of them are attackers.\n"
        "The server takes the mean, or a robust rule on updates projected to k=4096 (PDR)."
    )
    with display(by_slug, console) as shown:
        outcomes = sweep(runs, place(folder, runs), workers=workers, resume=False, watch=shown.see)
    console.print(LEGEND)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        print(f"{outcome.folder.name}: {outcome.error}", file=sys.stderr)
    if len(failed) < len(outcomes):
        from bartizan.lab import report

        with console.status("Drawing the report ..."):
            title, target = "50 clients, 15 of them attackers", folder / "report.html"
            page = report.write(place(folder, runs), target, title=title).page
        console.print(f"\nReport, to be opened in a browser: [bold]{page.resolve()}[/bold]", soft_wrap=True)
    console.print(f"Done in {time.perf_counter() - started:.0f} s.")
    return 1 if failed else 0
