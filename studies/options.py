"""Commands from functions: their arguments become options, so that no module parses a command line of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from bartizan._util.arguments import listed, number

METAVARS = {int: "N", float: "X", Path: "PATH", str: "NAME"}


def count_from_0(text: str) -> int:
    """Parse a count that may be 0."""
    return 0 if text == "0" else number(text)


def add_command(commands: Any, function: Callable[..., Any], name: str = "") -> None:
    """Add a command that calls `function`, whose return value is the exit status.

    Arguments become positional; those behind `*` become options, which are required without a default. The annotation
    gives the parser: a positive `int` may be written as 11.2M, a `Sequence` takes commas, a `list` collects repeated
    options, a `Literal` has choices, a `bool` is a flag. `Annotated[type, "help"]` describes it; a function there
    parses it.
    """
    about = (function.__doc__ or "").strip()
    parser = commands.add_parser(
        name or function.__name__.replace("_", "-"), help=about.splitlines()[0].rstrip("."), description=about
    )
    hints = get_type_hints(function, include_extras=True)
    arguments = signature(function).parameters.values()
    for argument in arguments:
        _add_argument(parser, argument, hints[argument.name])

    def run(options: argparse.Namespace) -> Any:
        given = {argument.name: getattr(options, argument.name) for argument in arguments}
        several = [given.pop(argument.name) for argument in arguments if argument.kind is Parameter.VAR_POSITIONAL]
        return function(*(several[0] if several else ()), **given)

    parser.set_defaults(run=run)


def command(function: Callable[..., Any]) -> Callable[[Any], None]:
    """Return the `add_to` of a module with one command."""
    return partial(add_command, function=function)


def add_parts(commands: Any, name: str, about: str, parts: Sequence[Callable[..., Any]]) -> None:
    """Add a command whose parts are functions."""
    parser = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    own = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for part in parts:
        add_command(own, part)


def _add_argument(parser: argparse.ArgumentParser, argument: Parameter, hint: Any) -> None:
    notes = [] if get_origin(hint) is not Annotated else list(hint.__metadata__)
    kind = get_args(hint)[0] if notes else hint
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    parse = next((note for note in notes if callable(note)), None)
    settings: dict[str, Any] = {"help": " ".join(note for note in notes if isinstance(note, str))}
    required = argument.default is Parameter.empty
    if not required:
        settings["default"] = argument.default
        shown = (
            ",".join(map(str, argument.default)) if isinstance(argument.default, (list, tuple)) else argument.default
        )
        if shown not in (None, False, "") and isinstance(shown, (str, int, float, Path)):
            settings["help"] = f"{settings['help']} (default {shown})".strip()
    if kind is bool:
        settings["action"] = "store_true"
    elif get_origin(kind) is Literal:
        settings["choices"] = get_args(kind)
    elif get_origin(kind) is list:
        settings |= {"action": "append", "metavar": "TEXT"}
    elif get_origin(kind) is Sequence:
        (one,) = get_args(kind)
        settings |= {"type": parse or listed(number if one is int else one), "metavar": f"{METAVARS[one]},..."}
    else:
        settings |= {"type": parse or (number if kind is int else kind), "metavar": METAVARS.get(kind)}
    if argument.kind is Parameter.KEYWORD_ONLY:
        settings |= {"dest": argument.name, **({"required": True} if required else {})}
        parser.add_argument(f"--{argument.name.replace('_', '-')}", **settings)
    else:
        several = argument.kind is Parameter.VAR_POSITIONAL
        settings |= {"nargs": "+"} if several else {} if required else {"nargs": "?"}
        named = {} if "choices" in settings else {"metavar": argument.name.upper()}
        parser.add_argument(argument.name, **{**settings, **named})
