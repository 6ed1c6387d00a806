"""`bartizan paper`: list, run, compare, keep."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bartizan._util.arguments import number
from bartizan.studies.paper.run_budget import Budget, parse

OUT = Path("runs/paper")


def add_to(commands: Any) -> None:
    about = "repeat the tables of the paper, and show ours beside them"
    parser = commands.add_parser("paper", help=about, description=about.capitalize() + ".")
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")

    parts.add_parser("list", help="the tables, the protocol, and what was chosen").set_defaults(run=_list)

    run = parts.add_parser("run", help="run a table's cells; what is finished is skipped, what was stopped goes on")
    run.add_argument("table", metavar="TABLE", help="such as cifar10-0.6, cifar10-ks, cifar10, all, tab:0.6")
    run.add_argument("--cells", default="", metavar="FILTER", help="such as rule=krum,attack=lie,b=0.3,pdr=1")
    run.add_argument(
        "--budget",
        type=parse,
        default=Budget(),
        metavar="TIME|ROUNDS",
        help="a time (20min, 2h), after which nothing new begins; or rounds=30, to which all cells are cut; or both",
    )
    run.add_argument("--seeds", type=number, default=1, metavar="N", help="runs of each cell (default 1)")
    run.add_argument("--sketch", choices=("rotated", "achlioptas"), help="of PDR (default rotated; achlioptas for k/s)")
    run.add_argument("--data", type=Path, metavar="DIR", help="where the images are")
    run.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where the runs go (default {OUT})")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto")
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change what the paper leaves open"
    )
    run.add_argument("--dry-run", action="store_true", help="only show what would run, in its order")
    run.set_defaults(run=_run)

    compare = parts.add_parser("compare", help="our cells beside the paper's")
    compare.add_argument(
        "where", type=Path, nargs="?", default=OUT, metavar="DIR|FILE", help=f"runs, or kept ones (default {OUT})"
    )
    compare.add_argument("--csv", type=Path, metavar="FILE", help="write the rows there as well")
    compare.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    compare.add_argument("--plot", type=Path, metavar="FILE", help="draw PDR against base: a .png or .svg")
    compare.set_defaults(run=_compare)

    keep = parts.add_parser("keep", help="put finished runs into one small file: a line each, each run once")
    keep.add_argument("folder", type=Path, metavar="DIR", help="runs, as `bartizan paper run` leaves them")
    keep.add_argument("file", type=Path, metavar="FILE", help="JSON lines; what is there already stays")
    keep.add_argument("--commit", metavar="HASH", help="the revision that ran, to be written beside each run")
    keep.set_defaults(run=_keep)


def _list(options: argparse.Namespace) -> None:
    from bartizan.studies.paper import table_text as show

    print(show.listing())


def _run(options: argparse.Namespace) -> None:
    from bartizan.studies.paper import cells
    from bartizan.studies.paper import run_cells as run

    plan = run.plan(
        cells.picked(options.table, options.cells),
        budget=options.budget,
        seeds=options.seeds,
        sketch=options.sketch,
        data=options.data,
        device=options.device,
        changes=options.set,
    )
    if options.sketch == "rotated" and any(job.cell.pdr and job.cell.table == cells.ABLATION for job in plan):
        print(f"{cells.ABLATION} takes achlioptas all the same: it varies s, which rotated has not.", file=sys.stderr)
    if options.dry_run:
        print("\n".join(map(str, plan)))
        return
    run.carry_out(plan, options.out, options.budget)


def _compare(options: argparse.Namespace) -> None:
    from bartizan._util.atomic import write_whole
    from bartizan.studies.paper import scatter as picture
    from bartizan.studies.paper import table_text as show
    from bartizan.studies.paper.compare import compare

    if options.plot:
        picture.check(options.plot)
    found = compare(options.where)
    if options.csv:
        write_whole(options.csv, show.as_csv(found))
    if options.plot:
        picture.draw(found.rows, options.plot)
    if options.markdown:
        print(show.markdown(found))
    else:
        show.on_terminal(found)


def _keep(options: argparse.Namespace) -> None:
    from bartizan.studies.paper.kept import keep

    done = keep(options.folder, options.file, options.commit)
    print(f"{options.file}: {done.runs} runs, of which new: {done.new}, changed: {done.changed}.")
    if done.unfinished:
        print(f"Not finished, and so not kept: {done.unfinished}.")
    if done.strangers:
        print(f"None of the paper's cells, and so not kept: {done.strangers}.")
    for what in done.unread:
        print(f"Not read: {what}")
