"""`bartizan demo`: train with the mean and with robust rules, on real images, with 15 attackers among 50 clients."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from bartizan._util.text import short
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.demo.aggregation_demo import speed
from bartizan.lab.report.groups import GridCell
from bartizan.lab.report.verdicts import best_worst_case, judged, largest_loss, verdict
from bartizan.lab.report.wording import difference, listed, tenths
from bartizan.lab.report.write import write
from bartizan.lab.runs.progress_display import Display
from bartizan.lab.runs.sweep import sweep
from bartizan.registry import DEFAULT_RULE

ROUNDS = 40
ATTACKS = ("sign-flip", "lie", "min-max")
RULES = ("mean", "multi-krum", "geometric-median", "mca", DEFAULT_RULE)
PAPER: dict[str, dict[str, Any]] = {"mca": {"name": "mca", "start": "mean"}}
"""Rules with the settings that the paper gives them."""
# Small enough that all runs take less than a minute on two cores; the step size is that of the guide's study.
SETTINGS: dict[str, Any] = {
    "name": "demo",
    "device": "cpu",
    "split.beta": 0.6,
    "model.name": "cnn",
    "clients.count": 50,
    "clients.byzantine": 15,
    "clients.batch": 16,
    "sketch.name": "rotated",
    "sketch.k": 4096,
    "server.optimiser": "momentum",
    "server.step_size": 0.06,
    "server.schedule": "cosine",
    "server.by_size": False,
}
LEGEND = """\
Accuracy on 2,000 test images that no client has, after the last round; guessing gives 10%.
In brackets the attackers' part of the weight, mean over the rounds.
mca starts at the mean, as in the paper. All but the exact rows are projected to k=4096.
More: bartizan demo --attacks foe,ipm --rules mean,bulyan --seeds 0,1,2; bartizan list"""


def experiments(
    attacks: Sequence[str] = ATTACKS, rules: Sequence[str] = RULES, rounds: int = ROUNDS, seeds: Sequence[int] = (0,)
) -> list[Experiment]:
    """Return the mean without attack as the baseline, then the rules under attack; the default rule also exact."""
    base = Experiment().changed({**SETTINGS, "rounds": rounds})
    grid = {"attack.name": ["none", *attacks], "seed": list(seeds)}
    parts: list[dict[str, Any]] = [
        {"rule.name": "mean", "grid": {"attack.name": ["none"], "seed": list(seeds)}},
        {"grid": {"rule": [PAPER.get(rule, {"name": rule}) for rule in rules], **grid}},
    ]
    if DEFAULT_RULE in rules:
        parts.append({"rule.name": DEFAULT_RULE, "sketch.name": "exact", "grid": grid})
    return list({one.id: one for part in parts for one in base.changed(part).runs()}.values())


def place(folder: Path, runs: Sequence[Experiment]) -> Path:
    """Return the folder of these runs; other runs have another, so that a report shows only its own."""
    ids = " ".join(sorted(one.id for one in runs))
    return folder / f"{len(runs)}-runs-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"


def run(folder: Path, runs: Sequence[Experiment], workers: int | None = None) -> int:
    """Train all, show the progress, print a table and write the report; return 1 if a run failed."""
    started = time.perf_counter()
    print(
        "50 clients train a small network on 10,000 images of clothes; 15 of them are attackers.\n"
        "The server takes the mean, or a robust rule on updates projected to k=4096 (PDR)."
    )
    with Display({one.slug: one.rounds for one in runs}, begins=False) as progress:
        outcomes = sweep(runs, place(folder, runs), workers=workers, resume=False, watch=progress.update)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        print(f"{outcome.folder.name}: {short(outcome.error)}", file=sys.stderr)
    if len(failed) < len(outcomes):
        made = write(place(folder, runs), folder / "report.html", title="50 clients, 15 of them attackers")
        cells = made.content.cells
        print(f"\n{table(cells, runs)}\n\n{LEGEND}\n")
        for sentence in (*made.content.findings, *cost_of_lie(cells)):
            print(fill(sentence, 88))
        speed(DEFAULT_RULE)
        print(f"\nReport, to be opened in a browser: {made.page.resolve()}")
    print(f"Done in {time.perf_counter() - started:.0f} s.")
    return 1 if failed else 0


def table(cells: Sequence[GridCell], runs: Sequence[Experiment]) -> str:
    """Return the last accuracy and the weight on attackers by rule and attack, and the verdict on each rule."""
    attacks = list(dict.fromkeys(one.attack.name for one in runs))
    rows = list(dict.fromkeys((one.rule.name, one.sketch.name) for one in runs))
    by_key = {(cell.rule, cell.sketch, cell.attack): cell for cell in cells}
    lines = [["", *(attack if attack != "none" else "no attack" for attack in attacks), "verdict"]]
    for rule, sketch in rows:
        own = [by_key.get((rule, sketch, attack)) for attack in attacks]
        name = f"{rule}, exact" if (rule, sketch) == (DEFAULT_RULE, "exact") else rule
        lines.append([name, *map(_entry, own), _verdict(cells, rule, sketch)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
    return "\n".join([shown[0], "-" * len(shown[0]), *shown[1:]])


def cost_of_lie(cells: Sequence[GridCell]) -> list[str]:
    """Return what the attack that hides best costs the mean, and the rule with the best worst case."""
    best = best_worst_case(cells)
    kept = [("mean", ""), (best.rule, best.sketch)] if best else []
    own = [cell for cell in cells if cell.attack == "lie" and judged(cells, cell)]
    own = [cell for cell in own if (cell.rule, "" if cell.rule == "mean" else cell.sketch) in kept]
    own.sort(key=lambda cell: cell.rule != "mean")
    costs = [f"{cell.rule} {difference(max(0.0, largest_loss(cells, [cell])[0]))}" for cell in own]
    return [f"LIE hides among the honest updates, and still costs {listed(costs)}."] if costs else []


def _entry(cell: GridCell | None) -> str:
    if cell is None or math.isnan(cell.ended):
        return "-"
    weight = "" if cell.attack == "none" or math.isnan(cell.on_attackers) else f" {f'({cell.on_attackers:.0%})':>6}"
    return f"{tenths(100 * cell.ended)}%{weight}"


def _verdict(cells: Sequence[GridCell], rule: str, sketch: str) -> str:
    kind = verdict(cells, rule, sketch)
    if kind != "lost":
        return kind
    own = [cell for cell in cells if (cell.rule, cell.sketch) == (rule, sketch) and cell.attack != "none"]
    return f"lost {difference(largest_loss(cells, own)[0])}"
