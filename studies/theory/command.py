"""The command `bartizan theory`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

OUT, QUICK_OUT = Path("runs/theory"), Path("runs/theory-quick")
# As in `parts.PARTS`, which a command line that only asks for help should not have to import.
NAMES = ("embedding", "aggregation", "convergence", "breakdown", "adaptive")


def add_to(commands: Any) -> None:
    about = "measure what the paper's theorems promise, and write a report"
    parser = commands.add_parser(
        "theory",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. A stopped run continues where it was; no case is measured twice.",
    )
    parser.add_argument("part", nargs="?", choices=(*NAMES, "all"), default="all", help="default all")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"for the results (default {OUT}, or {QUICK_OUT})")
    parser.add_argument("--quick", action="store_true", help="a minute instead of fifteen: fewer draws and cases")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from studies.theory import parts

    out = options.out or (QUICK_OUT if options.quick else OUT)
    for name in NAMES if options.part == "all" else (options.part,):
        parts.run(name, out, options.quick)
    print("writing the report ...", file=sys.stderr, flush=True)
    written, missing = parts.write(out, options.quick)
    print(f"{written[-1]}{f' ({missing})' if missing else ''}")
