"""The command `bartizan report`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    about = "one page with charts of a run or a sweep, finished or not"
    parser = commands.add_parser("report", help=about, description=f"Write {about}; PNG and CSV files beside it.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder that `bartizan run` or `sweep` wrote")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the page (default DIR/report.html)")
    parser.add_argument("--title", metavar="TEXT", help="heading of the page (default: the name of the experiment)")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write the rounds as TensorBoard scalars")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from bartizan.lab.report.write import write

    done = write(options.folder, options.out, title=options.title, tensorboard=options.tensorboard)
    for folder, why in done.content.loaded.broken:
        print(f"not shown: {folder}: {why}", file=sys.stderr)
    if done.missing:
        print(done.missing, file=sys.stderr)
    print(done.content.findings[0])
    print(f"{done.page}, with {', '.join(path.name for path in done.beside)} beside it")
