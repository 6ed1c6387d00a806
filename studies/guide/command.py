"""The commands of the guide's study: run its stages, and keep a row per run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from bartizan.lab.runs.progress_display import Display
from bartizan.lab.runs.sweep import sweep
from studies.guide import experiments
from studies.guide.decision_guide import keep_rows
from studies.options import add_parts


def add_to(commands: Any) -> None:
    add_parts(commands, "guide", "the runs behind the tables of rules", [run, keep_rows])


def run(
    *stages: Annotated[str, "stages in their order: " + ", ".join(experiments.STAGES)],
    out: Annotated[Path, "where the folders of the runs go; finished runs stay"] = Path("runs/guide"),
    workers: Annotated[int | None, "runs at a time, by default one per core"] = None,
    data: Annotated[Path | None, "where data sets are that the package does not hold"] = None,
) -> int:
    """Run all experiments of some stages; the same command goes on with what is not finished."""
    failed = 0
    for stage in stages:
        runs = experiments.experiments(stage, data)
        with Display({one.slug: one.rounds for one in runs}) as progress:
            outcomes = sweep(runs, out / stage, workers=workers, watch=progress.update)
        print(
            stage,
            dict(Counter(one.status for one in outcomes)),
            *(f"\n{one.folder}: {one.error}" for one in outcomes if one.error),
        )
        failed += sum(bool(one.error) for one in outcomes)
    return 1 if failed else 0
