"""The command `bartizan bench`."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from bartizan._util.arguments import listed, number, seconds
from bartizan.records import require_writable
from bartizan.updates.layout import FLOATS

RULES = "krum,bulyan,geometric-median,mca"


def add_to(commands: Any) -> None:
    about = "measure what aggregation costs, in reads of the updates, beside other libraries"
    parser = commands.add_parser(
        "bench", help=about, description=f"{about.capitalize()}: correctness first, then times."
    )
    numbers, words = listed(number), listed(str)
    parser.add_argument("--clients", type=numbers, default=[50], metavar="M,...", help="how many clients (default 50)")
    parser.add_argument(
        "--dim", type=numbers, default=[11_200_000], metavar="P,...", help="coordinates (default 11.2M, as ResNet18)"
    )
    parser.add_argument("--rules", type=words, default=words(RULES), metavar="RULE,...", help=f"default {RULES}")
    parser.add_argument(
        "--sketches",
        type=words,
        default=["exact", "rotated"],
        metavar="SKETCH,...",
        help="our sketches: exact, rotated, rotated:8192, auto ... (default exact,rotated)",
    )
    parser.add_argument(
        "--peers",
        type=words,
        default=[],
        metavar="PEER,...",
        help="byzfl, byzfl-numpy, byzpy, flower, flower-legacy, torch, torch-cdist, pair-loop (default none)",
    )
    parser.add_argument(
        "--byzantine", type=_count, metavar="F", help="attackers (default: a fifth, if the rules allow it)"
    )
    parser.add_argument("--dtype", choices=FLOATS, default="float32", help="of the updates (default float32)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the updates (default cpu)")
    parser.add_argument("--repeats", type=number, default=5, metavar="N", help="timed calls of each (default 5)")
    parser.add_argument(
        "--limit", type=seconds, default=60.0, metavar="S", help="seconds for the repeats of each (default 60)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON lines, after each of them")
    parser.add_argument("--add", action="store_true", help="keep the rows of --json that are not measured now")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the rows: a .png or .svg")
    parser.add_argument(
        "--markdown", type=Path, nargs="+", metavar="FILE", help="measure nothing: print finished rows as a table"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from studies import plotting
    from studies.speed import bench_plot, bench_tables
    from studies.speed.speed_rows import load
    from studies.speed.benchmark import Benchmark

    if options.plot:
        plotting.check_path(options.plot)
    if options.add and not options.json:
        raise ValueError("--add needs --json FILE, to whose rows it adds.")
    for path in filter(None, (options.json, options.plot)):
        require_writable(path.parent)  # before anything is measured
    if options.markdown:
        done = [row for path in options.markdown for row in load(path)]
        print(bench_tables.markdown(done))
    else:
        benchmark = Benchmark(**{one.name: getattr(options, one.name) for one in fields(Benchmark)})
        benchmark.check()
        with closing(bench_tables.RowPrinter()) as printer:
            done = benchmark.run(printer.progress.show, printer.add, options.json, options.add)
        print("\n".join(bench_tables.remarks(done)))
    if options.plot:
        plotting.save(bench_plot.draw(done), options.plot)


def _count(text: str) -> int:
    """A number that may be 0."""
    return 0 if text == "0" else number(text)
