"""`bartizan report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    about = "one page with pictures of a run or a sweep, finished or not"
    parser = commands.add_parser("report", help=about, description=f"Write {about}; PNG and CSV files beside it.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `bartizan run` or `bartizan sweep` wrote")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (default DIR/report.html)")
    parser.add_argument("--title", metavar="TEXT", help="its heading (default: the name of the experiment)")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="write the rounds as TensorBoard scalars, too")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from bartizan.lab.report.write import write

    with _progress() as notice:
        done = write(options.folder, options.out, title=options.title, tensorboard=options.tensorboard, notice=notice)
    for place, why in done.loaded.broken:
        print(f"not shown: {place}: {why}", file=sys.stderr)
    if done.missing:
        print(done.missing, file=sys.stderr)
    print(f"{done.page}, with {', '.join(path.name for path in done.beside)} beside it")


@contextmanager
def _progress() -> Iterator[Any]:
    """One line that is written over, on a terminal only."""
    live = sys.stderr.isatty()

    def notice(text: str) -> None:
        if live:
            print(f"\r\x1b[K{text} ...", end="", file=sys.stderr, flush=True)

    try:
        yield notice
    finally:
        if live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
