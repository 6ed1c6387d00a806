"""A commented experiment.toml, made from the keys' own words: it can't go stale."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, fields
from typing import Any

from bartizan.lab.config import toml
from bartizan.lab.config.choices import CHOICES, Choice
from bartizan.lab.config.experiment import SECTIONS, Experiment

WIDTH, COLUMN = 110, 30
GRID = """\
# Several runs for `bartizan sweep`: every combination of the values of these keys.
# [grid]
# "attack.name" = ["none", "sign-flip", "lie"]
# "rule.name" = ["mean", "krum", "geometric-median"]
# "sketch.name" = ["exact", "rotated"]
# seed = [0, 1]
"""


def commented() -> str:
    """All keys with their defaults, and what each is about."""
    default = Experiment()
    parts = [
        "# An experiment: `bartizan run experiment.toml`. All keys have these defaults; delete what you do not change.",
        *_keys(default),
    ]
    for one in fields(Experiment):
        if one.name in SECTIONS:
            about = (SECTIONS[one.name].__doc__ or "").strip().splitlines()[0]
            parts += ["", f"# {about}", f"[{one.name}]", *_keys(getattr(default, one.name))]
        elif one.name in CHOICES:
            parts += ["", *_choice(CHOICES[one.name])]
    return "\n".join([*parts, "", GRID])


def _keys(thing: Any) -> list[str]:
    lines = []
    for one in fields(thing):
        if one.metadata:
            choices = f" ({', '.join(one.metadata['one_of'])})" if one.metadata["one_of"] else ""
            lines += _beside(f"{one.name} = {toml.value(getattr(thing, one.name))}", one.metadata["about"] + choices)
    return lines


def _choice(choice: Choice) -> list[str]:
    chosen = choice.of({})
    lines = [*_comment(choice.about, "# "), f"[{choice.section}]"]
    lines += [f"{key} = {toml.value(value)}" for key, value in choice.as_dict(chosen).items()]
    for name in choice.known:
        takes = choice.takes(name).items()
        shown = [key if value in (MISSING, None) else f"{key} = {toml.value(value)}" for key, value in takes]
        lines += _comment(name + (f": {', '.join(shown)}" if shown else ""), "#   ")
    return lines


def _beside(setting: str, about: str) -> list[str]:
    first, *others = textwrap.wrap(about, WIDTH - COLUMN - 2)
    return [f"{setting:<{COLUMN}}# {first}", *(f"{'':<{COLUMN}}# {other}" for other in others)]


def _comment(text: str, mark: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=mark)
