"""The commands `bartizan demo` and `bartizan demo aggregation`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bartizan._util.arguments import listed, number

OUT = Path("runs/demo")


def add_to(commands: Any) -> None:
    about = "train 50 clients, 15 of them attackers, with the mean and with robust rules, and write a report"
    demo = commands.add_parser("demo", help=about, description=about.capitalize() + ".")
    demo.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"for runs and report (default {OUT})")
    words = listed(str)
    demo.add_argument("--attacks", type=words, metavar="ATTACK,...", help="see `bartizan list` (default: three)")
    demo.add_argument("--rules", type=words, metavar="RULE,...", help="likewise (default: the mean and four)")
    demo.add_argument("--seeds", type=listed(int), metavar="N,...", help="runs of each pair, by seed (default: 0)")
    demo.add_argument("--rounds", type=number, metavar="N", help="of each run (default 40)")
    demo.add_argument("--workers", type=number, metavar="N", help="runs at a time (default: one a core)")
    demo.set_defaults(run=_training)

    parts = demo.add_subparsers(dest="part", metavar="PART")
    about = "aggregate updates of ResNet18's size under four attacks by four rules and the mean, exact and projected"
    alone = parts.add_parser("aggregation", help=about, description=about[0].upper() + about[1:] + ".")
    alone.add_argument("--clients", type=number, default=50, metavar="M", help="how many clients (default 50)")
    alone.add_argument("--byzantine", type=number, metavar="F", help="how many attackers (default: a fifth)")
    alone.add_argument("--dim", type=number, metavar="P", help="coordinates, such as 2M (default: ResNet18's 11.2M)")
    alone.set_defaults(run=_aggregation)


def _training(options: argparse.Namespace) -> int:
    from bartizan.lab.demo import training_demo as training

    chosen = {name: getattr(options, name) for name in ("attacks", "rules", "rounds", "seeds")}
    runs = training.experiments(**{name: given for name, given in chosen.items() if given})
    return training.run(options.out, runs, options.workers)


def _aggregation(options: argparse.Namespace) -> None:
    from bartizan.lab.demo import aggregation_demo as aggregation

    aggregation.run(options.clients, options.byzantine or options.clients // 5, options.dim)
