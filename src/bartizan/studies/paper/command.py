"""The command `bartizan paper`: list, run, compare, keep."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bartizan._util.arguments import number
from bartizan._util.console import encodable

OUT = Path("runs/paper")


def add_to(commands: Any) -> None:
    about = "repeat the tables of the paper and compare them with ours"
    parser = commands.add_parser("paper", help=about, description=about.capitalize() + ".")
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")

    parts.add_parser("list", help="show the tables, the protocol and our choices").set_defaults(run=_list)

    run = parts.add_parser("run", help="run the cells of a table; finished runs are skipped, stopped ones continue")
    run.add_argument(
        "table", metavar="TABLE", help="such as cifar10-0.6, cifar10-ks, cifar10-stress, cifar10, all, tab:0.6"
    )
    run.add_argument("--cells", default="", metavar="FILTER", help="such as rule=krum,attack=lie,b=0.3,pdr=1")
    run.add_argument(
        "--budget",
        type=_budget,
        metavar="TIME|ROUNDS",
        help="a time (20min, 2h), after which no run is started; or rounds=30, the length of every run; or both",
    )
    run.add_argument("--seeds", type=number, default=1, metavar="N", help="runs of each cell (default 1)")
    run.add_argument(
        "--protocol",
        choices=("budgeted", "literal"),
        default="budgeted",
        help="literal: Algorithm 1 to the letter, from pretrained weights (default budgeted: local steps)",
    )
    run.add_argument(
        "--workers", type=number, default=1, metavar="N", help="runs at a time (default 1, which times need)"
    )
    run.add_argument("--sketch", choices=("rotated", "achlioptas"), help="of PDR (default rotated; achlioptas for k/s)")
    run.add_argument("--data", type=Path, metavar="DIR", help="the folder of the images")
    run.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"the folder for the runs (default {OUT})")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto")
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change what the paper leaves open"
    )
    run.add_argument("--dry-run", action="store_true", help="print the runs in their order and run nothing")
    run.set_defaults(run=_run)

    compare = parts.add_parser("compare", help="compare our runs with the paper's tables")
    compare.add_argument(
        "where", type=Path, nargs="?", default=OUT, metavar="DIR|FILE", help=f"runs, or kept ones (default {OUT})"
    )
    compare.add_argument("--csv", type=Path, metavar="FILE", help="also write the rows to this file")
    compare.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    compare.add_argument("--plot", type=Path, metavar="FILE", help="draw PDR against base: a .png or .svg")
    compare.set_defaults(run=_compare)

    keep = parts.add_parser("keep", help="add finished runs to one small file, a line each")
    keep.add_argument("folder", type=Path, metavar="DIR", help="runs, as `bartizan paper run` leaves them")
    keep.add_argument("file", type=Path, metavar="FILE", help="a JSON-lines file, created or added to")
    keep.add_argument("--commit", metavar="HASH", help="the revision that ran, recorded with each run")
    keep.set_defaults(run=_keep)


def _list(options: argparse.Namespace) -> None:
    from bartizan.studies.paper.comparison_tables import listing

    print(listing())


def _run(options: argparse.Namespace) -> None:
    from bartizan.studies.paper import cells, run_cells

    budget = options.budget or run_cells.Budget()
    jobs = run_cells.plan(
        cells.picked(options.table, options.cells),
        budget=budget,
        seeds=options.seeds,
        sketch=options.sketch,
        protocol=options.protocol,
        data=options.data,
        device=options.device,
        changes=options.set,
    )
    if options.sketch == "rotated" and any(job.cell.pdr and job.cell.table == cells.ABLATION for job in jobs):
        print(f"{cells.ABLATION} is run with achlioptas: it varies s, which rotated does not have.", file=sys.stderr)
    if options.dry_run:
        print("\n".join(map(str, jobs)))
        return
    run_cells.run_jobs(jobs, options.out, budget, options.workers)


def _compare(options: argparse.Namespace) -> None:
    from bartizan._util.atomic import write_whole
    from bartizan.studies import plotting
    from bartizan.studies.paper import comparison_tables, scatter_plot
    from bartizan.studies.paper.compare import compare

    if options.plot:
        plotting.check_path(options.plot)
    found = compare(options.where)
    if options.csv:
        write_whole(options.csv, comparison_tables.csv_table(found))
    if options.plot:
        plotting.save(scatter_plot.draw(found.rows), options.plot)
    shown = comparison_tables.markdown(found) if options.markdown else comparison_tables.text(found)
    print(encodable(shown, sys.stdout))


def _keep(options: argparse.Namespace) -> None:
    from bartizan.studies.paper.kept_runs import keep

    done = keep(options.folder, options.file, options.commit)
    print(f"{options.file}: {done.runs} runs, of which new: {done.new}, changed: {done.changed}.")
    if done.unfinished:
        print(f"Not finished, and so not kept: {done.unfinished}.")
    if done.others:
        print(f"None of the paper's cells, and so not kept: {done.others}.")
    for what in done.unread:
        print(f"Not read: {what}")


def _budget(text: str) -> Any:
    from bartizan.studies.paper.run_cells import Budget

    return Budget.parse(text)
