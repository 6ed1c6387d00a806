"""The command `bartizan report`."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from bartizan._util.arguments import number


def add_to(commands: Any) -> None:
    about = "one page with charts of a run or a sweep, finished or not"
    parser = commands.add_parser("report", help=about, description=f"Write {about}; PNG and CSV files beside it.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder that `bartizan run` or `sweep` wrote")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the page (default DIR/report.html)")
    parser.add_argument("--title", metavar="TEXT", help="heading of the page (default: the name of the experiment)")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write the rounds as TensorBoard scalars")
    live = "serve the page on this machine instead, and follow the runs until Ctrl-C"
    parser.add_argument("--watch", type=number, nargs="?", const=0, metavar="PORT", help=live)
    parser.set_defaults(run=_run)
    about = "the differences between two runs or sweeps, with intervals over seeds"
    parser = commands.add_parser("compare", help=about, description=f"Print {about}.")
    parser.add_argument("first", type=Path, metavar="A", help="a folder that `bartizan run` or `sweep` wrote")
    parser.add_argument("second", type=Path, metavar="B", help="another, whose runs differ in what is to be compared")
    parser.set_defaults(run=_compare)


def _run(options: argparse.Namespace) -> None:
    from bartizan.lab.report.write import write

    if options.watch is not None:
        _watch(options)
        return
    done = write(options.folder, options.out, title=options.title, tensorboard=options.tensorboard)
    for folder, why in done.content.loaded.broken:
        print(f"not shown: {folder}: {why}", file=sys.stderr)
    if done.missing:
        print(done.missing, file=sys.stderr)
    print(done.content.findings[0])
    print(f"{done.page}, with {', '.join(path.name for path in done.beside)} beside it")


def _watch(options: argparse.Namespace) -> None:
    from bartizan.lab.report.live import LivePage, LiveServer

    if options.watch >= 2**16:
        raise ValueError(f"--watch wants a port below {2**16}, got {options.watch}.")
    if not options.folder.is_dir():
        raise FileNotFoundError(f"{options.folder} is not a folder; wanted one with a run, or where one will be.")
    with LiveServer(LivePage(options.folder, options.title), options.watch) as server:
        print(f"{server.url} follows {options.folder}; Ctrl-C ends it.", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _compare(options: argparse.Namespace) -> None:
    from bartizan.lab.report.compare import compare, table
    from bartizan.lab.report.load import load

    loaded = [load(folder) for folder in (options.first, options.second)]
    for one in loaded:
        for folder, why in one.broken:
            print(f"left out: {folder}: {why}", file=sys.stderr)
    print(f"A: {options.first}, {len(loaded[0].runs)} runs\nB: {options.second}, {len(loaded[1].runs)} runs")
    print(table(compare(loaded[0].runs, loaded[1].runs)))
