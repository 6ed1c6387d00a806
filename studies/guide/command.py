"""The commands of the guide's study: run its stages, and keep a row per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bartizan import records
from bartizan.lab.runs.progress_display import Display
from bartizan.lab.runs.sweep import sweep
from studies.guide import experiments, kept_rows
from studies.options import add_parts
from studies.rows import RESULTS


def add_to(commands: Any) -> None:
    add_parts(commands, "guide", "the runs behind the tables of rules", [run, keep_rows])


def run(
    *stages: Annotated[str, "stages in their order: " + ", ".join(experiments.STAGES)],
    out: Annotated[Path, "where the folders of the runs go; finished runs stay"] = Path("runs/guide"),
    results: Annotated[Path, "the folder of the kept rows, guide-STAGE.jsonl"] = RESULTS,
    workers: Annotated[int | None, "runs at a time, by default one per core"] = None,
    data: Annotated[Path | None, "where data sets are that the package does not hold"] = None,
) -> int:
    """Run all experiments of some stages whose rows are not kept yet, and keep the row of each when it ends."""
    return 1 if sum([_failed(stage, out / stage, results, workers, data) for stage in stages]) else 0


def _failed(stage: str, out: Path, results: Path, workers: int | None, data: Path | None) -> int:
    """Run a stage, the screen until it has found its best rules, and return how many runs failed."""
    file = kept_rows.stage_file(stage, results)
    before = kept_rows.slugs(file)
    ends = kept_rows.ends(file) if stage == "screen" else None
    runs = [one for one in experiments.experiments(stage, data, ends) if one.slug not in before]
    with Display({one.slug: one.rounds for one in runs}) as progress:

        def watch(slug: str, line: Mapping[str, Any]) -> None:
            progress.update(slug, line)
            if line["kind"] == "end":
                kept_rows.keep(file, out / slug)

        outcomes = sweep(runs, out, workers=workers, watch=watch)
    errors = [f"\n{one.folder}: {one.error}" for one in outcomes if one.error]
    print(f"{stage}: {len(before)} kept before,", dict(Counter(one.status for one in outcomes)), *errors)
    return _failed(stage, out, results, workers, data) if ends is not None and runs and not errors else len(errors)


def keep_rows(
    *runs: Annotated[Path, "folders that the sweeps wrote"], out: Annotated[Path, "the file of the kept rows"]
) -> None:
    """Keep a row per run of some folders, such as those of momentum.toml."""
    for folder in runs:
        for one in records.find(folder):
            kept_rows.keep(out, one)
    print(f"kept {len(kept_rows.slugs(out))} runs in {out.name}")
