"""The command line."""

from __future__ import annotations

import argparse
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from bartizan import __version__, attacks
from bartizan import registry as names
from bartizan.attacks.parameters import HANDED
from bartizan.lab.report import command as report
from bartizan.lab.runs import command as federated
from bartizan.studies.bench import command as bench
from bartizan.studies.demo import command as demo
from bartizan.studies.paper import command as paper
from bartizan.studies.plan import command as planner
from bartizan.studies.theory import command as theory

LASTING = ("run", "sweep", "paper", "demo", "bench", "theory")  # commands with work that is not over when nobody looks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `bartizan`; what the user got wrong is one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(
        prog="bartizan", description="Byzantine-robust aggregation for federated learning."
    )
    parser.add_argument("--version", action="version", version=f"bartizan {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    commands.add_parser("list", help="show the sketches, rules, pre-aggregators and attacks").set_defaults(run=_list)

    demo.add_to(commands)
    federated.add_to(commands)
    paper.add_to(commands)
    planner.add_to(commands)
    bench.add_to(commands)
    report.add_to(commands)
    theory.add_to(commands)

    options = parser.parse_args(arguments)
    try:
        status: int | None = options.run(options)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if options.command not in LASTING:
            return 0
        print(f"bartizan {options.command}: stopped, since nobody reads its output any more.", file=sys.stderr)
        return 1
    except (ValueError, OSError, MemoryError, ModuleNotFoundError) as wrong:
        print(f"bartizan {options.command}: {wrong}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status or 0


def _list(options: argparse.Namespace) -> None:
    groups: dict[str, Mapping[str, Any]] = {
        "Sketches": names.SKETCHES,
        "Rules": names.RULES,
        "Coordinate-wise rules (never projected)": names.COORDINATEWISE,
        "Pre-aggregators (in front of a rule: nnm >> krum)": names.PRE_AGGREGATORS,
        "Attacks (what attackers send)": attacks.ATTACKS,
        "Data poisoning (what attackers train on)": attacks.POISONS,
    }
    width = min(100, shutil.get_terminal_size().columns)
    for title, table in groups.items():
        print(f"{title}\n")
        for name, kind in table.items():
            print(f"  {name}{_settings(kind)}")
            about = (kind.__doc__ or "").strip().splitlines()[0]
            print(textwrap.fill(about, width, initial_indent="      ", subsequent_indent="      "))
        print()


def _settings(kind: Any) -> str:
    """The settings that a thing takes: `name` where one must be given, `name=default` otherwise."""
    if is_dataclass(kind):
        defaults = {field.name: field.default for field in fields(kind)}
    else:  # an attack, to which what it knows of the server is not a setting
        parameters = inspect.signature(kind).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in HANDED}
    settings = [name if default is MISSING else f"{name}={default}" for name, default in defaults.items()]
    return f"({', '.join(settings)})" if settings else ""


if __name__ == "__main__":
    sys.exit(main())
