"""The command line; each command's code is imported only when it is called."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, NoReturn

from bartizan import __version__, registry
from bartizan._util.redact import without_addresses_secrets, without_secrets
from bartizan._util.text import did_you_mean, short
from bartizan.attacks import ATTACKS, POISONS
from bartizan.registry import Registry

COMMANDS = {
    "demo": ("bartizan.lab.demo.command", "a sweep of training under attack, with its report"),
    "init": ("bartizan.lab.runs.command", "write a commented experiment.toml"),
    "run": ("bartizan.lab.runs.command", "train a model under attack, as an experiment.toml says"),
    "sweep": ("bartizan.lab.runs.command", "run all experiments of an experiment.toml's [grid]"),
    "report": ("bartizan.lab.report.command", "one HTML page of a folder of runs"),
    "compare": ("bartizan.lab.report.command", "the differences between two runs or sweeps, with intervals"),
    "aggregate": ("bartizan.aggregate_command", "one robust update from the updates in files and object stores"),
    "verify": ("bartizan.verify_command", "recompute committed rounds from their record"),
    "list": ("bartizan.cli", "show the rules, sketches, attacks, data sets and models, with plug-ins"),
    "warmup": ("bartizan.cli", "compile the kernels now, so that the first call does not"),
}
MAX_ERROR_CHARS = 4000  # that are printed
SHORT_COMMANDS = ("init", "report", "compare", "verify", "list", "warmup")  # whose output may be closed
ABOUT = "Byzantine-robust aggregation for federated learning."
Commands = Mapping[str, tuple[str, str]]
"""The module of each command, with a function `add_to`, and what the command does."""


class Parser(argparse.ArgumentParser):
    """A parser whose subcommands show their own usage, and the nearest option for an unknown one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            hint = did_you_mean(rest[0].partition("=")[0], self._option_string_actions, str)
            self.error(f"unrecognized arguments: {' '.join(map(without_secrets, rest))}.{hint}")
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        super().error(without_addresses_secrets(message))


def main(
    arguments: Sequence[str] | None = None, program: str = "bartizan", about: str = ABOUT, commands: Commands = COMMANDS
) -> int:
    """Run a command of `bartizan`, or of another program; a user's mistake is one line on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    command = program
    try:
        options = _parsed(sys.argv[1:] if arguments is None else list(arguments), program, about, commands)
        command = f"{program} {options.command}"
        if options.command in ("run", "sweep", "aggregate") and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # where "module:Name" may point
        status: int | None = options.run(options)
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if command == program or options.command in SHORT_COMMANDS:
            return 0
        print(f"{command}: stopped, since its output is no longer read.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as wrong:
        if _came_of_an_interrupt(wrong):
            return _interrupted()
        if not isinstance(wrong, (ValueError, OSError, MemoryError, ModuleNotFoundError)):
            raise
        message = str(wrong)
        if isinstance(wrong, OSError) and wrong.filename is not None:
            message = f"{wrong.filename}: {wrong.strerror}"
            if isinstance(wrong, FileNotFoundError) and not Path(wrong.filename).parent.exists():
                message = f"{Path(wrong.filename).parent}: there is no such folder."
        print(f"{command}: {without_addresses_secrets(short(message, MAX_ERROR_CHARS))}", file=sys.stderr)
        return 2
    return status or 0


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


def _came_of_an_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error: a library that is interrupted during its import may raise anything."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _parsed(arguments: list[str], program: str, about: str, commands: Commands) -> argparse.Namespace:
    """Return the options, from the parser of the command that is called; the others' code is not imported."""
    parser = Parser(prog=program, description=about)
    parser.add_argument("--version", action="version", version=f"bartizan {__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = next((word for word in arguments if not word.startswith("-")), None)
    if called is not None and called in commands:
        importlib.import_module(commands[called][0]).add_to(parsers)
    else:
        for name, (_, what) in commands.items():
            parsers.add_parser(name, help=what)
        if not arguments:
            parser.print_help(sys.stderr)
            raise SystemExit(2)
        if called is not None:
            meant = did_you_mean(called, commands)
            parser.error(f"invalid choice: {without_secrets(called)!r}.{meant} Commands: {', '.join(commands)}.")
    return parser.parse_args(arguments)


def add_to(commands: Any) -> None:
    for name, run in (("list", _list), ("warmup", _warm_up)):
        about = COMMANDS[name][1]
        parser = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        parser.set_defaults(run=run)
        if name == "warmup":
            parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")


def _warm_up(options: argparse.Namespace) -> None:
    from bartizan.warmup import warm_up

    print("Compiling the kernels, up to a minute ...", flush=True)
    log = logging.getLogger("bartizan")
    log.disabled = True  # it would advise to do what is being done
    try:
        seconds = warm_up(options.device)
    finally:
        log.disabled = False
    print(f"The kernels are compiled ({seconds:.0f} s).")


def _list(options: argparse.Namespace) -> None:
    from bartizan.lab.data.loaders import DATASETS
    from bartizan.lab.models.networks import MODELS

    described = {
        "Sketches": registry.SKETCHES,
        "Rules": registry.RULES,
        "Coordinate-wise rules (never projected)": registry.COORDINATEWISE,
        "Pre-aggregators (in front of a rule: nnm >> krum)": registry.PRE_AGGREGATORS,
        "Attacks (updates of the Byzantine clients)": ATTACKS,
        "Data poisoning (training data of the Byzantine clients)": POISONS,
    }
    for title, known in described.items():
        print(f"{title}\n")
        for name in known.built_in:
            _describe(known, name, "")
        _list_plugins(known)
    for title, known in {"Data sets": DATASETS, "Models": MODELS}.items():
        print(f"{title}\n")
        _print(", ".join(known.built_in), "  ")
        _list_plugins(known)


def _list_plugins(known: Registry) -> None:
    for plugin in known.plugins():
        problem = known.problem(plugin)
        if problem:
            print(f"  {plugin.name}  [plug-in of {plugin.source}: BROKEN]")
            _print(problem)
        else:
            _describe(known, plugin.name, f"  [plug-in of {plugin.source}]")
    print()


def _describe(known: Registry, name: str, note: str) -> None:
    """Print a name with its settings, `name` where one must be given and `name=default` otherwise, and a sentence."""
    settings = [key if value is MISSING else f"{key}={value}" for key, value in known.settings(name).items()]
    print(f"  {name}{'(' + ', '.join(settings) + ')' if settings else ''}{note}")
    about = (known.find(name).__doc__ or "").strip()
    if about:
        _print(about.splitlines()[0])


def _print(text: str, indent: str = "      ") -> None:
    width = min(100, shutil.get_terminal_size().columns)
    print(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent))
