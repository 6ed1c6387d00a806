"""A run's configuration cut in two: what a cell of the paper asks for, and the protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from bartizan.lab.config.choices import CHOICES
from bartizan.lab.config.experiment import Experiment
from bartizan.lab.config.keys import ConfigError, shown
from bartizan.studies.paper.cells import Cell, cells
from bartizan.studies.paper.protocol import asked, sketches_of

# A cell says what these are; the rest of a configuration is the protocol, which is the same for all cells of a table.
ASKED = ("attack", "rule", "sketch", "split")
# Where and under which name something ran changes nothing in it; a seed is one sample of its cell.
ASIDE = ("name", "seed", "device", "grid")


def filled(config: Any) -> dict[str, Any]:
    """A configuration, checked, with the defaults of keys that it was written without, and no folder of a machine."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"A configuration must be a table of sections; got {shown(config)}.")
    whole = Experiment.read_back(config).as_dict()
    whole["data"].pop("folder")
    return whole


def parted(config: Mapping[str, Any], images: int | None = None) -> tuple[str, str]:
    """What a cell asks for and the protocol, both in a form that can be compared.

    The images count as a part of the protocol where their number is known: a sample is not the whole set.
    """
    rest = filled(config)
    setting: dict[str, Any] = {name: rest.pop(name) for name in ASKED}
    setting |= {"data": rest["data"].pop("name"), "byzantine": rest["clients"].pop("byzantine")}
    if images is not None:
        rest["data"]["images"] = images
    for key in ASIDE:
        rest.pop(key, None)
    return json.dumps(setting, sort_keys=True), json.dumps(rest, sort_keys=True)


@cache
def setting_of(cell: Cell, sketch: str) -> str:
    filled = {name: CHOICES[name].as_dict(CHOICES[name].of(content)) for name, content in asked(cell, sketch).items()}
    return json.dumps({**filled, "data": cell.data, "byzantine": cell.b}, sort_keys=True)


@cache
def places() -> dict[str, int]:
    """All settings that the paper has cells for, and where these stand in the order in which they matter."""
    out: dict[str, int] = {}
    for place, cell in enumerate(cells()):
        for kind in sketches_of(cell):
            out.setdefault(setting_of(cell, kind), place)
    return out
