"""The command `paper`: run, compare, keep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from bartizan._util.console import encodable
from studies import plotting
from studies.options import add_parts
from studies.paper import cells as paper_cells
from studies.paper import comparison_tables, kept_runs, run_cells, scatter_plot
from studies.paper.compare import compare as compared
from studies.paper.paper_protocol import ROUNDS

OUT = Path("runs/paper")


def add_to(commands: Any) -> None:
    add_parts(commands, "paper", "repeat the tables of the paper and compare them with ours", (run, compare, keep))


def run(
    table: Annotated[str, "such as cifar10-0.6, cifar10-ks, cifar10-stress, cifar10, all, tab:0.6"],
    *,
    cells: Annotated[str, "such as rule=krum,attack=lie,b=0.3,pdr=1"] = "",
    minutes: Annotated[float | None, "no run is started after them"] = None,
    rounds: Annotated[int, "the length of every run"] = ROUNDS,
    seeds: Annotated[int, "runs of each cell"] = 1,
    protocol: Annotated[
        Literal["budgeted", "literal"], "literal: Algorithm 1 to the letter, from pretrained weights"
    ] = "budgeted",
    workers: Annotated[int, "runs at a time; times need one"] = 1,
    sketch: Annotated[
        Literal["rotated", "achlioptas"] | None, "of PDR, where a cell can take it (default rotated, or achlioptas)"
    ] = None,
    data: Annotated[Path | None, "the folder of the images"] = None,
    out: Annotated[Path, "the folder for the runs"] = OUT,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    set: Annotated[list[str], "KEY=VALUE: change what the paper leaves open"] = [],  # noqa: B006 - not changed
    dry_run: Annotated[bool, "print the runs in their order and run nothing"] = False,
) -> None:
    """Run the cells of a table; finished runs are skipped, stopped ones continue."""
    jobs = run_cells.plan(
        paper_cells.picked(table, cells),
        rounds=rounds,
        seeds=seeds,
        sketch=sketch,
        protocol=protocol,
        data=data,
        device=device,
        changes=set,
    )
    if dry_run:
        print("\n".join(map(str, jobs)))
        return
    run_cells.run_jobs(jobs, out, run_cells.time_limit(minutes), workers)


def compare(
    where: Annotated[Path, "runs, or kept ones"] = OUT,
    *,
    plot: Annotated[Path | None, "draw PDR against base: a .png or .svg"] = None,
) -> None:
    """Compare our runs with the paper's tables, in points of accuracy."""
    if plot:
        plotting.check_path(plot)
    found = compared(where)
    if plot:
        plotting.save(scatter_plot.draw(found.rows), plot)
    parts = [comparison_tables.markdown(found, padded=True), comparison_tables.totals(found.rows)]
    print(encodable("\n\n".join([*parts, *comparison_tables.notes(found)]), sys.stdout))


def keep(
    folder: Annotated[Path, "runs, as `paper run` leaves them"],
    file: Annotated[Path, "a JSON-lines file, created or added to"],
    *,
    commit: Annotated[str | None, "the revision that ran, recorded with each run"] = None,
) -> None:
    """Add finished runs to one small file, a line each."""
    done = kept_runs.keep(folder, file, commit)
    print(f"{file}: {done.runs} runs, of which new: {done.new}, changed: {done.changed}.")
    if done.unfinished:
        print(f"Not finished, and so not kept: {done.unfinished}.")
    if done.others:
        print(f"None of the paper's cells, and so not kept: {done.others}.")
    for what in done.unread:
        print(f"Not read: {what}")
