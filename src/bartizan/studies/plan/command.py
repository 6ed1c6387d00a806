"""`bartizan plan`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bartizan._util.arguments import number
from bartizan.studies.plan.plan import measured, plan
from bartizan.updates.layout import FLOATS


def add_to(commands: Any) -> None:
    about = "which sketch, which k, what it promises and what it costs here"
    parser = commands.add_parser("plan", help=about, description=f"Say {about}.")
    parser.add_argument("--clients", type=number, required=True, metavar="M", help="how many clients")
    parser.add_argument("--dim", type=number, required=True, metavar="P", help="coordinates, such as 11.2M")
    parser.add_argument("--eps", type=float, help="distortion of the whole span to promise (default: that of k=4096)")
    parser.add_argument("--delta", type=float, default=0.05, help="odds that the promise is broken (default 0.05)")
    parser.add_argument("--rounds", type=number, default=100, help="the rounds for which it must hold (default 100)")
    parser.add_argument("--rule", help="a rule, such as krum or 'nnm >> geometric-median' (default: two kinds)")
    parser.add_argument("--dtype", choices=FLOATS, default="float32", help="of the updates (default float32)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="their device (default cpu)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    asked: dict[str, Any] = {
        "dtype": options.dtype,
        "device": options.device,
        "eps": options.eps,
        "delta": options.delta,
        "rounds": options.rounds,
        "rule": options.rule,
    }
    plan(options.clients, options.dim, **asked)  # refuses what is wrong before anything is measured
    chosen = plan(options.clients, options.dim, **asked, on=measured(options.device, options.dtype))
    print(json.dumps(chosen.as_dict(), indent=1) if options.json else chosen)
