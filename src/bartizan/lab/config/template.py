"""A commented experiment.toml, written from the declarations of the keys; JSON's numbers and texts are TOML's."""

from __future__ import annotations

import json
import textwrap
from dataclasses import MISSING, fields
from typing import Any

from bartizan.lab.config.choices import CHOICES, Choice
from bartizan.lab.config.experiment import SECTIONS, Experiment
from bartizan.registry import DEFAULT_RULE

WIDTH, COLUMN = 110, 30
HEAD = """\
# An experiment: `bartizan run experiment.toml` runs it, `bartizan sweep experiment.toml` runs its [grid], below.
# Except attack.name (none) and rule.name (krum) these are the defaults of all keys: delete what you do not change."""
ATTACK = "sign-flip"
GRID = f"""\
# `bartizan sweep` runs every combination of these values; `bartizan run` ignores them.
[grid]
"attack.name" = ["none", "sign-flip"]
"rule.name" = ["mean", "krum", "{DEFAULT_RULE}"]
# "sketch.name" = ["exact", "rotated"]
# seed = [0, 1, 2]
"""


def commented() -> str:
    """Return the text of the file: all keys with their values and meaning, and a small grid."""
    shown = Experiment.of({"attack": {"name": ATTACK}, "rule": {"name": DEFAULT_RULE}})
    parts = [HEAD, *_keys(shown)]
    for one in fields(Experiment):
        if one.name in SECTIONS:
            about = (SECTIONS[one.name].__doc__ or "").strip().splitlines()[0]
            parts += ["", f"# {about}", f"[{one.name}]", *_keys(getattr(shown, one.name))]
        elif one.name in CHOICES:
            parts += ["", *_choice(CHOICES[one.name], getattr(shown, one.name))]
    return "\n".join([*parts, "", GRID])


def _keys(section: Any) -> list[str]:
    lines = []
    for one in fields(section):
        if one.metadata:
            values = one.metadata["one_of"] or one.metadata["registry"] or ()
            choices = f" ({', '.join(values)})" if values else ""
            setting = f"{one.name} = {json.dumps(getattr(section, one.name))}"
            first, *others = textwrap.wrap(one.metadata["about"] + choices, WIDTH - COLUMN - 2)
            lines += [f"{setting:<{COLUMN}}# {first}", *(f"{'':<{COLUMN}}# {other}" for other in others)]
    return lines


def _choice(choice: Choice, chosen: Any) -> list[str]:
    lines = [*_comment(choice.about, "# "), f"[{choice.section}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in choice.as_dict(chosen).items()]
    for registry in choice.registries:
        for name in registry.built_in:
            takes = registry.settings(name) if registry is not choice.registry else choice.settings(name)
            shown = [
                key if value in (MISSING, None) else f"{key} = {json.dumps(value)}" for key, value in takes.items()
            ]
            lines += _comment(name + (f": {', '.join(shown)}" if shown else ""), "#   ")
    return lines


def _comment(text: str, mark: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=mark)
